"""Padding, packing, grouped heads, bidirectional and cross attention: every value in every one of them, outputs and gradients."""

from __future__ import annotations

import pytest
import torch

from termwise.attention.forms import attend
from tests.attention.compare import all_close, close, holds, same_bits
from tests.attention.running import clone, run_form, run_oracle
from tests.attention.slicing import detached, placed, rows, tokens
from tests.attention.values import NAMES, forms, inputs, leaves, spec_of, turn_of

TWO_WAY = [n for n in NAMES if spec_of(n).local is None and not spec_of(n).log_decay]


def pick(name: str, served: list) -> tuple[str, int | None]:
    return served[turn_of(name) % len(served)]


def some_forms(name: str) -> set[tuple[str, int | None]]:
    """Two: the one that `auto` takes or all scores at once, and another in turn."""
    served = forms(name)
    return {served[turn_of(name) % 2], pick(name, served[2:] or served)}


def expect_oracle(name: str, arguments: dict, form: tuple[str, int | None], expected: tuple, **options) -> None:
    spec = spec_of(name)
    out, found = run_form(arguments, spec, *form, **options)
    close(out, expected[0], "fp64", f"{name}, {form}")
    all_close(found, expected[1], "fp64 gradient", f"{name}, {form}: gradient of")


# Padding ----------------------------------------------------------------------------------------------------------


def padded_rows(spec, seed: int) -> tuple[dict, torch.Tensor, list[torch.Tensor]]:
    """Five rows of 9 tokens in 14 places: left, right, middle and scattered padding, and one row that is all padding. NaN below."""
    places = [
        torch.arange(5, 14),
        torch.arange(0, 9),
        torch.tensor([0, 1, 2, 3, 9, 10, 11, 12, 13]),
        torch.tensor([1, 2, 4, 5, 6, 8, 10, 11, 12]),
    ]
    places.append(torch.zeros(0, dtype=torch.int64))
    whole = inputs(spec, batch=5, length=9, heads=2, seed=seed)
    arguments = clone(placed(whole, places, 14, fill=float("nan")), torch.float64)
    mask = torch.zeros(5, 14, dtype=torch.bool)
    for b, place in enumerate(places):
        mask[b, place] = True
    return arguments, mask, places


@pytest.mark.parametrize("name", NAMES)
def test_padding_is_as_if_it_were_not_there(name):
    spec = spec_of(name)
    arguments, mask, places = padded_rows(spec, seed=turn_of(name))
    expected = run_oracle(arguments, spec, key_mask=mask)
    for form in some_forms(name):
        expect_oracle(name, arguments, form, expected, key_mask=mask)
    form, size = pick(name, forms(name))
    out, found = run_form(arguments, spec, form, size, key_mask=mask)
    same_bits(out[~mask], torch.zeros_like(out[~mask]), f"{name}: padded rows")
    per_token = [
        n
        for n in ("query", "key", "value", "input_gate", "output_gate", "log_decay", "running_gate_score")
        if found.get(n) is not None
    ]
    for n in per_token:
        same_bits(found[n][~mask], torch.zeros_like(found[n][~mask]), f"{name}: gradient of {n} under the padding")
    for b in {turn_of(name) % 4}:
        alone = rows(detached(arguments), b, b + 1)
        alone = {n: t[:, places[b]] if n != "parameters" else t for n, t in alone.items()}
        alone["parameters"] = {
            n: t[:, places[b]] if n == "running_gate_score" else t for n, t in alone["parameters"].items()
        }
        close(out[b : b + 1, places[b]], attend(**alone, spec=spec)[0], "fp64", f"{name}: row {b} alone")


def test_a_bias_does_not_leak_into_padded_rows():
    spec = spec_of("taylor:0..2|layer")
    arguments, mask, _ = padded_rows(spec, seed=0)
    with torch.no_grad():
        arguments["parameters"]["norm_bias"].fill_(3.0)
    for form, size in forms("taylor:0..2|layer"):
        out, _ = attend(**arguments, spec=spec, form=form, chunk_size=size, key_mask=mask)
        same_bits(out[~mask], torch.zeros_like(out[~mask]), form)
        holds(bool((out[mask].abs().sum(dim=-1) > 1).all()), "the bias is there where it belongs")


