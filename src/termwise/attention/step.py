"""One token against a state, compiled: a single pass that reads buffer and moments for all query heads of a group.

The state is only read: the token goes behind the buffer's last one (growth.py), and 64 tokens at a time are folded. Anything
out of the ordinary (gradients, padding, a GPU, a state without keys) goes through the general engine instead.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from termwise.attention.backends import Loops, loops_for
from termwise.attention.backends.tables import tables_of
from termwise.attention.call import FORGOTTEN, grouped_parameters
from termwise.attention.folding import fold, fold_target
from termwise.attention.growth import append, roomy
from termwise.attention.reading import Queries, Weighing, finish
from termwise.attention.state import FOLD, RESERVE, AttentionState, num_recent


@dataclass(frozen=True)
class Token:
    """One new token in the engine's layout, in the type sums are kept in."""

    query: Tensor  # (B, G, R, d)
    key: Tensor  # (B, G, d)
    value: Tensor  # (B, G, e), input gate applied
    log_decay: Tensor | None  # (B, G) float64
    running: Tensor | None  # (B, G) log of the running gate sum, this token included
    output_gate: Tensor | None  # (B, G, R, 1)


def attend_step(given: dict[str, Any]) -> tuple[Tensor, AttentionState | None] | None:
    """Checked arguments of `attend` -> its result, or None where the general engine has to do it."""
    loops = _loops(given)
    if loops is None:
        return None
    state: AttentionState = given["initial_state"]
    token = _token(given, state)
    if token is None:
        return None
    before = _with_room(state) if given["output_final_state"] else state
    log_decay = _log_decay(before, token)
    sums = _sums(loops, before, token, log_decay)
    parameters = grouped_parameters(given["parameters"] or {}, token.key.shape[1], state.key.dtype)
    queries = Queries(token.query[..., None, :], before.count[:, None], None, token.output_gate, None)
    running = None if token.running is None else token.running[:, :, None, None, None]
    out = finish(before.spec, sums, queries, _TRUE, parameters, None, running)
    out = out.permute(0, 3, 1, 2, 4).flatten(2, 3).to(given["query"].dtype)
    return out, _extended(before, token, log_decay) if given["output_final_state"] else None


_TRUE = torch.ones(1, 1, dtype=torch.bool)


def _loops(given: dict[str, Any]) -> Loops | None:
    """The compiled loops, where this call is a plain step."""
    state = given["initial_state"]
    if given["form"] not in ("auto", "recurrent") or not given["causal"] or given["row_counts"] is not None:
        return None
    if not state.spec.is_constant_size or state.key.shape[2] == 0 or (state.spec.has_tail and not state.has_moments):
        return None
    if any(given[name] is not None and not bool(given[name].all()) for name in ("key_mask", "query_mask")):
        return None
    learned = given["parameters"] or {}
    if torch.is_grad_enabled() and any(
        t is not None and t.requires_grad
        for t in (
            given["query"],
            given["key"],
            given["value"],
            given["input_gate"],
            given["output_gate"],
            given["log_decay"],
            *learned.values(),
        )
    ):
        return None
    found = loops_for(state.key, state.value, state.moments, state.mass, state.decayed_count, state.reference)
    return found if given["query"].device == state.key.device else None


