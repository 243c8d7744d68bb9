"""Every layer's attention computed by a function of ours, in transformers' own model.

Axes: B sequences, T queries, S keys, H query heads, G kv heads, d key width, e value width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from termwise.analysis.pretrained import Pretrained

NAME = "termwise"

# (layer, query (B,T,H,d), key (B,S,G,d), value (B,S,G,e), scale) -> (B,T,H,e), or None for the model's own attention
Compute = Callable[[int, Tensor, Tensor, Tensor, float], Tensor | None]


@contextmanager
def replaced(pretrained: Pretrained, compute: Compute) -> Iterator[None]:
    """Inside, each layer's attention is `compute(layer, query, key, value, scale)`; where that is None, the model's own.

    Queries and keys come after rotary and norms; heads are grouped (query heads 0..H/G-1 share kv head 0). The last query
    belongs to the last key. `pretrained.is_causal` says which keys a query may see, all of them or none later than itself:
    batches with padding, packed sequences and more keys than a sliding window are a ValueError. May be nested; the innermost counts.
    """
    _register()
    model, modules = pretrained.model, pretrained.attentions
    before = model.config._attn_implementation, [getattr(module, "termwise_replacement", None) for module in modules]
    model.set_attn_implementation(NAME)
    try:
        for layer, module in enumerate(modules):
            module.termwise_replacement = _Replacement(compute, layer, pretrained)
        yield
    finally:
        model.set_attn_implementation(before[0])
        for module, found in zip(modules, before[1], strict=True):
            module.termwise_replacement = found


class _Replacement:
    """What one attention module calls; plain data, so that copies of the model keep it."""

    def __init__(self, compute: Compute, layer: int, pretrained: Pretrained) -> None:
        self.compute, self.layer = compute, layer
        self.is_causal, self.window = pretrained.is_causal, pretrained.window


def _register() -> None:
    """Both interfaces know the name: without a mask function of the same name, transformers hands over no mask at all."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float, **others: Any
) -> tuple[Tensor, None]:
    """transformers' side: heads before tokens, keys grouped, the mask (B, 1, T, S) of booleans or None."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    own = module.termwise_replacement
    _check_mask(attention_mask, query.shape[2], key.shape[2], own)
    found = own.compute(own.layer, query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), scaling)
    if found is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    expected = (query.shape[0], query.shape[2], query.shape[1], value.shape[3])
    if tuple(found.shape) != expected:
        raise ValueError(f"layer {own.layer}: the replacement gave {tuple(found.shape)}; {expected} is expected")
    return found, None


def _check_mask(mask: Tensor | None, num_queries: int, num_keys: int, own: _Replacement) -> None:
    """ValueError unless each query sees every key, or every key not later than itself: all that `compute` can know."""
    if own.window is not None and num_keys > own.window:
        raise ValueError(
            f"{num_keys} keys, but layers of this model see the last {own.window} only; give shorter texts"
        )
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise ValueError(
            f"an attention mask of {mask.dtype}; replaced attention takes texts of equal length without a mask"
        )
    plain = torch.ones(num_queries, num_keys, dtype=torch.bool, device=mask.device)
    if own.is_causal:
        plain = plain.tril(num_keys - num_queries)
    if not bool((mask == plain).all()):
        raise ValueError("a batch with padding or packed sequences; replaced attention takes texts of equal length")
