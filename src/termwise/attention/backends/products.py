"""Folding keys into moments and reading moments, head by head: features by the compiled loop, products by torch.

A block of features (F, C) is written once, stays in the processor's cache, and goes into one matrix product. The mass is kept out
of that product: a column more would break its shape. Head by head, because the features of all heads would not stay there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from termwise.attention.backends.compiled import Loops
from termwise.attention.backends.tables import Tables

IN_CACHE = 2**18  # numbers of a block of features: 1 MiB in fp32
KEPT = 2**22  # numbers a thread keeps for its next block of features: 16 MiB in fp32
_thread = threading.local()


def fold_into(
    loops: Loops, tables: Tables, moments: Tensor, mass: Tensor, key: Tensor, value: Tensor, weight: Tensor,
    out: tuple[Tensor, Tensor] | None = None,
) -> None:  # fmt: skip
    """moments (N, F, e) + phi(key) (weight value)^T and mass (N, F) + phi(key) weight, into `out` or in place.

    key (N, S, d) mapped, about the reference; value (N, S, e); weight (N, S) decay of each key, 0 for empty slots.
    """
    value, weight, keys = value * weight[..., None], weight.contiguous(), key.transpose(1, 2).contiguous()
    part = moments.new_empty(moments.shape[1:])
    new_moments, new_mass = out or (moments, mass)
    if out is not None:
        new_mass.copy_(mass)
    for n in range(keys.shape[0]):
        old = moments[n]
        for columns in parts_of(tables, keys.shape[2]):
            phi = features_of(loops, tables, keys[n, :, columns])
            for first, start, length in tables.runs:
                rows, kept = phi[first : first + length], slice(start, start + length)
                # The sum of 64 keys first, then added: adding key by key to a large sum loses digits (1e-6 for 3e-7 at 16k tokens).
                torch.mm(rows, value[n, columns], out=part[kept])
                torch.add(old[kept], part[kept], out=new_moments[n, kept])
                loops.add_mass(rows.numpy(), weight[n, columns].numpy(), new_mass[n, kept].numpy())
            old = new_moments[n]


def read_from(
    loops: Loops, tables: Tables, moments: Tensor, mass: Tensor, query: Tensor, coefficients: Tensor
) -> tuple[Tensor, Tensor]:
    """U (N, C, e) and Z (N, C) of the folded keys.

    query (N, C, d) mapped and scaled; coefficients (N or 1, P + 1, C): what each order counts for each query.
    """
    heads, length, _ = query.shape
    weighted, masses = moments.new_empty(heads, length, moments.shape[2]), moments.new_empty(heads, length)
    queries = query.transpose(1, 2).contiguous()
    for n in range(heads):
        for columns in parts_of(tables, length):
            phi = features_of(loops, tables, queries[n, :, columns])
            gains = coefficients[n if coefficients.shape[0] > 1 else 0]
            loops.weigh_block(
                phi.numpy(), tables.offsets, tables.widths, tables.starts, tables.multiplicities,
                gains[:, columns].contiguous().numpy(), mass[n].numpy(), masses[n, columns].numpy(),
            )  # fmt: skip
            out = weighted[n, columns]
            for i, (first, start, size) in enumerate(tables.runs):
                rows, kept = phi[first : first + size].T, moments[n, start : start + size]
                if i == 0:
                    torch.mm(rows, kept, out=out)
                else:
                    out.addmm_(rows, kept)
    return weighted, masses


def parts_of(tables: Tables, length: int) -> Iterator[slice]:
    """Equal parts of the columns, so many at a time that a block of features about stays in the cache; 64, if memory allows,
    where that is too few. A short last part would cost a product of its own at a fraction of the speed.
    """
    features = tables.num_monomials
    fitting = max(IN_CACHE // features, min(64, KEPT // features), 1)
    step = -(-length // max(round(length / fitting), 1))
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))


def features_of(loops: Loops, tables: Tables, x: Tensor) -> Tensor:
    """Monomials of the columns of x (d, C): (F, C), in a block that the next call writes over."""
    block = block_of("features", tables, x)
    loops.fill_monomials(x.contiguous().numpy(), tables.offsets, block.numpy())
    return block


def block_of(use: str, tables: Tables, x: Tensor) -> Tensor:
    """(F, C) for the columns of x, not initialised: the memory of this thread's last block for that use, if it is large enough."""
    size = tables.num_monomials * x.shape[1]
    kept = getattr(_thread, use, None)
    if kept is None or kept.dtype != x.dtype or kept.numel() < size:
        kept = x.new_empty(size)
        if size <= KEPT:
            setattr(_thread, use, kept)
    block: Tensor = kept[:size].view(tables.num_monomials, x.shape[1])
    return block


def shared_coefficients(tables: Tables, like: Tensor) -> Tensor:
    """Coefficients that are the same for every query of `like` (N, C, d): (1, P + 1, C)."""
    return torch.from_numpy(tables.coefficients).to(like.dtype)[None, :, None].repeat(1, 1, like.shape[1])