def _token(given: dict[str, Any], state: AttentionState) -> Token | None:
    """The new token; None where the state is of another kind, or of sequences that have no key yet."""
    query, key, value, spec = (given[name] for name in ("query", "key", "value", "spec"))
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    batch, kv_heads, _, d = state.key.shape
    heads, e = query.shape[2], state.value.shape[3]
    default = spec.kernel.default_scale(d)
    scale, slot_scale = (given["scale"],) * 2 if given["scale"] is not None else (default, d**-0.5 if spec.local else default)
    if (
        state.spec != spec or (state.scale, state.slot_scale) != (scale, slot_scale) or state.key.dtype != dtype
        or key.shape != (batch, 1, kv_heads, d) or value.shape[3] != e or bool((state.count == 0).any())
    ):  # fmt: skip
        return None
    value = value[:, 0].to(dtype)
    gate = _input_gate(given, state, dtype)
    decay = given["log_decay"]
    if decay is not None:
        if bool((decay > 0).any()):
            return None
        decay = decay[:, 0].double().clamp(min=FORGOTTEN)
    running = None
    if state.running_total is not None:
        running = torch.logaddexp(state.running_total, given["parameters"]["running_gate_score"][:, 0].to(dtype))
    output_gate = given["output_gate"]
    return Token(
        query=query[:, 0].to(dtype).reshape(batch, kv_heads, heads // kv_heads, d),
        key=key[:, 0].to(dtype),
        value=value if gate is None else value * gate[..., None],
        log_decay=decay,
        running=running,
        output_gate=None if output_gate is None else output_gate[:, 0].to(dtype).reshape(batch, kv_heads, -1, 1),
    )


def _input_gate(given: dict[str, Any], state: AttentionState, dtype: torch.dtype) -> Tensor | None:
    """(B or 1, G)."""
    if state.spec.input_gate == "count":
        exponent = torch.sigmoid(given["parameters"]["count_exponent"].to(dtype))
        return (state.count + 1)[:, None].to(dtype) ** -exponent
    return None if given["input_gate"] is None else given["input_gate"][:, 0].to(dtype)


def _with_room(state: AttentionState) -> AttentionState:
    """The state with a place for one more key; room for as many as a buffer ever holds."""
    sinks = state.spec.local.sinks if state.spec.local else 0
    room = roomy(state, max(num_recent(state.spec) + sinks + RESERVE + FOLD - 2, state.key.shape[2] + 1))
    if room is state.room:
        return state
    length = room.used
    return dataclasses.replace(state, room=room, key=room.key[:, :, :length], value=room.value[:, :, :length])


def _log_decay(state: AttentionState, token: Token) -> Tensor | None:
    """(B, G, L) float64: log decay from each buffered key to the new token; None without decay."""
    if token.log_decay is None:
        return state.age
    return state.with_decay().age + token.log_decay[..., None]


def _sums(loops: Loops, state: AttentionState, token: Token, log_decay: Tensor | None) -> Weighing:
    spec, (batch, kv_heads, group, d) = state.spec, token.query.shape
    tables, heads = tables_of(spec, d, state.key.dtype), batch * kv_heads
    weighted = state.value.new_empty(heads, group, state.value.shape[3])
    mass, count, peak = state.value.new_empty(3, heads, group, 1).unbind(0)
    decays = _decays(state, token, log_decay, heads)
    loops.step(
        *_queries_and_keys(state, token, heads), state.key.shape[2], _array(state.rank), _array(state.count), *decays,
        *_folded(state, heads), tables.starts, tables.offsets, tables.widths, tables.multiplicities, tables.coefficients,
        tables.binomials, np.array((state.scale, state.slot_scale)), spec.local.window if spec.local else 0,
        spec.local.sinks if spec.local else 0, spec.has_tail and spec.kernel.is_centered, spec.has_tail,
        *(t.numpy() for t in (weighted, mass[..., 0], count[..., 0], peak[..., 0])),
    )  # fmt: skip
    weighted, mass, count, peak = (
        t.view(batch, kv_heads, group, 1, t.shape[-1]) for t in (weighted, mass, count, peak)
    )
    has_slots = spec.local is not None
    return Weighing(weighted, mass, count if spec.has_tail else None, peak if has_slots else None)


def _queries_and_keys(state: AttentionState, token: Token, heads: int) -> list[np.ndarray]:
    """What the kernel's polynomial takes, and beside it the same unmapped for exact slots."""
    d, e = state.key.shape[3], state.value.shape[3]
    slot_query, slot_new_key = _array(token.query).reshape(heads, -1, d), _array(token.key).reshape(heads, d)
    slot_key, value = (_places(state, name).reshape(heads, -1, width) for name, width in (("key", d), ("value", e)))
    query, key, new_key = slot_query, slot_key, slot_new_key
    if state.spec.kernel.maps_keys:
        mapped = (state.spec.kernel.map(t) for t in (token.query, state.key, token.key))
        query, key, new_key = (_array(t).reshape(old.shape[0], *t.shape[2:]) for old, t in zip((query, key, new_key), mapped, strict=True))
    return [query, slot_query, key, slot_key, value, new_key, slot_new_key, _array(token.value).reshape(heads, e)]


def _places(state: AttentionState, name: str) -> np.ndarray:
    """Keys or values of the buffer, with the free places of their room where they stand in one."""
    tensor = getattr(state, name)
    room = state.room
    return _array(getattr(room, name) if room is not None and room.owns(tensor) else tensor)


def _decays(state: AttentionState, token: Token, log_decay: Tensor | None, heads: int) -> tuple[np.ndarray, np.ndarray]:
    """Log decay to the new token from each buffered key (heads, L or 0) and from the last folded one (heads,)."""
    if log_decay is None:
        return np.empty((heads, 0)), np.zeros(heads)
    fold_age = state.with_decay().fold_age
    assert fold_age is not None
    fold_age = fold_age if token.log_decay is None else fold_age + token.log_decay
    return _array(log_decay).reshape(heads, -1), _array(fold_age).reshape(heads)


def _folded(state: AttentionState, heads: int) -> list[np.ndarray]:
    """Moments, mass, decayed count, reference key, and whether each sequence has any; empty where not kept."""
    arrays = []
    for tensor, axes in ((state.moments, 2), (state.mass, 1), (state.decayed_count, 0), (state.reference, 1)):
        if tensor is None:
            arrays.append(np.empty((heads, *(0,) * axes), dtype=_array(state.decayed_count).dtype))
        else:
            arrays.append(_array(tensor).reshape(heads, *tensor.shape[2:]))
    return [*arrays, _array(state.boundary) > 0]


def _array(tensor: Tensor) -> np.ndarray:
    """The same memory; a copy where it has gaps."""
    return tensor.detach().contiguous().numpy()


def _extended(state: AttentionState, token: Token, log_decay: Tensor | None) -> AttentionState:
    """The state with the token in its buffer, folded where that is due."""
    assert state.room is not None
    key, value = append(state.room, token.key[:, :, None], token.value[:, :, None])
    changed: dict[str, Any] = {"key": key, "value": value, "count": state.count + 1}
    changed["rank"] = torch.cat([state.rank, state.count[:, None].expand(state.rank.shape[0], 1)], dim=1)
    if log_decay is not None:
        before = state.with_decay()
        assert before.fold_age is not None and before.total_log_decay is not None
        step = torch.zeros_like(before.fold_age) if token.log_decay is None else token.log_decay
        changed["age"] = torch.cat([log_decay, torch.zeros_like(log_decay[..., :1])], dim=2)
        changed["fold_age"], changed["total_log_decay"] = before.fold_age + step, before.total_log_decay + step
    if token.running is not None and state.running_gate is not None:
        changed["running_gate"] = torch.cat([state.running_gate, token.running[..., None]], dim=2)
        changed["running_total"] = token.running
    extended = dataclasses.replace(state, **changed)
    target = fold_target(extended)
    return fold(extended, target) if bool((target > extended.boundary).any()) else extended
