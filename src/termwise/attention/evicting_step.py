"""One token against exact slots and groups, compiled: between two positions at which keys leave, slots are only added to.

The token goes behind the last slot (growth.py). A step at which keys leave is left to the general engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn.functional import pad

from termwise.attention.backends import compiled_loops
from termwise.attention.backends.tables import Tables, tables_of
from termwise.attention.compiled_step import Token, array, over_heads, token_of
from termwise.attention.evicting_state import recording
from termwise.attention.growth import replaced, room_behind
from termwise.attention.safe import in_type
from termwise.attention.state import AttentionState


@dataclass(frozen=True, eq=False)
class Ready:
    """What stays the same until keys leave, as arrays; kept with the room and made anew when a part is another."""

    parts: tuple[Any, ...]
    due: int  # the number of slots at which the next key makes others leave
    tables: Tables
    slots: tuple[np.ndarray, ...]  # key (N, places, d), value (N, places, e), rank (N, places)
    tail: tuple[np.ndarray, ...]  # moments (N, m, F, e), mass (N, m, F'), count (N, m), reference (N, m or 0, d)
    given: np.ndarray  # (N, rows, places), (N, 0, 0): no heavy slots
    given_rank: np.ndarray  # (B or 1, rows)
    scales: np.ndarray

    def serves(self, state: AttentionState) -> bool:
        return all(mine is its for mine, its in zip(self.parts, _parts(state), strict=True))


def _parts(state: AttentionState) -> tuple[Any, ...]:
    return (state.spec, state.scale, state.slot_scale, state.moments, state.mass, state.decayed_count, state.reference)


def step_evicting(given: dict[str, Any], state: AttentionState) -> tuple[Tensor, AttentionState | None] | None:
    """A plain step (see step.py); None where keys are due to leave, or nothing is compiled here."""
    if compiled_loops() is None or state.key.shape[2] == 0:
        return None
    found = _ready(recording(state, given["record_past"]), given["output_final_state"])
    if found is None:
        return None
    state, ready = found
    token, received = token_of(given, state), _received(state)
    out = _outputs(given, state, ready, token, received)
    return out, _extended(state, ready, received) if given["output_final_state"] else None


def _received(state: AttentionState) -> Tensor | None:
    """(B, G, L + 1): what the slots and the token have been given before; None where nothing is summed up."""
    return None if state.received is None or state.given is not None else pad(state.received, (0, 1))


def _ready(state: AttentionState, keeps: bool) -> tuple[AttentionState, Ready] | None:
    """The state in a room, and its arrays; with a place claimed for one more key if that is kept."""
    room, length, num_given = state.room, state.key.shape[2], _num_given(state)
    ready = None if room is None else room.ready
    if room is not None and ready is not None and ready.serves(state) and room.holds(state):
        if length >= ready.due:
            return None
        if not keeps or room.claim(length):
            return state, ready
    local = state.spec.local
    assert local is not None and local.evict_every is not None
    # The key that makes the count a multiple lets others leave.
    num_free = local.evict_every - 1 - int((state.count % local.evict_every).max())
    if num_free == 0:
        return None
    room = room_behind(replaced(state, room=None), length + num_free)
    state = replaced(state, room=room, **room.upto(length, num_given))
    ready = room.ready = _arrays(state, length + num_free)
    return state, ready


def _num_given(state: AttentionState) -> int:
    return 0 if state.given is None else state.given.shape[2]


def _arrays(state: AttentionState, due: int) -> Ready:
    room, (batch, kv_heads, _, d), e = state.room, state.key.shape, state.value.shape[3]
    assert room is not None
    heads = batch * kv_heads
    key = array(room.key).reshape(heads, -1, d)
    given, given_rank = np.empty((heads, 0, 0), key.dtype), np.empty((1, 0), np.int64)
    if room.given is not None and room.given_rank is not None:
        given, given_rank = array(room.given.flatten(0, 1)), array(room.given_rank)
    tail = tuple(np.empty((heads, 0, *shape), key.dtype) for shape in ((0, e), (0,), (), (d,)))
    if state.moments is not None and state.mass is not None:
        sums = (state.moments, state.mass, state.decayed_count)
        tail = (*(array(t.flatten(0, 1)) for t in sums), tail[3])
    if state.reference is not None:
        tail = (*tail[:3], array(state.reference.flatten(0, 1)))
    return Ready(
        parts=_parts(state),
        due=due,
        tables=tables_of(state.spec, d, state.key.dtype),
        slots=(key, array(room.value).reshape(heads, -1, e), array(room.rank).reshape(heads, -1)),
        tail=tail,
        given=given,
        given_rank=given_rank,
        scales=np.array((state.scale, state.slot_scale)),
    )


def _outputs(
    given: dict[str, Any], state: AttentionState, ready: Ready, token: Token, received: Tensor | None
) -> Tensor:
    """(B, 1, H, e) in the query's type; where the state is kept the token takes the next slot, and what it gives is noted."""
    loops, spec, tables, keeps = compiled_loops(), state.spec, ready.tables, given["output_final_state"]
    assert loops is not None
    (heads, group, _), dense = token.query.shape, spec.kernel.dense or ()
    out = state.value.new_empty(heads, group, state.value.shape[3])
    has_exact_mass = spec.kernel.is_centered and len(dense) < 3
    notes, row = (ready.given, _num_given(state)) if received is None else (received.flatten(0, 1)[:, None].numpy(), 0)
    notes = notes if keeps else notes[:, :0]
    arrays = (
        token.query, *ready.slots, token.key, token.value, state.key.shape[2], array(state.count), *ready.tail, tables.starts,
        tables.offsets, tables.widths, tables.multiplicities, tables.coefficients, tables.binomials, ready.scales,
        spec.kernel.is_centered, has_exact_mass, notes, row, keeps, out.numpy(),
    )  # fmt: skip
    over_heads(partial(loops.grouped_step, *arrays), heads, ready.tail[0].nbytes)
    batch, kv_heads = state.key.shape[:2]
    if token.output_gate is not None:
        out = out.view(batch, kv_heads, group, -1) * token.output_gate
    return in_type(out.view(batch, 1, kv_heads * group, -1), given["query"].dtype)


def _extended(state: AttentionState, ready: Ready, received: Tensor | None) -> AttentionState:
    """The state with the token in its slots; the loop has put it there, and what it gives with the rest or into its row."""
    num_given = _num_given(state)
    assert state.room is not None
    if state.given is not None:
        ready.given_rank[:, num_given] = array(state.count)
    longer = state.room.upto(state.key.shape[2] + 1, num_given + 1)
    if received is not None:
        longer["received"] = received
    return replaced(state, count=state.count + 1, **longer)
