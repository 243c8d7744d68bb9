"""The identities of math section 4, each a test."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from termwise.attention.forms import attend
from termwise.attention.names import parse
from termwise.attention.normalizers import L2, RMS, Layer
from termwise.attention.spec import AttentionSpec
from tests.attention.compare import close, holds, relative_rms
from tests.attention.running import clone
from tests.attention.values import forms, inputs, spec_of


def out_of(name: str | AttentionSpec, arguments: dict, **options) -> torch.Tensor:
    spec = parse(name) if isinstance(name, str) else name
    return attend(**arguments, spec=spec, **options)[0]


def with_eps(spec: AttentionSpec, eps: float) -> AttentionSpec:
    return dataclasses.replace(spec, normalizer=dataclasses.replace(spec.normalizer, eps=eps))


# 1: exp and a norm is fused softmax and the norm ----------------------------------------------------------------------


def test_a_norm_of_the_sum_is_the_norm_of_the_softmax():
    arguments = inputs(spec_of("exp|rms"), length=30, heads=2, kv_heads=2)
    query, key, value = (arguments[n].transpose(1, 2) for n in ("query", "key", "value"))
    softmax = scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)
    raw = torch.softmax(
        (query @ key.transpose(2, 3) / 3**0.5).masked_fill(~torch.ones(30, 30).tril().bool(), -torch.inf), dim=-1
    )
    mass = (query @ key.transpose(2, 3) / 3**0.5).exp().tril().sum(dim=-1, keepdim=True)
    unnormalised = ((raw * mass) @ value).transpose(1, 2)
    plain = {n: t for n, t in arguments.items() if n != "parameters"}
    for weighted in (softmax, unnormalised):
        close(out_of("exp|l2", plain), weighted / weighted.norm(dim=-1, keepdim=True), "outside", "L2(U) = L2(softmax)")
    expected = (
        unnormalised / unnormalised.square().mean(dim=-1, keepdim=True).sqrt() * arguments["parameters"]["norm_weight"]
    )
    close(out_of(with_eps(spec_of("exp|rms"), 1e-12), arguments), expected, "eps", "RMS(U) = RMS(softmax) but for eps")


def test_exp_and_a_norm_need_no_clamp():
    """Scores of +-200 in float32: the stable form is fine, the sum itself would overflow."""
    arguments = inputs(spec_of("exp|l2"), length=20, heads=1, dtype=torch.float32)
    arguments["query"] *= 100
    for form in ("auto", "parallel", "recurrent", "fused"):
        out = out_of("exp|l2", arguments, form=form)
        expected = out_of("exp|l2", clone(arguments, torch.float64, requires_grad=False))
        holds(bool(torch.isfinite(out).all()), form)
        close(out, expected.float(), "sharp", form)


# 2: a positive factor in front of a scale-free norm cancels -----------------------------------------------------------


@pytest.mark.parametrize(
    "kernel", ["exp", "taylor:0..2", "taylor:0..2@mean", "elu1", "drop+w5s1", "taylor:0..2@mean+w5s1", "power:2"]
)
@pytest.mark.parametrize("normalizer", [L2(), RMS(eps=1e-12), Layer(eps=1e-12)])
def test_a_gate_before_a_norm_cancels(kernel, normalizer):
    spec = dataclasses.replace(parse(kernel), normalizer=normalizer, output_gate="before")
    arguments = inputs(spec, length=20, heads=2)
    ungated = {n: t for n, t in arguments.items() if n != "output_gate"}
    row = "fp64" if normalizer == L2() else "eps"
    close(
        out_of(spec, arguments),
        out_of(dataclasses.replace(spec, output_gate=None), ungated),
        row,
        f"{kernel}, {normalizer.formula}",
    )
    after = out_of(dataclasses.replace(spec, output_gate="after"), arguments)
    holds(relative_rms(after, out_of(spec, arguments)) > 0.1, "a gate after the norm does not")


@pytest.mark.parametrize("kernel", ["exp<5", "taylor:0..2", "elu1"])
@pytest.mark.parametrize("normalizer", ["identity", "count", "runninggate"])
def test_homogeneous_normalizers_feel_a_gate_before(kernel, normalizer):
    arguments = inputs(parse(f"{kernel}|{normalizer}+gb"), length=20)
    ungated = {n: t for n, t in arguments.items() if n != "output_gate"}
    before = out_of(f"{kernel}|{normalizer}+gb", arguments)
    holds(relative_rms(before, out_of(f"{kernel}|{normalizer}", ungated)) > 0.1, "it is felt")
    close(before, out_of(f"{kernel}|{normalizer}+ga", arguments), "fp64", "and before is after")


@pytest.mark.parametrize("normalizer", ["rowsum", "l2"])
@pytest.mark.parametrize("kernel", ["power:2", "elu1", "relu:2"])
def test_a_factor_on_all_weights_cancels(kernel, normalizer):
    """A scale that multiplies every weight of a homogeneous kernel, under a row sum and under a norm."""
    arguments = inputs(parse(f"{kernel}|{normalizer}"), length=20)
    close(
        out_of(f"{kernel}|{normalizer}", arguments, scale=0.7),
        out_of(f"{kernel}|{normalizer}", arguments, scale=3.0),
        "fp64",
        kernel,
    )
    holds(
        relative_rms(out_of(f"{kernel}|count", arguments, scale=0.7), out_of(f"{kernel}|count", arguments, scale=3.0))
        > 0.1,
        "not by count",
    )


# 3: gates and decay in the scores ---------------------------------------------------------------------------------------


def test_an_input_gate_and_a_decay_in_the_scores():
    arguments = inputs(spec_of("exp+gi+decay"), length=25, heads=1)
    q, k, v = (arguments[n][0, :, 0] for n in ("query", "key", "value"))
    total = arguments["log_decay"][0, :, 0].cumsum(dim=0)
    scores = q @ k.T / 3**0.5 + total[:, None] - total[None]
    scores = scores.masked_fill(~torch.ones(25, 25).tril().bool(), -torch.inf)
    numerator = (
        scores + arguments["input_gate"][0, :, 0].log()[None] - torch.logsumexp(scores, dim=1, keepdim=True)
    ).exp()
    for form, size in forms("exp+gi+decay"):
        close(out_of("exp+gi+decay", arguments, form=form, chunk_size=size)[0, :, 0], numerator @ v, "fp64", form)
    gated = {n: t for n, t in inputs(spec_of("exp+gi"), length=25).items()}
    scaled = {"query": gated["query"], "key": gated["key"], "value": gated["value"] * gated["input_gate"][..., None]}
    close(
        out_of("exp+gi", gated, form="fused"),
        out_of("exp", scaled, form="fused"),
        "fp64",
        "softmax and input gate: one fused call, values scaled",
    )


def test_no_decay_is_decay_zero():
    for name in ("power:2", "taylor:0..2@mean", "taylor:0..2@mean+w4s1", "exp", "drop+w4s1", "elu1|identity"):
        arguments = inputs(spec_of(name), length=140)
        zero = {**arguments, "log_decay": torch.zeros(1, 140, 1, dtype=torch.float64)}
        for form, size in (
            ("parallel", None),
            ("recurrent", None),
            *((("chunked", 30),) if spec_of(name).is_constant_size else ()),
        ):
            options = {"form": form, "chunk_size": size}
            close(out_of(name, zero, **options), out_of(name, arguments, **options), "fp64", f"{name}, {form}")


# 4: one vector on all keys ------------------------------------------------------------------------------------------------

SHIFT_FREE = (
    *(
        "exp",
        "exp|l2",
        "exp+decay",
        "drop+w4s2",
        "taylor:0..1@mean",
        "taylor:0..2@mean",
        "taylor:0..4@mean",
        "taylor:0..2@mean|l2",
    ),
    *(
        "taylor:4@mean|l2",
        "taylor:0..2@mean+decay",
        "taylor:0..2@mean+w4s2",
        "taylor:0..2@mean+w4s2+decay",
        "minimax3:0..4@mean",
    ),
)
SHIFTED = ("taylor:0..2", "taylor:0..4", "taylor:0..2+w4s2", "minimax3:0..4", "elu1", "power:2", "exp<0.5")


@pytest.mark.parametrize("name", SHIFT_FREE)
def test_a_shift_of_all_keys_changes_nothing(name):
    arguments = inputs(spec_of(name), length=140, heads=1)
    shifted = {**arguments, "key": arguments["key"] + torch.tensor([1.5, -2.0, 0.5], dtype=torch.float64)}
    for form, size in (("parallel", None), ("chunked", 40) if spec_of(name).is_constant_size else ("recurrent", None)):
        close(
            out_of(name, shifted, form=form, chunk_size=size),
            out_of(name, arguments, form=form, chunk_size=size),
            "fp64",
            f"{name}, {form}",
        )


@pytest.mark.parametrize("name", SHIFTED)
def test_a_shift_of_all_keys_changes_a_series_around_zero(name):
    arguments = inputs(spec_of(name), length=30, heads=1)
    shifted = {**arguments, "key": arguments["key"] + torch.tensor([1.5, -2.0, 0.5], dtype=torch.float64)}
    holds(relative_rms(out_of(name, shifted), out_of(name, arguments)) > 1e-2, name)


# 5: the mean ----------------------------------------------------------------------------------------------------------------


def test_the_mean_is_not_detached():
    """The gradient flows through the mean: detaching it changes the gradient by tens of per cent."""
    arguments = inputs(spec_of("taylor:0..2@mean"), length=40, heads=1, spread=2.0, requires_grad=True)
    q, k, v = (arguments[n][0, :, 0] for n in ("query", "key", "value"))
    lower = torch.ones(40, 40, dtype=torch.float64).tril()

    def by_hand(detach: bool):
        y = q @ k.T / 3**0.5
        mean = (y * lower).sum(dim=1, keepdim=True) / lower.sum(dim=1, keepdim=True)
        y = y - (mean.detach() if detach else mean)
        weights = (1 + y + y**2 / 2) * lower
        return torch.autograd.grad(((weights @ v) / weights.sum(dim=1, keepdim=True)).pow(3).sum(), arguments["query"])[
            0
        ]

    for form in ("parallel", "chunked", "recurrent"):
        found = torch.autograd.grad(out_of("taylor:0..2@mean", arguments, form=form).pow(3).sum(), arguments["query"])[
            0
        ]
        close(found, by_hand(detach=False), "fp64", form)
    holds(relative_rms(by_hand(detach=True), by_hand(detach=False)) > 0.1, "detaching is no detail")


def test_orders_0_and_1_around_the_mean_have_the_mass_for_a_sum():
    arguments = inputs(spec_of("taylor:0..1@mean"), length=50)
    arguments["value"] = torch.ones_like(arguments["value"])
    close(
        out_of("taylor:0..1@mean", arguments, form="chunked"),
        torch.ones(1, 50, 2, 4, dtype=torch.float64),
        "fp64",
        "weights sum to the mass",
    )
