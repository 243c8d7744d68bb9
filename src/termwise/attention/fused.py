"""Where every weight is an exponential: torch's fused attention, then the norm (math: section 4.1).

Masked keys and values are already zero (NaN there would poison rows); fully masked rows are made harmless before and zero after.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from termwise.attention.call import Call
from termwise.attention.folding import extend, fold, fold_target
from termwise.attention.reading import Weighing, finish
from termwise.attention.state import AttentionState


def attend_fused(call: Call) -> tuple[Tensor, AttentionState | None]:
    extended = extend(call.state, call.keys, call.reference)
    queries = call.queries
    if not call.causal:
        queries = dataclasses.replace(queries, rank=(extended.count - 1)[:, None].expand(-1, call.num_queries))
    group = queries.query.shape[2]
    mask, is_causal = _mask(call, extended, queries.rank)
    query = queries.query.flatten(1, 2)
    out = scaled_dot_product_attention(
        query.to(call.dtype), extended.key.to(call.dtype), extended.value.to(call.dtype),
        attn_mask=mask, is_causal=is_causal, scale=call.state.slot_scale, enable_gqa=group > 1,
    )  # fmt: skip
    out = out.unflatten(1, (extended.key.shape[1], group)).to(queries.query.dtype)
    is_row = (queries.rank >= 0) if queries.is_real is None else (queries.rank >= 0) & queries.is_real
    sums = Weighing(out, torch.ones_like(out[..., :1]), None, None)
    out = finish(call.spec, sums, queries, is_row, call.parameters, call.row_counts, None)
    return out, (fold(extended, fold_target(extended)) if call.output_final_state else None)


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
