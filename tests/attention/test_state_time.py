"""States in time: taking tokens back, merging two segments, moving the reference key."""

from __future__ import annotations

import itertools

import pytest
import torch

from termwise.attention.forms import attend
from termwise.attention.names import parse
from tests.attention.compare import close, close_states, equal, holds, refused
from tests.attention.slicing import tokens
from tests.attention.stateful import FOLDING, in_parts
from tests.attention.values import inputs, turn_of


@pytest.mark.parametrize("name", FOLDING)
def test_rollback_then_continue_is_a_fresh_run(name):
    spec = parse(name)
    length = 128 + (spec.local.window - 1 if spec.local else 0)  # the fold is as near as it ever comes
    arguments = inputs(spec, batch=2, length=length + 20, seed=10)
    _, state = attend(**tokens(arguments, 0, length), spec=spec, output_final_state=True)
    for taken in (1 + turn_of(name) % 63, 64):
        back = state.rollback(taken)
        equal(back.count.tolist(), [length - taken], f"{name}: count")
        _, fresh = attend(**tokens(arguments, 0, length - taken), spec=spec, output_final_state=True)
        later = tokens(arguments, length - taken, length + 20)
        out, after = attend(**later, spec=spec, initial_state=back, output_final_state=True)
        expected, expected_state = attend(**later, spec=spec, initial_state=fresh, output_final_state=True)
        close(out, expected, "fp64", f"{name}, {taken} tokens back")
        close(
            in_parts(later, spec, [1], state=after)[0],
            in_parts(later, spec, [1], state=expected_state)[0],
            "fp64",
            f"{name}, {taken} back, later",
        )
    close_states(state.rollback(0), state, "fp64", f"{name}: nothing taken back")
    if spec.is_constant_size:
        with refused("rollback", "64", "earlier state"):
            state.rollback(length + 1)
    with refused("rollback", "-1"):
        state.rollback(-1)


@pytest.mark.parametrize("name", FOLDING)
def test_rollback_to_nothing(name):
    spec = parse(name)
    arguments = inputs(spec, length=40, seed=11)
    _, state = attend(**tokens(arguments, 0, 20), spec=spec, output_final_state=True)
    out, _ = attend(**tokens(arguments, 20, 40), spec=spec, initial_state=state.rollback(20))
    expected, _ = attend(**tokens(arguments, 20, 40), spec=spec)
    close(out, expected, "fp64", name)


@pytest.mark.parametrize(
    "name", ["power:2+decay", "taylor:0..2@mean+w8s2+decay", "exp+decay", "drop+w1s2+decay", "drop+w5s2+decay"]
)
def test_rollback_undoes_a_decay_of_minus_1e4(name):
    """What was forgotten completely comes back: decay is kept in logs, and folded sums are not decayed beyond their last key."""
    spec = parse(name)
    for dtype, row in ((torch.float64, "fp64"), (torch.float32, "decay")):
        arguments = inputs(spec, length=200, seed=12, dtype=dtype)
        arguments["log_decay"][:, 180:190] = torch.tensor(
            [-1e4, -50.0, -1e-6, 0.0, -5.0, -1e4, -0.1, 0.0, -1e4, -50.0]
        ).to(dtype)[None, :, None]
        _, state = attend(**tokens(arguments, 0, 190), spec=spec, output_final_state=True)
        later = tokens(arguments, 190, 200)
        expected, _ = attend(
            **later, spec=spec, initial_state=attend(**tokens(arguments, 0, 180), spec=spec, output_final_state=True)[1]
        )
        out, _ = attend(**later, spec=spec, initial_state=state.rollback(10))
        close(out, expected, row, f"{name}, {dtype}")


def test_rollback_of_padded_rows_counts_real_keys():
    spec = parse("taylor:0..2@mean+decay")
    arguments = inputs(spec, batch=2, length=160, seed=13)
    mask = torch.ones(2, 150, dtype=torch.bool)
    mask[0, 30:140] = False
    _, state = attend(**tokens(arguments, 0, 150), spec=spec, key_mask=mask, output_final_state=True)
    out, _ = attend(**tokens(arguments, 150, 160), spec=spec, initial_state=state.rollback(6))
    for b in range(2):
        kept = torch.cat([mask[b].nonzero()[:-6, 0], torch.arange(150, 160)])
        alone = {n: t[b : b + 1, kept] for n, t in arguments.items() if n != "parameters"}
        close(out[b : b + 1], attend(**alone, spec=spec)[0][:, -10:], "fp64", f"row {b}")


MERGING = [n for n in FOLDING if parse(n).input_gate != "count"]


