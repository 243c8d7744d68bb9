"""Causality: changing token j leaves every earlier output bit-identical, in every form of every value, gradients included."""

from __future__ import annotations

import pytest
import torch

from termwise.attention.forms import attend
from tests.attention.compare import holds, same_bits
from tests.attention.running import clone
from tests.attention.slicing import detached, tokens
from tests.attention.values import NAMES, forms, inputs, is_long_series, leaves, spec_of, turn_of, window_of


def changed_from(arguments: dict, start: int) -> dict:
    """Every tensor another from token `start` on, some of it very large."""
    out = detached(arguments)
    for name, t in leaves(out).items():
        if name in ("norm_weight", "norm_bias", "count_exponent"):
            continue
        if name in ("query", "key", "value"):
            t[:, start:] = -t[:, start:] * 3 + 0.5
            t[:, start] *= 5
        elif name == "log_decay":
            t[:, start:] = t[:, start:] * 2 - 0.1
            t[:, start] = -1e4
        else:
            t[:, start:] = 1 - t[:, start:] / 2
    return out


# Both types for every value with decay: its sums are kept in float64, where an early one must not see a late one either.
WITH_TYPES = [(n, (torch.float32, torch.float64)[turn_of(n) % 2]) for n in NAMES]
WITH_TYPES += [(n, (torch.float64, torch.float32)[turn_of(n) % 2]) for n in NAMES if spec_of(n).log_decay]


@pytest.mark.parametrize(("name", "dtype"), WITH_TYPES)
def test_later_tokens_leave_earlier_outputs_alone(name, dtype):
    served, turn = forms(name), turn_of(name)
    expect_causal(name, dtype, served[turn % len(served)], (1, 64, 65, 100, -1)[turn % 5])


EVERY_WAY = (
    "taylor:0..2@mean",
    "taylor:0..2@mean+w5s2+decay",
    "2mamba",
    "exp",
    "exp+decay",
    "linear_cosine",
    "exp<5|runninggate*count",
)


@pytest.mark.parametrize("name", EVERY_WAY)
def test_causal_in_every_form(name):
    for i, form in enumerate(forms(name)):
        expect_causal(name, (torch.float32, torch.float64)[i % 2], form, (70, 129)[i % 2])


def expect_causal(name: str, dtype: torch.dtype, form: tuple[str, int | None], start: int) -> None:
    spec = spec_of(name)
    length = window_of(spec) + 135 if spec.is_constant_size and not is_long_series(spec) else 40
    start = start if 0 < start < length else length - 1
    arguments = inputs(spec, length=length, heads=2, seed=turn_of(name), dtype=dtype)
    options = {"spec": spec, "form": form[0], "chunk_size": form[1]}
    before, _ = attend(**arguments, **options)
    after, _ = attend(**changed_from(arguments, start), **options)
    same_bits(after[:, :start], before[:, :start], f"{name}, {form}: outputs before token {start}")
    holds(not torch.equal(after[:, start:], before[:, start:]), f"{name}, {form}: the later ones change")


@pytest.mark.parametrize(
    "name", ["taylor:0..2@mean+w5s2+decay", "exp", "elu1", "unit|identity+gc", "exp<5|runninggate*count", "2mamba"]
)
def test_earlier_outputs_send_no_gradient_to_later_tokens(name):
    spec = spec_of(name)
    arguments = clone(inputs(spec, length=140, heads=2), torch.float64)
    for form, size in forms(name)[1:4]:
        out, _ = attend(**arguments, spec=spec, form=form, chunk_size=size)
        named = leaves(arguments)
        found = torch.autograd.grad(out[:, :70].sum(), list(named.values()), allow_unused=True)
        for n, gradient in zip(named, found, strict=True):
            if gradient is not None and n not in ("norm_weight", "norm_bias", "count_exponent"):
                same_bits(gradient[:, 70:], torch.zeros_like(gradient[:, 70:]), f"{name}, {form}: gradient of {n}")


@pytest.mark.parametrize(
    "name", ["taylor:0..2@mean", "taylor:0..2+w5s2", "2mamba", "exp", "linear_cosine", "drop+w5s2+decay"]
)
def test_the_state_of_a_prefix_does_not_see_what_follows(name):
    spec = spec_of(name)
    arguments = inputs(spec, length=150, dtype=torch.float32)
    _, before = attend(**tokens(arguments, 0, 140), spec=spec, output_final_state=True)
    _, after = attend(**tokens(changed_from(arguments, 140), 0, 140), spec=spec, output_final_state=True)
    for field, tensor in before.tensors.items():
        if tensor.numel():
            same_bits(after.tensors[field], tensor, f"{name}: {field}")


@pytest.mark.parametrize("name", ["taylor:0..2@mean", "exp", "elu1", "taylor:0..2@mean+w5s2"])
def test_other_rows_and_heads_leave_a_row_alone(name):
    spec = spec_of(name)
    arguments = inputs(spec, batch=3, length=140, heads=4, kv_heads=2, dtype=torch.float32)
    for form, size in forms(name)[1:3]:
        before, _ = attend(**arguments, spec=spec, form=form, chunk_size=size)
        other = detached(arguments)
        other["key"][1] *= 3
        other["value"][:, :, 1] -= 2
        after, _ = attend(**other, spec=spec, form=form, chunk_size=size)
        same_bits(after[[0, 2], :, :2], before[[0, 2], :, :2], f"{name}, {form}: rows 0 and 2, kv head 0")
        holds(
            not torch.equal(after[1], before[1]) and not torch.equal(after[:, :, 2:], before[:, :, 2:]),
            f"{name}: the others change",
        )
