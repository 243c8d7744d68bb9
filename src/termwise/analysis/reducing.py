"""A model with some of its attention reduced to a spec: all heads of all layers, one layer, or one kv head.

Axes: B sequences, T queries, S keys, H query heads, G kv heads, d key width, e value width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from termwise.analysis.replacing import Compute
from termwise.attention.forms import attend
from termwise.attention.kernels import Polynomial
from termwise.attention.spec import AttentionSpec, Local


def truncation(top_order: int, center: str, local: Local | None) -> AttentionSpec:
    """Orders 0..top_order around a center. Odd ones take negative values, and are allowed to: what they do is the question here.

    >>> truncation(2, "mean", Local(64, 4)).short_name, truncation(3, "zero", None).short_name
    ('taylor:0..2@mean+w64s4', 'taylor:0..3!')
    """
    kernel = Polynomial(tuple(range(top_order + 1)), center=center, allow_negative=top_order % 2 == 1)
    return AttentionSpec(kernel, local=local)


def reduced_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, spec: AttentionSpec, *, is_causal: bool
) -> Tensor:
    """(B, T, H, e): attention of a spec, one kv head at a time so that memory is bounded by its scores."""
    groups = key.shape[2]
    parts = [
        attend(q, k, v, spec, scale, causal=is_causal, form="parallel")[0]
        for q, k, v in zip(
            query.chunk(groups, dim=2), key.chunk(groups, dim=2), value.chunk(groups, dim=2), strict=True
        )
    ]
    return torch.cat(parts, dim=2)


def exact_attention(query: Tensor, key: Tensor, value: Tensor, scale: float, *, is_causal: bool) -> Tensor:
    """(B, T, H, e): softmax attention, fused."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale, enable_gqa=True).transpose(1, 2)


def everything(spec: AttentionSpec, *, is_causal: bool) -> Compute:
    """Every head of every layer by the spec."""
    return lambda _layer, q, k, v, scale: reduced_attention(q, k, v, scale, spec, is_causal=is_causal)


def one_place(spec: AttentionSpec, layer: int, kv_head: int | None, *, is_causal: bool) -> Compute:
    """One kv head of one layer by the spec (None: the whole layer), everything else as it is."""

    def compute(at: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor | None:
        if at != layer:
            return None
        if kv_head is None:
            return reduced_attention(query, key, value, scale, spec, is_causal=is_causal)
        out = exact_attention(query, key, value, scale, is_causal=is_causal)
        shared = query.shape[2] // key.shape[2]
        heads, one = slice(kv_head * shared, (kv_head + 1) * shared), slice(kv_head, kv_head + 1)
        part = reduced_attention(query[:, :, heads], key[:, :, one], value[:, :, one], scale, spec, is_causal=is_causal)
        return torch.cat([out[:, :, : heads.start], part, out[:, :, heads.stop :]], dim=2)

    return compute
