"""Rotary positions of every type, from transformers' own table of frequencies.

Shapes: B batch, T tokens, H heads, d head width. Angles are computed in float32 whatever the model's type is, so that
positions above 256 survive in bfloat16.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from termwise.models.config import TermwiseConfig
from termwise.models.layout import Layout

Rotation = tuple[Float[Tensor, "B T 1 d/2"], Float[Tensor, "B T 1 d/2"]]

# Their frequencies depend on the length of the sequence.
LENGTH_DEPENDENT = ("dynamic", "longrope")


def rotate(x: Float[Tensor, "B T H d"], rotation: Rotation) -> Float[Tensor, "B T H d"]:
    """x turned by its position: pairs are (x_i, x_{i+d/2})."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class Rotary:
    """Cosines and sines for a layout. Holds no parameter and no buffer: a cast of the model must not round frequencies."""

    def __init__(self, config: TermwiseConfig) -> None:
        self.config = config
        self.type = (config.rope_parameters or {}).get("rope_type", "default")
        self._frequencies: dict[tuple[torch.device, int], tuple[Tensor, float]] = {}

    def __call__(self, layout: Layout, dtype: torch.dtype) -> Rotation:
        """cos and sin, (B or 1, T, 1, d/2) each."""
        frequencies, factor = self._for_layout(layout)
        angles = (layout.positions[..., None].float() * frequencies).unsqueeze(2)
        return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)

    def check_continues(self, past: int, total: int) -> None:
        """Refuse a cached call whose earlier keys were turned by other frequencies than the whole sequence asks for."""
        limit = self._limit
        crosses = total > limit and (self.type == "dynamic" or past <= limit)
        if self.type in LENGTH_DEPENDENT and past > 0 and crosses:
            raise ValueError(
                f"rope type {self.type!r} changes its frequencies beyond {limit} positions, so cached keys are stale at {total}; "
                "cached decoding past that length is not supported: call with use_cache=False, or use rope type yarn, linear or llama3"
            )

    @property
    def _limit(self) -> int:
        rope = self.config.rope_parameters or {}
        return (
            rope["original_max_position_embeddings"] if self.type == "longrope" else self.config.max_position_embeddings
        )

    def _for_layout(self, layout: Layout) -> tuple[Tensor, float]:
        device = layout.positions.device
        if self.type not in LENGTH_DEPENDENT:
            return self._of_length(device, 0)
        found = [self._of_length(device, max(n, self._limit)) for n in layout.lengths.tolist()]
        rows = torch.stack([frequencies for frequencies, _ in found])
        return (rows[layout.document] if layout.document is not None else rows[:, None]), found[0][1]

    def _of_length(self, device: torch.device, length: int) -> tuple[Tensor, float]:
        if self.type == "longrope":  # only two sets: within and beyond the original length
            length = min(length, self._limit + 1)
        if (device, length) not in self._frequencies:
            if len(self._frequencies) > 64:
                self._frequencies.clear()
            self._frequencies[device, length] = self._compute(device, length)
        return self._frequencies[device, length]

    def _compute(self, device: torch.device, length: int) -> tuple[Tensor, float]:
        if self.type != "default":
            return ROPE_INIT_FUNCTIONS[self.type](self.config, device, seq_len=length or None)
        width = self.config.head_dim
        theta = (self.config.rope_parameters or {}).get("rope_theta", 10_000.0)
        exponents = torch.arange(0, width, 2, dtype=torch.float32, device=device) / width
        return 1.0 / theta**exponents, 1.0
