"""Adding keys to groups of moments, and reading one group, by the compiled loops: features stay in the processor's cache.

Axes as in tail.py: B batch, G kv heads, m groups, n keys of a group, F features, R query heads a kv head, T queries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from termwise.attention.backends import Loops, wants_gradient
from termwise.attention.backends.gradients import folded, reading
from termwise.attention.backends.products import fold_into, shared_coefficients
from termwise.attention.backends.tables import tables_of
from termwise.attention.monomials import recentred
from termwise.attention.spec import AttentionSpec


def added(
    loops: Loops, spec: AttentionSpec, moments: Tensor, mass: Tensor, key: Tensor, value: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """New moments (B, G, m, F, e) and mass (B, G, m, F) with keys (B, G, m, n, d) about their references in them."""
    tables = tables_of(spec, key.shape[-1], key.dtype)
    flat = [t.flatten(0, 2) for t in (moments, mass, key, value, weight)]
    if wants_gradient(*flat):
        new = folded(loops, tables, flat[0], flat[1], flat[2], flat[3], flat[4])
    else:
        new = torch.empty_like(flat[0]), torch.empty_like(flat[1])
        fold_into(loops, tables, flat[0], flat[1], flat[2], flat[3], flat[4], new)
    return new[0].view_as(moments), new[1].view_as(mass)


def read(
    loops: Loops, spec: AttentionSpec, moments: Tensor, mass: Tensor, query: Tensor, middle: Tensor
) -> tuple[Tensor, Tensor]:
    """Value (B, G, R, T, e) and mass (B, G, R, T, 1) of one group, for queries (B, G, R, T, d) mapped and scaled.

    `middle` (B, G, R, T, 1): the mean score about the reference, where the kernel is expanded around it.
    """
    dense, flat = spec.kernel.dense, query.flatten(2, 3).flatten(0, 1)
    assert dense is not None
    tables = tables_of(spec, query.shape[-1], query.dtype)
    coefficients = shared_coefficients(tables, flat)
    if spec.kernel.is_centered:
        shift = -middle.reshape(flat.shape[0], 1, flat.shape[1])
        coefficients = torch.cat([recentred(dense, shift, n) for n in range(len(dense))], dim=1)
    found = reading(loops, tables, moments.flatten(0, 2), mass.flatten(0, 2), flat, coefficients)
    return found[0].view(*query.shape[:4], moments.shape[-1]), found[1].view(*query.shape[:4], 1)