@pytest.mark.parametrize(
    "name",
    [
        "taylor:0..2@mean",
        "elu1",
        "exp",
        "exp<5|layer",
        "unit|identity+gc",
        "exp<5|runninggate*count",
        "taylor:0..2|runninggate>=1",
    ],
)
def test_queries_may_have_a_mask_of_their_own(name):
    """A real query at a padded key sees the real keys before it; a padded query at a real key is a zero row."""
    spec = spec_of(name)
    arguments = inputs(spec, batch=2, length=150, seed=1, requires_grad=True)
    key_mask, query_mask = torch.ones(2, 150, dtype=torch.bool), torch.ones(2, 150, dtype=torch.bool)
    key_mask[0, :3] = False
    key_mask[1, 130:] = False
    query_mask[0, 20:30] = False
    expected = run_oracle(arguments, spec, key_mask=key_mask, query_mask=query_mask)
    for form in some_forms(name):
        expect_oracle(name, arguments, form, expected, key_mask=key_mask, query_mask=query_mask)


# Without the causal mask ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TWO_WAY)
def test_bidirectional(name):
    spec = spec_of(name)
    arguments, mask, _ = padded_rows(spec, seed=turn_of(name))
    expected = run_oracle(arguments, spec, key_mask=mask, causal=False)
    for form in {*some_forms(name), ("reference", None)}:
        expect_oracle(name, arguments, form, expected, key_mask=mask, causal=False)


@pytest.mark.parametrize("name", TWO_WAY)
def test_cross_attention(name):
    spec = spec_of(name)
    i = turn_of(name)
    arguments = inputs(
        spec, batch=2, length=(1, 5, 40)[i % 3], num_keys=(33, 17, 8)[i % 3], heads=2, seed=i, requires_grad=True
    )
    mask = torch.ones(2, arguments["key"].shape[1], dtype=torch.bool)
    mask[0, ::2] = False
    expected = run_oracle(arguments, spec, key_mask=mask, causal=False)
    for form in {*some_forms(name), ("reference", None)}:
        expect_oracle(name, arguments, form, expected, key_mask=mask, causal=False)


@pytest.mark.parametrize(
    "name",
    [
        "taylor:0..2",
        "taylor:0..4@mean",
        "elu1",
        "exp",
        "exp<5|runninggate>=1",
        "taylor:0..2|runninggate>=1",
        "power:2|layer-",
    ],
)
def test_keys_in_several_calls_without_the_causal_mask(name):
    """Cross attention to a state: all keys of all calls are seen."""
    spec = spec_of(name)
    arguments = inputs(spec, batch=2, length=8, num_keys=150, seed=2)
    expected = run_oracle(clone(arguments, torch.float64), spec, causal=False)[0]
    for form, size in some_forms(name):
        state = None
        for start, stop in ((0, 70), (70, 149), (149, 150)):
            part = {**tokens(arguments, start, stop), "query": arguments["query"]}
            part["parameters"] = tokens(arguments, start, stop)["parameters"]
            out, state = attend(
                **part,
                spec=spec,
                causal=False,
                form=form,
                chunk_size=size,
                initial_state=state,
                output_final_state=True,
            )
        close(out, expected, "fp64", f"{name}, {form}")


# Packing ----------------------------------------------------------------------------------------------------------

ENDS = torch.tensor([0, 1, 13, 20, 32, 40])


@pytest.mark.parametrize("name", NAMES)
def test_packed_documents_are_separate(name):
    spec = spec_of(name)
    arguments = inputs(spec, length=40, heads=2, seed=turn_of(name), requires_grad=True)
    causal = name not in TWO_WAY or turn_of(name) % 4 > 0
    expected = run_oracle(arguments, spec, cu_seqlens=ENDS, causal=causal)
    served = forms(name)
    for form in {("auto", None), pick(name, [*served, ("reference", None)])}:
        expect_oracle(name, arguments, form, expected, cu_seqlens=ENDS, causal=causal)
    form, size = pick(name, served)
    before = run_form(arguments, spec, form, size, cu_seqlens=ENDS, causal=causal)
    changed = clone(arguments, torch.float64)
    with torch.no_grad():
        for n, t in leaves(changed).items():
            if n not in arguments["parameters"] or n == "running_gate_score":
                t[:, 13:20] = t[:, 13:20] * 1.7 - 0.1
    after = run_form(changed, spec, form, size, cu_seqlens=ENDS, causal=causal)
    others = torch.ones(40, dtype=torch.bool)
    others[13:20] = False
    same_bits(after[0][:, others], before[0][:, others], f"{name}, {form}: the other documents")
    for n, gradient in before[1].items():
        if gradient is not None and gradient.dim() > 2 and gradient.shape[1] == 40:
            same_bits(
                after[1][n][:, others], gradient[:, others], f"{name}, {form}: gradient of {n} in the other documents"
            )
    holds(not torch.equal(after[0][:, 13:20], before[0][:, 13:20]), f"{name}: the changed document is another")


