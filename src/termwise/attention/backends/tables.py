"""What the compiled loops take of a spec: offsets, multiplicities and coefficients as arrays, made once."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import comb

import numpy as np
import torch

from termwise.attention.monomials import multiplicities, width
from termwise.attention.spec import AttentionSpec
from termwise.attention.state import stored_orders

SUMS, ROW_SUM, SCALE_FREE = 0, 1, 2  # what the loop of one token makes of its sums


@dataclass(frozen=True, eq=False)
class Tables:
    """Orders 0..P of one spec at one key width; F counts the monomials of all of them."""

    offsets: np.ndarray  # (P + 1,) where each order begins among all monomials
    starts: np.ndarray  # (P + 1,) where it begins in the moments, -1: not kept
    widths: np.ndarray  # (P + 1,)
    multiplicities: np.ndarray  # (F,)
    coefficients: np.ndarray  # (P + 1,) b_0..b_P, float64
    binomials: np.ndarray  # (P + 1, P + 1) C(j, n), float64
    runs: tuple[tuple[int, int, int], ...]  # (first monomial, first moment, length) of stored neighbours

    @property
    def num_monomials(self) -> int:
        return int(self.offsets[-1] + self.widths[-1])


@functools.lru_cache(maxsize=64)
def tables_of(spec: AttentionSpec, key_width: int, dtype: torch.dtype) -> Tables:
    """Tables for numbers of `dtype` (float32 or float64)."""
    number = np.float64 if dtype == torch.float64 else np.float32
    dense, orders = spec.kernel.dense or (0.0,), stored_orders(spec)
    top = max(len(dense), max(orders, default=0) + 1)
    widths = np.array([width(key_width, n) for n in range(top)], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(widths)[:-1]]).astype(np.int64)
    starts = np.full(top, -1, dtype=np.int64)
    begin = 0
    for n in orders:
        starts[n] = begin
        begin += int(widths[n])
    return Tables(
        offsets=offsets,
        starts=starts,
        widths=widths,
        multiplicities=np.concatenate([multiplicities(key_width, n) for n in range(top)]).astype(number),
        coefficients=np.array([*dense, *(0.0,) * (top - len(dense))]),
        binomials=np.array([[float(comb(j, n)) for n in range(top)] for j in range(top)]),
        runs=_runs(orders, offsets, starts, widths),
    )


def _runs(
    orders: tuple[int, ...], offsets: np.ndarray, starts: np.ndarray, widths: np.ndarray
) -> tuple[tuple[int, int, int], ...]:
    """Neighbouring orders stand together in both: one product serves them."""
    found: list[tuple[int, int, int]] = []
    for n in orders:
        if found and found[-1][0] + found[-1][2] == offsets[n]:
            first, start, length = found.pop()
            found.append((first, start, length + int(widths[n])))
        else:
            found.append((int(offsets[n]), int(starts[n]), int(widths[n])))
    return tuple(found)
