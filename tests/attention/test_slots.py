"""Exact slots and a tail under one sum: math section 6."""

from __future__ import annotations

import pytest
import torch

from termwise.attention.forms import attend
from termwise.attention.names import parse
from termwise.attention.spec import AttentionSpec
from tests.attention.compare import all_close, close, holds, same_bits
from tests.attention.running import clone, run_form, run_oracle
from tests.attention.slicing import detached
from tests.attention.values import inputs, spec_of


def out_of(name: str | AttentionSpec, arguments: dict, **options) -> torch.Tensor:
    spec = parse(name) if isinstance(name, str) else name
    return attend(**arguments, spec=spec, **options)[0]


@pytest.mark.parametrize("tail", ["taylor:0..2", "taylor:0..2@mean", "taylor:0..4@mean", "drop", "taylor:0..1@mean"])
@pytest.mark.parametrize(("window", "sinks"), [(20, 0), (64, 3), (13, 7), (1, 20)])
def test_a_window_as_long_as_the_text_is_softmax(tail, window, sinks):
    arguments = inputs(spec_of("exp"), length=20, requires_grad=True)
    expected = run_oracle(arguments, spec_of("exp"))
    for form, size in (("parallel", None), ("recurrent", None), ("chunked", 7)):
        out, found = run_form(arguments, spec_of(f"{tail}+w{window}s{sinks}"), form, size)
        close(out, expected[0], "fp64", f"{tail}, {form}")
        all_close(found, expected[1], "fp64 gradient", f"{tail}, {form}")


def test_one_sum_over_slots_and_tail_when_either_dominates():
    """M = max(largest slot score, m): exact whichever is larger, by 200 in the exponent."""
    for slot, tail in ((150.0, -50.0), (-50.0, 150.0), (0.0, 0.0), (-700.0, -690.0), (300.0, 299.0)):
        for dtype, row in ((torch.float64, "fp64"), (torch.float32, "sharp")):
            key = torch.full((1, 6, 1, 1), tail, dtype=dtype)
            key[:, -2:] = slot
            key += torch.tensor([0.0, 0.5, -0.5, 1.0, 0.25, -0.25], dtype=dtype)[None, :, None, None]
            value = torch.arange(6, dtype=dtype).reshape(1, 6, 1, 1) + 1
            query = torch.ones(1, 6, 1, 1, dtype=dtype)
            scores = key.flatten().double()
            mean = scores[:4].mean()
            logs = torch.cat([mean + (1 + (scores[:4] - mean) + (scores[:4] - mean) ** 2 / 2).log(), scores[4:]])
            expected = torch.softmax(logs, dim=0) @ value.flatten().double()
            out = out_of("taylor:0..2@mean+w2", {"query": query, "key": key, "value": value}, scale=1.0)
            close(out[0, -1, 0].double(), expected[None], row, f"slots {slot}, tail {tail}, {dtype}")


@pytest.mark.parametrize(
    "name",
    [
        "taylor:0..2@mean+w5s2",
        "taylor:0..2@mean+w5s2+decay",
        "taylor:0..2+w5+decay",
        "taylor:0..4@mean+w1|l2+decay",
        "taylor:1@mean+w3|l2",
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_empty_or_faded_tail_leaves_finite_gradients(name, dtype):
    """No far key yet; far keys faded to nothing, or to the smallest numbers there are."""
    spec = parse(name)
    for fade in (-1e4, -745.0, -700.0, -100.0, -90.0, -50.0) if spec.log_decay else (0.0,):
        arguments = clone(inputs(spec, length=14, heads=1, mean=2.0), dtype, requires_grad=False)
        if spec.log_decay:
            arguments["log_decay"][:] = 0
            arguments["log_decay"][:, 8] = fade
        arguments = clone(arguments, dtype)
        exact = run_oracle(clone(arguments, torch.float64), spec)
        for form, size in (("parallel", None), ("recurrent", None), ("chunked", 4)):
            out, found = run_form(arguments, spec, form, size)
            close(
                out.double(), exact[0], "sharp" if dtype == torch.float32 else "fp64", f"{name}, {form}, decay {fade}"
            )
            for n, gradient in found.items():
                holds(bool(torch.isfinite(gradient).all()), f"{name}, {form}, decay {fade}: gradient of {n}")
                close(
                    gradient.double(),
                    exact[1][n],
                    "sharp" if dtype == torch.float32 else "fp64 gradient",
                    f"{name}, {form}, {fade}: gradient of {n}",
                )


def test_a_step_moves_the_leaving_key_first():
    """At query t the key t - W is already in the tail: with W = 1 only the key itself is exact."""
    arguments = inputs(spec_of("taylor:0..2+w1"), length=2, heads=1, key_width=1, value_width=1)
    q, k, v = (arguments[n].flatten() for n in ("query", "key", "value"))
    far, near = q[1] * k[0], q[1] * k[1]
    weights = torch.stack([1 + far + far**2 / 2, near.exp()])
    for form in ("parallel", "chunked", "recurrent"):
        close(
            out_of("taylor:0..2+w1", arguments, form=form)[0, 1, 0], (weights @ v / weights.sum())[None], "fp64", form
        )


def test_sinks_are_the_first_real_keys():
    """Padding in front does not use up sinks."""
    spec = spec_of("drop+w2s2")
    arguments = inputs(spec, length=12)
    mask = torch.ones(1, 12, dtype=torch.bool)
    mask[:, :4] = False
    out = out_of(spec, arguments, key_mask=mask)
    alone = {n: t[:, 4:] if n != "parameters" else t for n, t in arguments.items()}
    close(out[:, 4:], out_of(spec, alone), "fp64", "sinks behind padding")
    changed = detached(arguments)
    changed["value"][:, 5] += 1
    holds(
        not torch.equal(out_of(spec, changed, key_mask=mask)[:, 11], out[:, 11]),
        "the second real key is seen to the end",
    )
    changed = detached(arguments)
    changed["value"][:, 6] += 1
    same_bits(out_of(spec, changed, key_mask=mask)[:, 11], out[:, 11], "the third is not")
