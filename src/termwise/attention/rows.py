"""Counts of bad rows: row sums that vanish (moved away from zero) or turn negative (used as they are)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class RowCounts:
    """Running totals per query head, filled by `attend(..., row_counts=...)`; each tensor is (H,) int64.

    `vanishing`: |Z| < 1e-6 of the decayed count; `negative`: Z < 0. Rows without any visible key are not counted.
    """

    rows: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    vanishing: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    negative: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))

    def add(self, is_row: Tensor, is_vanishing: Tensor, is_negative: Tensor) -> None:
        """Masks of shape (B, H, T)."""
        masks = is_row, is_vanishing & is_row, is_negative & is_row
        self.include(RowCounts(*(mask.sum(dim=(0, 2)).cpu() for mask in masks)))

    def include(self, other: RowCounts) -> None:
        """Adds the totals of another count."""
        for name in ("rows", "vanishing", "negative"):
            before, more = getattr(self, name), getattr(other, name)
            setattr(self, name, before + more if before.numel() else more)
