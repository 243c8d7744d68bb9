"""One token against moments and buffer, compiled: a single pass that reads both for all query heads of a group.

Between two folds the state is only read: the token goes behind the buffer's last one (growth.py), and 64 tokens at a time are
folded.
"""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from termwise.attention.backends import compiled_loops
from termwise.attention.backends.tables import ROW_SUM, SCALE_FREE, SUMS, Tables, tables_of
from termwise.attention.call import FORGOTTEN, grouped_parameters
from termwise.attention.folding import fold, fold_target
from termwise.attention.growth import replaced, room_behind
from termwise.attention.normalizers import L2, RMS, Layer, Normalizer, RowSum
from termwise.attention.reading import Queries, Weighing, finish
from termwise.attention.safe import in_type
from termwise.attention.state import FOLD, RESERVE, AttentionState, num_recent

# Bytes of moments from which threads share a step: handing over takes as long as reading a quarter of it.
SHARED = 2**22
LEFT = (SUMS, False, 0.0, 0.0)  # sums are left to reading.py
_ONE_ROW = torch.ones(1, 1, dtype=torch.bool)


@dataclass(frozen=True, eq=False)
class Ready:
    """What stays the same from fold to fold, as arrays; kept with the room and made anew when a part is another."""

    parts: tuple[Any, ...]  # of the state that was folded last: see _parts
    due: int  # the buffer length at which keys are to be folded
    tables: Tables
    buffer: tuple[np.ndarray, ...]  # key (N, places, d), value (N, places, e), rank (B or 1, places)
    folded: tuple[np.ndarray, ...]  # moments, their copy, mass, decayed count, reference, whether there are any
    scales: np.ndarray
    norm: tuple[int, bool, float, float]  # see _norm
    undecayed: tuple[np.ndarray, np.ndarray]  # as _decays, without decay

    def serves(self, state: AttentionState) -> bool:
        return all(map(operator.is_, self.parts, _parts(state)))


