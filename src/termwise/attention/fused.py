"""Where every weight is an exponential: torch's fused attention, then the norm (math: section 4.1).

Masked keys and values are already zero (NaN there would poison rows); fully masked rows are made harmless before and zero after.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from termwise.attention.call import Call, grouped_parameters
from termwise.attention.folding import extend, fold, fold_target
from termwise.attention.growth import replaced, room_behind
from termwise.attention.normalizers import RowSum
from termwise.attention.reading import Queries, Weighing, finish
from termwise.attention.safe import in_type
from termwise.attention.state import FOLD, AttentionState


def attend_fused(call: Call) -> tuple[Tensor, AttentionState | None]:
    extended = extend(call.state, call.keys, call.reference)
    queries = call.queries
    if not call.causal:
        queries = dataclasses.replace(queries, rank=(extended.count - 1)[:, None].expand(-1, call.num_queries))
    group = queries.query.shape[2]
    mask, is_causal = _mask(call, extended, queries.rank)
    query = queries.query.flatten(1, 2)
    with torch.autocast(query.device.type, enabled=False):
        out = scaled_dot_product_attention(
            query.to(call.dtype), extended.key.to(call.dtype), extended.value.to(call.dtype),
            attn_mask=mask, is_causal=is_causal, scale=call.state.slot_scale, enable_gqa=group > 1,
        )  # fmt: skip
    out = out.unflatten(1, (extended.key.shape[1], group)).to(queries.query.dtype)
    is_row = (queries.rank >= 0) if queries.is_real is None else (queries.rank >= 0) & queries.is_real
    sums = Weighing(out, torch.ones_like(out[..., :1]), None, None)
    out = finish(call.spec, sums, queries, is_row, call.parameters, call.row_counts, None)
    return out, (fold(extended, fold_target(extended)) if call.output_final_state else None)


def step_fused(given: dict[str, Any], state: AttentionState) -> tuple[Tensor, AttentionState | None] | None:
    """A plain step (see step.py) against a cache whose every key is seen; None where the general engine has to do it."""
    length, spec = state.key.shape[2], state.spec
    # Without a state to hand back, a place would be taken in vain.
    if (
        spec.local is not None
        or spec.input_gate == "count"
        or not given["output_final_state"]
        or bool((state.count != length).any())
        or length == 0
    ):
        return None
    query, value, gate = given["query"], in_type(given["value"], state.key.dtype), given["input_gate"]
    if gate is not None:
        value = value * in_type(gate, value.dtype)[..., None]
    room = room_behind(state, length + max(FOLD, length // 4))
    room.put(length, in_type(given["key"], value.dtype).transpose(1, 2), value.transpose(1, 2), state.count[:, None])
    after = replaced(state, room=room, count=state.count + 1, **room.upto(length + 1))
    with torch.autocast(query.device.type, enabled=False):
        out = scaled_dot_product_attention(
            query.transpose(1, 2), in_type(after.key, query.dtype), in_type(after.value, query.dtype), scale=state.slot_scale,
            enable_gqa=query.shape[2] > state.key.shape[1],
        )  # fmt: skip
    if isinstance(spec.normalizer, RowSum) and given["output_gate"] is None:
        return out.transpose(1, 2), after
    batch, _, heads, _ = query.shape
    grouped = in_type(out, state.key.dtype).view(batch, state.key.shape[1], -1, 1, out.shape[3])
    output_gate = given["output_gate"]
    if output_gate is not None:
        output_gate = in_type(output_gate[:, 0], state.key.dtype).view(batch, state.key.shape[1], -1, 1)
    queries = Queries(grouped, state.count[:, None], None, output_gate, None)
    sums = Weighing(grouped, torch.ones_like(grouped[..., :1]), None, None)
    parameters = grouped_parameters(given["parameters"] or {}, state.key.shape[1], state.key.dtype)
    is_row = torch.ones_like(state.count[:, None], dtype=torch.bool)
    finished = finish(spec, sums, queries, is_row, parameters, None, None)
    return in_type(finished.view(batch, 1, heads, -1), query.dtype), after


def _mask(call: Call, extended: AttentionState, query_rank: Tensor) -> tuple[Tensor | None, bool]:
    """(mask (B or 1, 1, T, L) or None, whether torch's own causal mask serves)."""
    is_padded = bool((extended.rank < 0).any())
    local = call.spec.local
    if not is_padded and local is None:
        if not call.causal or call.num_queries == 1:
            return None, False
        if extended.key.shape[2] == call.num_queries:
            return None, True
    key_rank, ranks = extended.rank[:, None, :], query_rank[:, :, None]
    visible = (key_rank >= 0) & (key_rank <= ranks)
    if local is not None:
        visible = visible & ((ranks - key_rank < local.window) | (key_rank < local.sinks))
    visible = visible | ~visible.any(dim=-1, keepdim=True)
    return visible[:, None], False
