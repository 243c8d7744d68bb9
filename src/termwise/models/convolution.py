"""Short causal convolution over real tokens, with a decode state that can be rolled back.

Shapes: B batch, T tokens, C channels, K taps.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from termwise.models.layout import Layout

ROLLBACK = 64  # tokens that can be taken back while the past is recorded


class ShortConvolution(nn.Module):
    """y_t = sum_{j<K} w_j x_{t-j} a channel, then an activation; x before the document's first token is zero.

    Source: Gu and Dao 2023 (Mamba), section 3.4. Weight (C, K), its last column for the current token.
    """

    def __init__(self, channels: int, size: int, activation: str | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, size))
        self.activation = activation

    def forward(
        self, x: Float[Tensor, "B T C"], layout: Layout, past: Float[Tensor, "B W C"] | None
    ) -> Float[Tensor, "B T C"]:
        """`past` holds the W >= K - 1 inputs before x."""
        size, length = self.weight.shape[1], x.shape[1]
        weight = self.weight.to(x.dtype)
        before = (
            F.pad(x, (0, 0, size - 1, 0))
            if past is None
            else torch.cat([past[:, past.shape[1] - size + 1 :].to(x.dtype), x], dim=1)
        )
        y = x * weight[:, -1]
        for j in range(1, size):
            earlier = before[:, size - 1 - j : size - 1 - j + length]
            if layout.place is not None:
                earlier = earlier.masked_fill((layout.place < j)[None, :, None], 0)
            y = torch.addcmul(y, earlier, weight[:, -1 - j])
        return F.silu(y) if self.activation == "silu" else y


def next_past(
    x: Float[Tensor, "B T C"], layout: Layout, past: Float[Tensor, "B W C"] | None, size: int, is_recording: bool
) -> Float[Tensor, "N V C"]:
    """The last inputs of each sequence, at least `size` - 1, the most recent one last; packed: a row a document."""
    width = size - 1
    if layout.cu_seqlens is not None:
        bounds = layout.cu_seqlens.long().to(x.device)
        index = bounds[1:, None] + torch.arange(-width, 0, device=x.device)
        is_inside = index >= bounds[:-1, None]
        return x[0][index.clamp(min=0)].masked_fill(~is_inside[..., None], 0)
    if past is None:
        past = x.new_zeros(x.shape[0], width, x.shape[2])
    joined = torch.cat([past.to(x.dtype), x], dim=1)
    if layout.counts is None:
        return joined[:, max(joined.shape[1] - width - (ROLLBACK if is_recording else 0), 0) :].contiguous()
    # Real tokens come first, so those of sequence b end at its own count.
    index = layout.counts[:, None] + torch.arange(past.shape[1], device=x.device)
    return joined.gather(1, index[..., None].expand(-1, -1, x.shape[2]))