def _parts(state: AttentionState) -> tuple[Any, ...]:
    """What arrays are made of. Neither the state nor its room, which would hold each other alive."""
    return (
        state.spec, state.scale, state.slot_scale, state.moments, state.half, state.mass, state.decayed_count, state.reference,
        state.boundary,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Token:
    """One new token as arrays (N = batch times kv heads), in the type sums are kept in."""

    query: np.ndarray  # (N, R, d)
    key: np.ndarray  # (N, d)
    value: np.ndarray  # (N, e), input gate applied
    log_decay: Tensor | None  # (B, G) float64
    running: Tensor | None  # (B, G) log of the running gate sum, this token included
    output_gate: Tensor | None  # (B, G, R, 1)


def step_compiled(given: dict[str, Any], state: AttentionState) -> tuple[Tensor, AttentionState | None] | None:
    """A plain step (see step.py) against a state of constant size; None where the general engine has to do it."""
    is_new = state.room is None or state.room.ready is None
    # A sequence without a key has no reference yet.
    if compiled_loops() is None or (is_new and bool((state.count == 0).any())):
        return None
    state, ready = _ready(state, given["output_final_state"])
    token = token_of(given, state)
    log_decay = state.age
    if token.log_decay is not None:
        log_decay = _with_decay(state).age + token.log_decay[..., None]
    out = _outputs(given, state, ready, token, log_decay)
    return out, _extended(state, ready, token, log_decay) if given["output_final_state"] else None


def _ready(state: AttentionState, keeps: bool) -> tuple[AttentionState, Ready]:
    """The state in a room, and its arrays; with a place claimed for one more key if that is kept."""
    room, length = state.room, state.key.shape[2]
    # Looked up once: another thread may put those of a state with other moments into the same room.
    ready = None if room is None else room.ready
    if room is None or not room.holds(state) or (keeps and not room.claim(length)):
        sinks = state.spec.local.sinks if state.spec.local else 0
        places = max(num_recent(state.spec) + sinks + RESERVE + FOLD - 1, length + 1)
        room = room_behind(replaced(state, room=None), places)
        state = replaced(state, room=room, **room.upto(length))
    elif ready is not None and ready.serves(state):
        return state, ready
    heads, e, d = state.key.shape[0] * state.key.shape[1], state.value.shape[3], state.key.shape[3]
    # The next multiple of 64 is folded when the window and 64 more stand behind it (folding.fold_target).
    until_due = (state.boundary // FOLD + 1) * FOLD + RESERVE + num_recent(state.spec) - 1 - state.count
    nothing = np.empty((heads, 0), dtype=array(state.decayed_count).dtype)
    ready = room.ready = Ready(
        parts=_parts(state),
        due=length + int(until_due.min()),
        tables=tables_of(state.spec, d, state.key.dtype),
        buffer=(array(room.key).reshape(heads, -1, d), array(room.value).reshape(heads, -1, e), array(room.rank)),
        folded=(
            nothing[..., None] if state.moments is None else array(state.moments).reshape(heads, -1, e),
            np.empty((heads, 0, 0), np.uint16)
            if state.half is None
            else array(state.half.view(torch.int16)).view(np.uint16).reshape(heads, -1, e),
            nothing if state.mass is None else array(state.mass).reshape(heads, -1),
            array(state.decayed_count).reshape(heads),
            nothing if state.reference is None else array(state.reference).reshape(heads, d),
            array(state.boundary) > 0,
        ),
        scales=np.array((state.scale, state.slot_scale)),
        norm=_norm(state.spec.normalizer, e),
        undecayed=(np.empty((heads, 0)), np.zeros(heads)),
    )
    return state, ready


def token_of(given: dict[str, Any], state: AttentionState) -> Token:
    dtype = state.key.dtype
    batch, kv_heads, _, d = state.key.shape
    value, gate = in_type(given["value"], dtype), _input_gate(given, state)
    if gate is not None:
        value = value * gate[..., None]
    decay, running, output_gate = given["log_decay"], None, given["output_gate"]
    if state.running_total is not None:
        running = torch.logaddexp(state.running_total, given["parameters"]["running_gate_score"][:, 0].to(dtype))
    return Token(
        query=array(in_type(given["query"], dtype)).reshape(batch * kv_heads, -1, d),
        key=array(in_type(given["key"], dtype)).reshape(batch * kv_heads, d),
        value=array(value).reshape(batch * kv_heads, -1),
        log_decay=None if decay is None else decay[:, 0].double().clamp(min=FORGOTTEN),
        running=running,
        output_gate=None if output_gate is None else output_gate[:, 0].to(dtype).reshape(batch, kv_heads, -1, 1),
    )


def _input_gate(given: dict[str, Any], state: AttentionState) -> Tensor | None:
    """(B or 1, 1, G)."""
    if state.spec.input_gate == "count":
        exponent = torch.sigmoid(given["parameters"]["count_exponent"].to(state.key.dtype))
        return (state.count + 1)[:, None, None].to(state.key.dtype) ** -exponent
    return None if given["input_gate"] is None else given["input_gate"].to(state.key.dtype)


def _outputs(
    given: dict[str, Any], state: AttentionState, ready: Ready, token: Token, log_decay: Tensor | None
) -> Tensor:
    """(B, 1, H, e) in the query's type; the token is put behind the buffer, where its state is asked for."""
    loops, spec, tables = compiled_loops(), state.spec, ready.tables
    assert loops is not None
    heads, group, d = token.query.shape
    norm = ready.norm if token.output_gate is None else LEFT
    out = state.value.new_empty(heads, group, ready.buffer[1].shape[2])
    sums = np.empty((3, heads, group), dtype=token.query.dtype)
    query, key, new_key = token.query, ready.buffer[0], token.key
    if spec.kernel.maps_keys:
        query, new_key = (array(spec.kernel.map(torch.from_numpy(t))) for t in (query, new_key))
        key = array(spec.kernel.map(state.key)).reshape(heads, -1, d)
    decays = ready.undecayed if log_decay is None else _decays(state, token, log_decay, heads)
    arrays = (
        query, token.query, key, *ready.buffer, new_key, token.key, token.value, state.key.shape[2], array(state.count),
        *decays, *ready.folded, tables.starts, tables.offsets, tables.widths,
        tables.multiplicities, tables.coefficients, tables.binomials, ready.scales, spec.local.window if spec.local else 0,
        spec.local.sinks if spec.local else 0, spec.has_tail and spec.kernel.is_centered, spec.has_tail, *norm,
        *_norm_parameters(given, state, token), given["output_final_state"], out.numpy(), *sums,
    )  # fmt: skip
    over_heads(partial(loops.step, *arrays), heads, ready.folded[0].nbytes)
    batch, kv_heads = state.key.shape[:2]
    if norm[0] != SUMS:
        return in_type(out.view(batch, 1, kv_heads * group, -1), given["query"].dtype)
    mass, count, peak = (torch.from_numpy(t).view(batch, kv_heads, group, 1, 1) for t in sums)
    weighing = Weighing(
        out.view(batch, kv_heads, group, 1, -1), mass, count if spec.has_tail else None, peak if spec.local else None
    )
    running = None if token.running is None else token.running[:, :, None, None, None]
    queries = Queries(weighing.weighted, state.count[:, None], None, token.output_gate, None)
    parameters = grouped_parameters(given["parameters"] or {}, kv_heads, state.key.dtype)
    finished = finish(spec, weighing, queries, _ONE_ROW, parameters, None, running)
    return in_type(finished.view(batch, 1, kv_heads * group, -1), given["query"].dtype)


def _norm(normalizer: Normalizer, width: int) -> tuple[int, bool, float, float]:
    """What the loop makes of its sums: (which, whether it subtracts the mean, eps, gain); rarer norms are left to reading.py."""
    match normalizer:
        case RowSum() if normalizer.is_pure:
            return ROW_SUM, False, 0.0, 0.0
        case L2():
            return SCALE_FREE, False, 0.0, width**0.5 if normalizer.times_width else width**-0.5
        case RMS() | Layer():
            return SCALE_FREE, isinstance(normalizer, Layer), normalizer.eps, 1.0
    return LEFT


def _norm_parameters(given: dict[str, Any], state: AttentionState, token: Token) -> list[np.ndarray]:
    """Weight and bias (G, R, e), (G, R, 0) where there is none."""
    parameters, grouped = given["parameters"] or {}, (state.key.shape[1], token.query.shape[1])
    tensors = [parameters.get(name) for name in ("norm_weight", "norm_bias")]
    return [
        np.empty((*grouped, 0), dtype=token.query.dtype)
        if tensor is None
        else array(in_type(tensor, state.key.dtype)).reshape(*grouped, -1)
        for tensor in tensors
    ]


def over_heads(step: Callable[[int, int], None], heads: int, num_bytes: int) -> None:
    """step(first, last) over all heads, shared by torch's number of threads where there is much to read. Nobody spins meanwhile."""
    threads = min(torch.get_num_threads(), heads) if num_bytes >= SHARED else 1
    if threads == 1:
        step(0, heads)
        return
    edges = [heads * i // threads for i in range(threads + 1)]
    list(_pool(threads).map(step, edges[:-1], edges[1:]))


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="termwise")


# A forked child has the pool but none of its threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)


def _decays(state: AttentionState, token: Token, log_decay: Tensor, heads: int) -> tuple[np.ndarray, np.ndarray]:
    """Log decay to the new token from each buffered key (N, L) and from the last folded one (N,)."""
    fold_age = _with_decay(state).fold_age
    fold_age = fold_age if token.log_decay is None else fold_age + token.log_decay
    return array(log_decay).reshape(heads, -1), array(fold_age).reshape(heads)


def _with_decay(state: AttentionState) -> Any:
    return state.with_decay()


def _extended(state: AttentionState, ready: Ready, token: Token, log_decay: Tensor | None) -> AttentionState:
    """The state with the token in its buffer (the loop has put it there), folded where that is due."""
    length = state.key.shape[2] + 1
    assert state.room is not None
    changed: dict[str, Any] = state.room.upto(length)
    changed["count"] = state.count + 1
    if log_decay is not None:
        before = _with_decay(state)
        step = 0 if token.log_decay is None else token.log_decay
        # Not zeros like its first place: a buffer that was rolled back to nothing has none.
        changed["age"] = torch.cat([log_decay, log_decay.new_zeros(*log_decay.shape[:2], 1)], dim=2)
        changed["fold_age"], changed["total_log_decay"] = before.fold_age + step, before.total_log_decay + step
    if token.running is not None and state.running_gate is not None:
        changed["running_gate"] = torch.cat([state.running_gate, token.running[..., None]], dim=2)
        changed["running_total"] = token.running
    extended = replaced(state, **changed)
    return fold(extended, fold_target(extended)) if length >= ready.due else extended


def array(tensor: Tensor) -> np.ndarray:
    """The same memory; a copy where it has gaps."""
    return (tensor.detach() if tensor.requires_grad else tensor).contiguous().numpy()
