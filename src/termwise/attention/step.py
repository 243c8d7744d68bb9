"""One token against a state, without the general engine's preparations: what a model does at every token it writes.

Anything out of the ordinary (gradients, padding, several kinds of numbers) is left to the general engine.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from termwise.attention.compiled_step import step_compiled
from termwise.attention.evicting_step import step_evicting
from termwise.attention.fused import step_fused
from termwise.attention.safe import is_transformed
from termwise.attention.state import AttentionState

# What has to be looked at anew in every call.
_LOOKED_AT = (
    "key_mask", "query_mask", "cu_seqlens", "row_counts", "input_gate", "output_gate", "log_decay", "chunk_size",
)  # fmt: skip


def repeat_step(given: dict[str, Any]) -> tuple[Tensor, AttentionState | None] | None:
    """Arguments of `attend` that need no check, since they are like those of the step that made their state; else None."""
    state = given["initial_state"]
    if not isinstance(state, AttentionState) or state.room is None or state.room.known is None:
        return None
    if torch.is_grad_enabled() or state.room.known != _kind(given, state) or is_transformed():
        return None
    return step_compiled(given, state)


def attend_step(given: dict[str, Any]) -> tuple[Tensor, AttentionState | None] | None:
    """Checked arguments of `attend` -> its result, or None where the general engine has to do it."""
    state: AttentionState = given["initial_state"]
    if not _is_plain(given, state):
        return None
    if state.spec.evicts:
        return step_evicting(given, state) if state.key.device.type == "cpu" else None
    if state.spec.is_constant_size:
        done = step_compiled(given, state) if state.key.device.type == "cpu" else None
        if done is not None and done[1] is not None and done[1].room is not None:
            done[1].room.known = _kind(given, state)
        return done
    has_decay = given["log_decay"] is not None or state.age is not None
    return step_fused(given, state) if state.spec.is_softmax_shaped and not has_decay else None


def _kind(given: dict[str, Any], state: AttentionState) -> tuple[Any, ...] | None:
    """What steps have in common that are checked alike; None for one that is looked at anew."""
    if any(given[name] is not None for name in _LOOKED_AT):
        return None
    tensors = (given["query"], given["key"], given["value"])
    parameters = given["parameters"]
    if parameters:
        tensors += tuple(parameters.values())
    return (
        given["spec"], given["scale"], given["form"], given["causal"], parameters and tuple(parameters), state.spec, state.scale,
        state.slot_scale, state.has_moments, state.count.shape, state.boundary.shape, *state.key.shape[:2],
        *[(t.shape, t.dtype, t.device) if isinstance(t, Tensor) else None for t in tensors],
    )  # fmt: skip


def _is_plain(given: dict[str, Any], state: AttentionState) -> bool:
    """Whether nothing is out of the ordinary. What is wrong with a call is for the general engine to say."""
    spec, query, key, value = given["spec"], given["query"], given["key"], given["value"]
    if (
        given["form"] not in ("auto", "recurrent")
        or not given["causal"]
        or given["row_counts"] is not None
        or not (state.spec is spec or state.spec == spec)
        or (spec.has_tail and not state.has_moments)
        or (query.dtype == torch.float64) != (state.key.dtype == torch.float64)
        or not 0 < key.shape[0] == state.key.shape[0]
        or key.shape[1:3] != (1, state.key.shape[1])
        or (key.shape[3], value.shape[3]) != (state.key.shape[3], state.value.shape[3])
        or not _same_scales(given["scale"], state)
    ):
        return False
    optional = [given[name] for name in ("input_gate", "output_gate", "log_decay")]
    optional += (given["parameters"] or {}).values()
    tensors = [query, key, value, *(t for t in optional if t is not None)]
    if any(t.device != state.key.device for t in tensors):
        return False
    by_sequence = (state.count, state.boundary, state.given_rank if spec.evicts else state.rank)
    if len({t.shape[0] for t in by_sequence if t is not None}) > 1 or is_transformed():
        return False
    if torch.is_grad_enabled() and any(t.requires_grad for t in (*tensors, *state.tensors.values())):
        return False
    if any(given[name] is not None and not bool(given[name].all()) for name in ("key_mask", "query_mask")):
        return False
    # A decay above 0 is an error, which the general engine words.
    return given["log_decay"] is None or not bool((given["log_decay"] > 0).any())


def _same_scales(scale: float | None, state: AttentionState) -> bool:
    if scale is not None:
        return state.scale == scale == state.slot_scale
    d, default = state.key.shape[3], state.spec.kernel.default_scale(state.key.shape[3])
    return state.scale == default and state.slot_scale == (d**-0.5 if state.spec.local else default)
