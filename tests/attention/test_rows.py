"""Row sums that vanish or turn negative: counted by head, bounded by the rule, never infinite or NaN."""

from __future__ import annotations

import pytest
import torch

from termwise.attention.forms import attend
from termwise.attention.rows import RowCounts
from tests.attention.compare import all_close, close, equal, holds
from tests.attention.running import run_form, run_oracle
from tests.attention.slicing import tokens
from tests.attention.values import forms, inputs, spec_of


def hand_counts(arguments: dict, name: str) -> tuple[list[int], list[int], list[int]]:
    """Rows, vanishing and negative ones of an unslotted polynomial about zero, straight from its definition."""
    spec = spec_of(name)
    query, key = arguments["query"].double(), arguments["key"].double()
    heads, length = query.shape[2], query.shape[1]
    rows, vanishing, negative = [0] * heads, [0] * heads, [0] * heads
    for h in range(heads):
        for b in range(query.shape[0]):
            for t in range(length):
                products = key[b, : t + 1, h // (heads // key.shape[2])] @ query[b, t, h] * query.shape[3] ** -0.5
                total = float(sum(c * products**n for n, c in enumerate(spec.kernel.dense)).sum())
                rows[h] += 1
                vanishing[h] += abs(total) < 1e-6 * (t + 1)
                negative[h] += total < 0
    return rows, vanishing, negative


@pytest.mark.parametrize("name", ["taylor:0..3!", "taylor:0..1!", "taylor:0..2"])
def test_counts_by_hand_in_every_form(name):
    arguments = inputs(spec_of(name), batch=2, length=140, heads=4, kv_heads=2, spread=2.0, seed=1)
    arguments["query"][:, 5] = 0.0  # every weight 1: no bad row
    expected = hand_counts(arguments, name)
    for form, size in forms(name):
        counts = RowCounts()
        attend(**arguments, spec=spec_of(name), form=form, chunk_size=size, row_counts=counts)
        equal((counts.rows.tolist(), counts.vanishing.tolist(), counts.negative.tolist()), expected, f"{name}, {form}")
    counts, short = RowCounts(), tokens(arguments, 0, 20)
    attend(**short, spec=spec_of(name), form="reference", row_counts=counts)
    equal(
        (counts.rows.tolist(), counts.vanishing.tolist(), counts.negative.tolist()),
        hand_counts(short, name),
        f"{name}, reference",
    )


def test_a_backward_pass_counts_nothing_again():
    """The chunked form computes its blocks anew for the gradient; the counts must not see that."""
    spec = spec_of("taylor:0..3!")
    arguments = inputs(spec, length=150, spread=2.0, requires_grad=True)
    for form, size in (("parallel", None), ("chunked", None), ("chunked", 40), ("recurrent", None)):
        counts = RowCounts()
        out, _ = attend(**arguments, spec=spec, form=form, chunk_size=size, row_counts=counts)
        before = (counts.rows.tolist(), counts.negative.tolist())
        equal(before[0], [150, 150], form)
        out.sum().backward()
        equal((counts.rows.tolist(), counts.negative.tolist()), before, f"{form} {size}")


def test_calls_add_up_and_padding_is_not_counted():
    spec = spec_of("taylor:0..3!")
    arguments = inputs(spec, batch=2, length=30, spread=2.0)
    mask = torch.ones(2, 30, dtype=torch.bool)
    mask[0, :11] = False
    counts = RowCounts()
    attend(**arguments, spec=spec, key_mask=mask, row_counts=counts)
    equal(counts.rows.tolist(), [49, 49], "padded rows")
    attend(**arguments, spec=spec, row_counts=counts)
    equal(counts.rows.tolist(), [109, 109], "the second call on top")
    counts = RowCounts()
    attend(**tokens(inputs(spec, length=30), 0, 30), spec=spec, cu_seqlens=torch.tensor([0, 4, 30]), row_counts=counts)
    equal(counts.rows.tolist(), [30, 30], "packed documents")
    counts = RowCounts()
    attend(**inputs(spec_of("exp"), length=30), spec=spec_of("exp"), row_counts=counts)
    equal(
        (counts.rows.tolist(), counts.vanishing.tolist(), counts.negative.tolist()),
        ([30, 30], [0, 0], [0, 0]),
        "softmax",
    )


VANISHING = (
    "linear_relu",
    "relu:2+decay",
    "2mamba",
    "taylor:2",
    "power:2",
    "power:3!",
    "unit!",
    "taylor:0..1!",
    "relu+w4",
    "taylor:1@mean|l2",
    "identity|l2",
    "taylor:3|rms",
    "relu^3",
)


@pytest.mark.parametrize("name", VANISHING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vanishing_sums_stay_finite(name, dtype):
    """All weights zero, a sum that cancels, tiny weights: finite outputs and gradients, and every form the same."""
    spec = spec_of(name)
    arguments = inputs(spec, batch=3, length=135, heads=1, seed=2)
    arguments["query"][0, 10:20] = 0.0
    arguments["key"][1] = 0.0
    arguments["query"][2] = -arguments["query"][2].abs()
    arguments["key"][2] = arguments["key"][2].abs()
    arguments["query"][0, 30] *= 1e-12
    arguments["key"][0, 40:60] *= 1e-12
    arguments["query"][0, 70] = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    arguments["key"][0, 65:71] = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    arguments = {
        n: (
            t.to(dtype).requires_grad_(True)
            if n != "parameters"
            else {m: p.to(dtype).requires_grad_(True) for m, p in t.items()}
        )
        for n, t in arguments.items()
    }
    for form, size in (("parallel", None), ("chunked", 50)):
        out, found = run_form(arguments, spec, form, size)
        holds(bool(torch.isfinite(out).all()), f"{name}, {form}: outputs")
        for n, gradient in found.items():
            holds(gradient is None or bool(torch.isfinite(gradient).all()), f"{name}, {form}: gradient of {n}")
        if dtype == torch.float64 and form == "parallel":
            expected = run_oracle(arguments, spec)
            close(out, expected[0], "fp64", f"{name}, {form}")
            all_close(found, expected[1], "fp64 gradient", f"{name}, {form}")


def test_the_rule_for_vanishing_sums():
    """|Z| below 1e-6 of the decayed count becomes sign(Z) 1e-6 of it; a negative Z is used as it is."""
    spec = spec_of("taylor:0..1!")
    value = torch.tensor([[1.0], [2.0]], dtype=torch.float64).reshape(1, 2, 1, 1)
    key = torch.tensor([[1.0], [1.0]], dtype=torch.float64).reshape(1, 2, 1, 1)
    for score, mass in ((-1.0 + 1e-9, 1e-6), (-1.0 - 1e-9, -1e-6), (-1.0, 1e-6), (-1.0 + 1e-5, 1e-5), (-3.0, -2.0)):
        query = torch.full((1, 2, 1, 1), score, dtype=torch.float64)
        out, _ = attend(query, key, value, spec, scale=1.0)
        weight = 1 + score
        close(
            out.flatten(),
            torch.tensor([weight / mass, weight * 3 / (2 * mass)], dtype=torch.float64),
            "outside",
            f"score {score}",
        )
