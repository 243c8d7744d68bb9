"""Slots that keys leave at fixed positions: what can be taken back, and what a recorded past keeps for it."""

from __future__ import annotations

import itertools

import pytest
import torch

from termwise.attention.forms import attend
from termwise.attention.names import parse
from termwise.attention.state import AttentionState
from tests.attention.compare import close, close_states, equal, holds, refused
from tests.attention.slicing import tokens
from tests.attention.stateful import EVICTING, in_parts
from tests.attention.values import inputs


def every_of(name: str) -> int:
    return parse(name).local.evict_every


@pytest.mark.parametrize("name", EVICTING)
@pytest.mark.parametrize("form", ["chunked", "recurrent", "parallel"])
def test_rollback_within_the_tokens_since_keys_left(name, form):
    """Heavy slots need to know what each query gave, which only a recorded past keeps apart."""
    spec, every = parse(name), every_of(name)
    length, how = 4 * every + every - 1, {"spec": spec, "form": form, "output_final_state": True}
    arguments = inputs(spec, batch=2, length=length + 20, seed=21)
    records = spec.local.heavy > 0
    _, state = attend(**tokens(arguments, 0, length), **how, record_past=records)
    for taken in {1, every // 2, every - 1}:
        _, fresh = attend(**tokens(arguments, 0, length - taken), **how, record_past=records)
        close_states(state.rollback(taken), fresh, "fp64", f"{name}, {form}: {taken} back")
    _, plain = attend(**tokens(arguments, 0, length), **how)
    for taken in (1, every) if records else (every,):
        with refused("rollback", f"{taken} tokens", "record_past=True", "activate_past_recording"):
            plain.rollback(taken)
    with refused("rollback", "-1"):
        state.rollback(-1)


HEAVY = tuple(name for name in EVICTING if parse(name).local.heavy)


@pytest.mark.parametrize("name", HEAVY)
@pytest.mark.parametrize("form", ["chunked", "recurrent", "parallel", "reference"])
def test_one_sum_is_kept_unless_the_past_is_recorded(name, form):
    """The same keys stay; what was given is the same in all, and the state without its parts is the smaller one."""
    spec, every = parse(name), every_of(name)
    arguments = inputs(spec, batch=2, length=4 * every + every - 1, seed=24)
    how = {"spec": spec, "form": form, "output_final_state": True}
    (out, plain), (same, recorded) = (attend(**arguments, **how, record_past=records) for records in (False, True))
    close(out, same, "fp64", f"{name}, {form}")
    equal(plain.rank.tolist(), recorded.rank.tolist(), f"{name}, {form}: the slots")
    equal((plain.given, plain.given_rank), (None, None), f"{name}, {form}: one sum")
    equal(recorded.given.shape[2], every, f"{name}, {form}: a row a query since keys last left")
    close(plain.received, recorded.received + recorded.given.sum(dim=2), "fp64", f"{name}, {form}: received")
    slots = plain.received.numel()
    parts = slots * every * recorded.given.element_size() + recorded.given_rank.nbytes
    equal(sum(t.nbytes for t in recorded.tensors.values()) - plain.nbytes, parts, f"{name}, {form}: bytes")


@pytest.mark.parametrize("name", HEAVY)
def test_recording_may_begin_and_end_at_any_call(name):
    """What was given before it began cannot be taken back; everything after can, over a position at which keys leave too."""
    spec, every = parse(name), every_of(name)
    first, last = 3 * every + 2, 4 * every + 5
    arguments = inputs(spec, batch=2, length=last + 9, seed=25)
    whole, _ = attend(**arguments, spec=spec)
    _, begun = attend(**tokens(arguments, 0, first), spec=spec, output_final_state=True)
    state = begun
    for start, stop in ((first, first + 3), *((t, t + 1) for t in range(first + 3, last))):
        out, state = attend(
            **tokens(arguments, start, stop), spec=spec, initial_state=state, output_final_state=True, record_past=True
        )
        close(out, whole[:, start:stop], "fp64", f"{name}: {start}")
    for taken in (1, 4, every, last - first):
        back = state.rollback(taken)
        equal(back.count.tolist(), [last - taken], f"{name}: {taken} back")
        out, end = attend(
            **tokens(arguments, last - taken, last + 9), spec=spec, initial_state=back, output_final_state=True
        )
        close(out, whole[:, last - taken :], "fp64", f"{name}: {taken} back, then on")
    equal((end.given, end.past), (None, None), f"{name}: no longer recorded")
    with refused("rollback", "not kept apart", "record_past=True"):
        state.rollback(last - first + 1)
    both = AttentionState.stack([state.split()[0], begun.split()[1]])
    equal(both.given, None, f"{name}: beside one that keeps a sum")
    alone = {n: t if n == "parameters" else t[1:] for n, t in tokens(arguments, first, first + 5).items()}
    out, _ = attend(**alone, spec=spec, initial_state=both.split()[1])
    close(out, whole[1:, first : first + 5], "fp64", f"{name}: beside one that keeps a sum, then on")


@pytest.mark.parametrize("name", EVICTING)
def test_a_recorded_past_reaches_64_tokens_back(name):
    """Whatever form ran, in one call or several, token by token in the end."""
    spec = parse(name)
    arguments = inputs(spec, batch=2, length=150, seed=22)
    calls = ([0, 130], [0, 60, 70, 130], [0, *range(100, 131)])
    for edges, form in zip(calls, ("chunked", "parallel", "auto"), strict=True):
        state = None
        for start, stop in itertools.pairwise(edges):
            _, state = attend(
                **tokens(arguments, start, stop), spec=spec, form=form, initial_state=state, output_final_state=True,
                record_past=True,
            )  # fmt: skip
        for taken in (1, 17, 40, 63, 64):
            back = state.rollback(taken)
            _, fresh = attend(**tokens(arguments, 0, 130 - taken), spec=spec, output_final_state=True, record_past=True)
            close_states(back, fresh, "fp64", f"{name}, {form}: {taken} back")
            later = tokens(arguments, 130 - taken, 150)
            out, _ = in_parts(later, spec, [3], state=back)
            close(out, in_parts(later, spec, [3], state=fresh)[0], "fp64", f"{name}, {form}: {taken} back, then on")


def test_the_past_is_no_longer_than_it_has_to_be():
    spec = parse("drop+w4h2e16")
    arguments = inputs(spec, length=400)
    for edges in ([0, 400], list(range(0, 401))):
        state = None
        for start, stop in itertools.pairwise(edges):
            _, state = attend(
                **tokens(arguments, start, stop),
                spec=spec,
                initial_state=state,
                output_final_state=True,
                record_past=True,
            )
        depth, past = 0, state.past
        while past is not None:
            depth, past = depth + 1, past.past
        equal(depth, 4, "64 tokens of 16 each")
        holds(state.nbytes > 2 * sum(t.nbytes for t in state.tensors.values()), "and it is counted")
    _, state = attend(**arguments, spec=spec, output_final_state=True)
    equal(state.past, None, "nothing unless asked for")


def test_rollback_of_sequences_that_keys_leave_at_different_times():
    spec = parse("taylor:0..2@mean+w3s1h2e8")
    arguments = inputs(spec, batch=3, length=60, seed=23)
    mask = torch.ones(3, 60, dtype=torch.bool)
    mask[0, :3], mask[2, :13] = False, False
    _, state = attend(
        **tokens(arguments, 0, 50), spec=spec, key_mask=mask[:, :50], output_final_state=True, record_past=True
    )
    for taken in (1, 4, 7, 20):
        back = state.rollback(taken)
        equal(back.count.tolist(), [47 - taken, 50 - taken, 37 - taken], f"{taken} back")
        out, _ = attend(**tokens(arguments, 50 - taken, 60), spec=spec, initial_state=back)
        for b in range(3):
            alone = {n: t[b : b + 1, mask[b]] for n, t in arguments.items() if n != "parameters"}
            expected, _ = attend(**alone, spec=spec)
            close(out[b : b + 1], expected[:, -10 - taken :], "fp64", f"{taken} back, row {b}")