@pytest.mark.parametrize(
    "name", ["taylor:0..2@mean+w8s2", "2mamba", "linear_cosine", "exp", "exp<5|runninggate*count", "drop+w5s2+decay"]
)
def test_packed_documents_continue_from_their_states(name):
    spec = spec_of(name)
    first = inputs(spec, length=210, seed=4)
    ends = torch.tensor([0, 1, 150, 210])
    later_ends = torch.tensor([0, 7, 9, 20])
    later = inputs(spec, length=20, seed=5)
    later["parameters"] = {
        **first["parameters"],
        **{n: t for n, t in later["parameters"].items() if n == "running_gate_score"},
    }
    _, state = attend(**first, spec=spec, cu_seqlens=ends, output_final_state=True)
    out, after = attend(**later, spec=spec, cu_seqlens=later_ends, initial_state=state, output_final_state=True)
    for i, part in enumerate(state.split()):
        start, stop = int(later_ends[i]), int(later_ends[i + 1])
        document = tokens(first, int(ends[i]), int(ends[i + 1]))
        own = attend(**document, spec=spec, output_final_state=True)[1]
        expected, own_after = attend(
            **tokens(later, start, stop), spec=spec, initial_state=own, output_final_state=True
        )
        close(out[:, start:stop], expected, "fp64", f"{name}: document {i}")
        close(
            attend(**tokens(later, start, stop), spec=spec, initial_state=part)[0],
            expected,
            "fp64",
            f"{name}: document {i} alone",
        )
        again = tokens(later, 0, 1)
        close(
            attend(**again, spec=spec, initial_state=after.split()[i])[0],
            attend(**again, spec=spec, initial_state=own_after)[0],
            "fp64",
            f"{name}: document {i}, one token later",
        )


# Heads ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_grouped_heads_repeat(name):
    """Query heads 0..r-1 share kv head 0: the same as repeating every kv head r times, never tiling.

    Where they decide together which keys stay, repeated kv heads would decide for each alone.
    """
    spec = spec_of(name)
    arguments = inputs(spec, batch=2, length=12, heads=6, kv_heads=2, seed=turn_of(name), requires_grad=True)
    expected = run_oracle(arguments, spec)
    repeated = detached(arguments)
    for n in ("key", "value", "input_gate", "log_decay"):
        if n in repeated:
            repeated[n] = repeated[n].repeat_interleave(3, dim=2)
    for n, axis in (("running_gate_score", 2), ("count_exponent", 0), ("centers", 0)):
        if n in repeated["parameters"]:
            repeated["parameters"][n] = repeated["parameters"][n].repeat_interleave(3, dim=axis)
    for form in {pick(name, forms(name)), ("parallel", None)}:
        expect_oracle(name, arguments, form, expected)
        if spec.local is not None and spec.local.heavy:
            continue
        close(
            attend(**repeated, spec=spec, form=form[0], chunk_size=form[1])[0],
            expected[0],
            "fp64",
            f"{name}, {form}: repeated",
        )


def test_batch_order_does_not_matter():
    order = torch.tensor([2, 0, 1])
    for name in ("taylor:0..2@mean+w8s2", "exp", "2mamba", "linear_cosine"):
        spec = spec_of(name)
        arguments = inputs(spec, batch=3, length=140, seed=6)
        swapped = {n: t[order] if n != "parameters" else t for n, t in arguments.items()}
        for form, size in some_forms(name):
            out, _ = attend(**arguments, spec=spec, form=form, chunk_size=size)
            close(attend(**swapped, spec=spec, form=form, chunk_size=size)[0], out[order], "fp64", f"{name}, {form}")
