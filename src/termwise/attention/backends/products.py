"""Folding keys into moments and reading moments, head by head: features by the compiled loop, products by torch.

A block of features (F, C) is written once, stays in the processor's cache, and goes into one matrix product. The mass is kept out
of that product: a column more would break its shape. Head by head, because the features of all heads would not stay there.
"""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import Tensor

from termwise.attention.backends.compiled import Loops
from termwise.attention.backends.tables import Tables

KEPT = 2**22  # numbers a thread keeps for its next block of features: 16 MiB in fp32
_thread = threading.local()


def fold_into(
    loops: Loops, tables: Tables, moments: Tensor, mass: Tensor, key: Tensor, value: Tensor, weight: Tensor
) -> None:
    """moments (N, F, e) += phi(key) (weight value)^T and mass (N, F) += phi(key) weight, in place.

    key (N, S, d) mapped, about the reference; value (N, S, e); weight (N, S) decay of each key, 0 for empty slots.
    """
    value, weight = value * weight[..., None], weight.contiguous()
    keys = key.transpose(1, 2).contiguous()
    phi = _features(tables, keys.shape[2], key.dtype)
    part = moments.new_empty(moments.shape[1:])
    for n in range(keys.shape[0]):
        loops.fill_monomials(keys[n].numpy(), tables.offsets, phi.numpy())
        for first, start, length in tables.runs:
            rows, kept = phi[first : first + length], slice(start, start + length)
            # The sum of 64 keys first, then added: adding key by key to a large sum loses digits (1e-6 for 3e-7 at 16k tokens).
            moments[n, kept] += torch.mm(rows, value[n], out=part[kept])
            loops.add_mass(rows.numpy(), weight[n].numpy(), mass[n, kept].numpy())


def read_from(
    loops: Loops, tables: Tables, moments: Tensor, mass: Tensor, query: Tensor, coefficients: Tensor
) -> tuple[Tensor, Tensor]:
    """U (N, C, e) and Z (N, C) of the folded keys.

    query (N, C, d) mapped and scaled; coefficients (N or 1, P + 1, C or 1): what each order counts, per query around a mean.
    """
    heads, columns, _ = query.shape
    weighted, masses = moments.new_empty(heads, columns, moments.shape[2]), moments.new_empty(heads, columns)
    queries = query.transpose(1, 2).contiguous()
    phi = _features(tables, columns, query.dtype)
    for n in range(heads):
        loops.fill_monomials(queries[n].numpy(), tables.offsets, phi.numpy())
        gains = coefficients[n if coefficients.shape[0] > 1 else 0].numpy()
        loops.weigh_block(
            phi.numpy(), tables.offsets, tables.widths, tables.starts, tables.multiplicities, gains, mass[n].numpy(),
            masses[n].numpy(),
        )  # fmt: skip
        for i, (first, start, length) in enumerate(tables.runs):
            rows, kept = phi[first : first + length].T, moments[n, start : start + length]
            if i == 0:
                torch.mm(rows, kept, out=weighted[n])
            else:
                weighted[n].addmm_(rows, kept)
    return weighted, masses


def _features(tables: Tables, columns: int, dtype: torch.dtype) -> Tensor:
    """A block (F, columns) to write into, the one of the last call where it is large enough."""
    size = tables.num_monomials * columns
    kept = getattr(_thread, "block", None)
    if kept is None or kept.dtype != dtype or kept.numel() < size:
        kept = torch.empty(size, dtype=dtype)
        if size <= KEPT:
            _thread.block = kept
    return kept[:size].view(tables.num_monomials, columns)


def shared_coefficients(tables: Tables, dtype: torch.dtype) -> Tensor:
    """Coefficients that are the same for every query, (1, P + 1, 1)."""
    return torch.from_numpy(tables.coefficients.astype(np.float64 if dtype == torch.float64 else np.float32))[
        None, :, None
    ]
