"""What everything is compared with: torch's fused attention over a key/value cache that is allocated once and written in place."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from termwise.bench.inputs import Shape


class FusedAttention:
    """softmax(q k / sqrt(d)) v with a cache of `capacity` tokens, (B, G, capacity, d) and (B, G, capacity, e).

    A prompt runs under torch's own causal mask; query heads that share a kv head go through `enable_gqa`. A single token
    needs no mask: the query heads of a group stand as rows over one kv head, so that nothing is repeated.
    """

    def __init__(self, shape: Shape, capacity: int) -> None:
        sizes = (shape.batch, shape.kv_heads, capacity)
        self._group = shape.heads // shape.kv_heads
        self.key = torch.zeros(*sizes, shape.key_width, dtype=shape.dtype, device=shape.device)
        self.value = torch.zeros(*sizes, shape.value_width, dtype=shape.dtype, device=shape.device)

    @property
    def nbytes(self) -> int:
        """Bytes of the cache."""
        return sum(t.numel() * t.element_size() for t in (self.key, self.value))

    def fill(self, key: Tensor, value: Tensor, start: int) -> int:
        """Write keys and values (B, T, G, .) at `start`; where they end."""
        stop = start + key.shape[1]
        self.key[:, :, start:stop] = key.transpose(1, 2)
        self.value[:, :, start:stop] = value.transpose(1, 2)
        return stop

    def prefill(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Outputs (B, H, T, e) of a prompt."""
        stop = self.fill(key, value, 0)
        return scaled_dot_product_attention(
            query.transpose(1, 2), self.key[:, :, :stop], self.value[:, :, :stop], is_causal=True,
            enable_gqa=self._group > 1,
        )  # fmt: skip

    def step(self, query: Tensor, key: Tensor, value: Tensor, start: int) -> Tensor:
        """Outputs (B, G, H / G, e) of one token after `start` earlier ones."""
        stop = self.fill(key, value, start)
        rows = query[:, 0].unflatten(1, (-1, self._group))
        return scaled_dot_product_attention(rows, self.key[:, :, :stop], self.value[:, :, :stop])


def fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Outputs (B, H, T, e) without a cache: the forward pass of training."""
    query, key, value = (t.transpose(1, 2) for t in (query, key, value))
    return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=key.shape[1] != query.shape[1])