@pytest.mark.parametrize("name", MERGING)
def test_merging_two_segments(name):
    spec = parse(name)
    arguments = inputs(spec, batch=2, length=420, seed=14)
    for cut, end in ((1, 3), (3, 200), (40, 90), (150, 151), (200, 400)):
        first = attend(**tokens(arguments, 0, cut), spec=spec, output_final_state=True)[1]
        second = attend(**tokens(arguments, cut, end), spec=spec, output_final_state=True)[1]
        later = tokens(arguments, end, end + 20)
        out, after = attend(**later, spec=spec, initial_state=first.merge(second), output_final_state=True)
        whole = attend(**tokens(arguments, 0, end), spec=spec, output_final_state=True)[1]
        expected, _ = attend(**later, spec=spec, initial_state=whole)
        close(out, expected, "fp64", f"{name}: {cut} and {end - cut} tokens")
        equal(after.count.tolist(), [end + 20] * len(after.count), name)
        back = first.merge(second).rollback(min(end, 64))
        close(
            attend(**later, spec=spec, initial_state=back)[0],
            attend(**later, spec=spec, initial_state=whole.rollback(min(end, 64)))[0],
            "fp64",
            f"{name}: {cut} and {end - cut} tokens, rolled back",
        )


def test_merging_is_associative_and_takes_padded_rows():
    spec = parse("taylor:0..2@mean+w4s2+decay")
    arguments = inputs(spec, batch=2, length=330, seed=15)
    mask = torch.ones(2, 330, dtype=torch.bool)
    mask[0, 10:150] = False
    mask[1, 200:202] = False
    edges = (0, 20, 160, 300)
    parts = [
        attend(**tokens(arguments, a, b), key_mask=mask[:, a:b], spec=spec, output_final_state=True)[1]
        for a, b in itertools.pairwise(edges)
    ]
    later = tokens(arguments, 300, 330)
    _, whole = attend(**tokens(arguments, 0, 300), key_mask=mask[:, :300], spec=spec, output_final_state=True)
    expected, _ = attend(**later, spec=spec, initial_state=whole)
    for merged in (parts[0].merge(parts[1]).merge(parts[2]), parts[0].merge(parts[1].merge(parts[2]))):
        close(attend(**later, spec=spec, initial_state=merged)[0], expected, "fp64", "merged")


def test_merging_refuses_a_gate_by_count():
    spec = parse("unit|identity+gc")
    arguments = inputs(spec, length=10)
    _, state = attend(**arguments, spec=spec, output_final_state=True)
    with refused("count", "merge"):
        state.merge(state)


def test_translating_the_reference_changes_nothing():
    for name in ("taylor:0..2@mean", "taylor:0..4@mean", "taylor:0..2@mean+w5s1+decay", "minimax3:0..4@mean"):
        spec = parse(name)
        arguments = inputs(spec, length=250, heads=2, kv_heads=2, seed=16)
        _, state = attend(**tokens(arguments, 0, 230), spec=spec, output_final_state=True)
        moved = state.translate(
            state.reference + torch.randn(1, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        )
        holds(not torch.allclose(moved.moments, state.moments), "the moments are others")
        later = tokens(arguments, 230, 250)
        close(
            attend(**later, spec=spec, initial_state=moved)[0],
            attend(**later, spec=spec, initial_state=state)[0],
            "fp64",
            name,
        )
        close_states(moved.translate(state.reference), state, "fp64", name)
    with refused("center='mean'"):
        attend(**inputs(parse("power:2"), length=3), spec=parse("power:2"), output_final_state=True)[1].translate(
            torch.zeros(1, 1, 3)
        )


def test_a_given_reference_key_changes_nothing():
    """Whatever key the moments are about, one for each kv head, in every form and across calls."""
    name = "taylor:0..2@mean+w4s1+decay"
    spec = parse(name)
    arguments = inputs(spec, batch=2, length=200, heads=4, kv_heads=2, seed=18)
    expected, _ = attend(**arguments, spec=spec)
    given = {"reference_key": torch.tensor([[0.5, -1.0, 2.0], [1.0, 1.0, -0.3]], dtype=torch.float64)}
    for form, size in (("parallel", None), ("chunked", 30), ("recurrent", None)):
        out, state = attend(
            **{**arguments, "parameters": given}, spec=spec, form=form, chunk_size=size, output_final_state=True
        )
        close(out, expected, "fp64", form)
        wanted = given["reference_key"] * state.scale**0.5
        close(state.reference, wanted.expand(2, 2, 3), "fp64", f"{form}: the state's reference")
    out, _ = in_parts({**arguments, "parameters": given}, spec, [3, 150])
    close(out, expected, "fp64", "in parts")
