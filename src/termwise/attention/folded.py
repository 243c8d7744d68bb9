"""The folded part of a state as a block of queries reads it: one product with the moments.

Axes: B batch, G kv heads, R query heads per kv head, T queries, F features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from termwise.attention.backends import Loops, loops_for
from termwise.attention.backends.gradients import reading
from termwise.attention.backends.products import shared_coefficients
from termwise.attention.backends.tables import tables_of
from termwise.attention.folding import keys_at_a_time
from termwise.attention.monomials import features, multiplicities, recentred
from termwise.attention.state import AttentionState

if TYPE_CHECKING:
    from termwise.attention.reading import Queries


@dataclass(frozen=True)
class Folded:
    """The folded part of a state as one block of queries sees it. Scores are y = q'.(k' - r) + q'.r."""

    state: AttentionState
    query: Tensor  # (B, G, R, T, d) mapped, scaled by sqrt(scale)
    decay: Tensor  # (B, G, 1, T or 1, 1) from the anchor to the query
    offset: Tensor | None  # q'.r (B, G, R, T, 1)

    @classmethod
    def of(cls, state: AttentionState, queries: Queries) -> Folded | None:
        if not bool((state.boundary > 0).any()):
            return None
        query = state.spec.kernel.map(queries.query) * state.scale**0.5
        decay = torch.ones_like(query[:, :, :1, :1, :1])
        if state.fold_age is not None and queries.age is not None:
            decay = (state.fold_age[..., None] - queries.age).clamp(max=0).exp().to(query.dtype)[:, :, None, :, None]
        offset = None if state.reference is None else torch.einsum("bgrtd,bgd->bgrt", query, state.reference)[..., None]
        return cls(state, query, decay, offset)

    @property
    def count(self) -> Tensor:
        return self.state.decayed_count[:, :, None, None, None] * self.decay

    @property
    def total_score(self) -> Tensor:
        """Decayed sum of the scores of the folded keys."""
        assert self.state.mass is not None and self.offset is not None
        first = self.state.mass[..., 1 : 1 + self.query.shape[-1]]
        return torch.einsum("bgrtd,bgd->bgrt", self.query, first)[..., None] * self.decay + self.count * self.offset

    def read(self, center: Tensor | None) -> tuple[Tensor, Tensor]:
        """U and Z of the folded keys."""
        loops = loops_for(self.query, self.state.moments, self.state.mass, self.offset, center)
        weighted, mass = self._read_in_parts(center) if loops is None else self._read_compiled(loops, center)
        return weighted * self.decay, mass * self.decay

    def _read_compiled(self, loops: Loops, center: Tensor | None) -> tuple[Tensor, Tensor]:
        moments, mass, spec = self.state.moments, self.state.mass, self.state.spec
        assert moments is not None and mass is not None and spec.kernel.dense is not None
        shape, query = self.query.shape, self.query.flatten(2, 3).flatten(0, 1)
        tables = tables_of(spec, shape[-1], query.dtype)
        if center is None or self.offset is None:
            coefficients = shared_coefficients(tables, query)
        else:
            shift = (self.offset - center).reshape(query.shape[0], 1, query.shape[1])
            orders = range(len(tables.offsets))
            coefficients = torch.cat([recentred(spec.kernel.dense, shift, n) for n in orders], dim=1)
        found = reading(loops, tables, moments.flatten(0, 1), mass.flatten(0, 1), query, coefficients)
        return found[0].view(*shape[:4], -1), found[1].view(*shape[:4], 1)

    def _read_in_parts(self, center: Tensor | None) -> tuple[Tensor, Tensor]:
        """So many queries at a time that their features stay few."""
        length, step = self.query.shape[3], max(1, keys_at_a_time(self.state) // self.query.shape[2])
        parts = [self._read(center, slice(start, start + step)) for start in range(0, length, step)]
        weighted, mass = (torch.cat(list(part), dim=3) for part in zip(*parts, strict=True))
        return weighted, mass

    def _read(self, center: Tensor | None, part: slice) -> tuple[Tensor, Tensor]:
        moments, mass, dense = self.state.moments, self.state.mass, self.state.spec.kernel.dense
        assert moments is not None and mass is not None and dense is not None
        shift = None if center is None or self.offset is None else (self.offset - center)[..., part, :]
        phi = features(self.query[..., part, :], self.state.orders) * self._coefficients(dense, shift)
        weighted = torch.einsum("bgrtf,bgfe->bgrte", phi, moments)
        return weighted, torch.einsum("bgrtf,bgf->bgrt", phi, mass)[..., None]

    def _coefficients(self, dense: tuple[float, ...], shift: Tensor | None) -> Tensor:
        """Per feature: multiplicity times the order's coefficient, which depends on the query around a mean."""
        orders, d = self.state.orders, self.query.shape[-1]
        factors = [torch.from_numpy(multiplicities(d, n)).to(self.query) for n in orders]
        if shift is None:
            return torch.cat([f * dense[n] for f, n in zip(factors, orders, strict=True)])
        return torch.cat([f * recentred(dense, shift, n) for f, n in zip(factors, orders, strict=True)], dim=-1)
