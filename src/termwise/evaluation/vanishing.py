"""Rows whose sum of weights nearly cancels: narrow precision cannot promise their digits, so they are left out, and counted.

Axes: T queries and keys of one sequence, G kv heads, R query heads a kv head.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from termwise.attention.forms import attend
from termwise.attention.normalizers import RowSum

LEAST_SHARE = 1e-2  # of the weights' sizes that their sum must keep


def may_cancel(spec: Any) -> bool:
    """Whether weights of both signs share a row sum."""
    return isinstance(spec.normalizer, RowSum) and getattr(spec.kernel, "allow_negative", False)


def left_out(model: Any, ids: Tensor) -> Bool[Tensor, "T P"]:
    """Rows of a sequence that a cancelling row sum reaches: that row of its layer, and every later row of later layers."""
    cancels: dict[int, Tensor] = {}

    def by(layer: int) -> Any:
        def run(query: Tensor, key: Tensor, value: Tensor, spec: Any, **given: Any) -> Any:
            if may_cancel(spec):
                kept = kept_share(query[0], key[0], spec, given.get("log_decay")) < LEAST_SHARE
                rows = kept.any(dim=1)
                cancels[layer] = rows | cancels.get(layer, torch.zeros_like(rows))
            return attend(query, key, value, spec, **given, form="parallel")

        return run

    with torch.no_grad(), model.attending(by):
        model(ids, use_cache=False)
    reached = torch.zeros(ids.shape[1], dtype=torch.bool)
    columns = []
    for layer in range(model.config.num_hidden_layers):
        own = cancels.get(layer, torch.zeros_like(reached)).cpu()
        columns.append(reached | own)
        reached = reached | (own.to(torch.int64).cumsum(0) > 0)
    return torch.stack([*columns, reached], dim=1)


def kept_share(
    query: Float[Tensor, "T H d"], key: Float[Tensor, "T G d"], spec: Any, log_decay: Tensor | None
) -> Float[Tensor, "T H"]:
    """|sum of weights| over the sum of their sizes, for every query of a causal sequence, in float64."""
    length, kv_heads, d = key.shape
    grouped = query.double().unflatten(1, (kv_heads, -1))
    kernel, wide = spec.kernel, key.double()
    products = torch.einsum("tgrd,sgd->grts", kernel.map(grouped), kernel.map(wide)) * kernel.default_scale(d)
    place = torch.arange(length, device=key.device)
    apart = place[:, None] - place[None]
    visible = apart >= 0
    near = torch.zeros_like(visible)
    if spec.local is not None:
        near = visible & ((apart < spec.local.window) | (place < spec.local.sinks)[None])
    decay = torch.zeros(kv_heads, 1, length, length, dtype=torch.float64, device=key.device)
    if log_decay is not None:
        total = log_decay[0].double().cumsum(dim=0).T
        decay = (total[:, :, None] - total[:, None, :])[:, None]
    decay = decay.masked_fill(~visible, -torch.inf).exp()
    far = decay * (~near)
    middle = torch.zeros_like(products[..., :1])
    if kernel.is_centered:
        middle = (far * products).sum(dim=-1, keepdim=True) / far.sum(dim=-1, keepdim=True).clamp(min=1e-300)
    weights = far * kernel.weights(products - middle)
    if spec.local is not None:
        slots = torch.einsum("tgrd,sgd->grts", grouped, wide) * d**-0.5
        peak = slots.masked_fill(~near, -torch.inf).amax(dim=-1, keepdim=True).maximum(middle)
        weights = weights * (middle - peak).exp() + torch.where(near, decay * (slots - peak).exp(), 0.0)
    share = weights.sum(dim=-1).abs() / weights.abs().sum(dim=-1).clamp(min=1e-300)
    return share.permute(2, 0, 1).flatten(1)
