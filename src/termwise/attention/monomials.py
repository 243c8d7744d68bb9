"""The minimal basis of homogeneous polynomials, in colex order (math: section 9).

(x.y)^n = sum over multisets m of size n of  n!/prod(m_i!) prod x_i^m_i prod y_i^m_i:  C(d+n-1, n) features, not d^n.
Colex order (by largest index): the monomials of order n with largest index l are x_l times the first C(l+n-1, n-1)
monomials of order n-1. The key side stays pure monomials; multiplicities and coefficients go on the query side.
"""

from __future__ import annotations

import functools
from math import comb

import numpy as np
import torch
from torch import Tensor


def width(key_width: int, order: int) -> int:
    """Number of monomials of one order: C(d+n-1, n).

    >>> [width(64, n) for n in (0, 1, 2)]
    [1, 64, 2080]
    """
    return comb(key_width + order - 1, order)


def total_width(key_width: int, orders: tuple[int, ...]) -> int:
    """Features of a set of orders; for 0..P this is C(d+P, P).

    >>> total_width(64, (0, 1, 2)), total_width(16, (0, 1, 2, 3, 4))
    (2145, 4845)
    """
    return sum(width(key_width, n) for n in orders)


@functools.cache
def _plan(key_width: int, order: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """For each monomial: its parent in order-1, its largest index, that index's exponent, and its multiplicity."""
    if order == 0:
        return np.zeros(1, np.int64), np.full(1, -1), np.zeros(1, np.int64), np.ones(1)
    _, parent_last, parent_run, parent_multiplicity = _plan(key_width, order - 1)
    sizes = [1 if order == 1 else comb(l + order - 1, order - 1) for l in range(key_width)]  # noqa: E741
    parent = np.concatenate([np.arange(size) for size in sizes])
    last = np.repeat(np.arange(key_width), sizes)
    run = np.where(parent_last[parent] == last, parent_run[parent], 0) + 1
    return parent, last, run, parent_multiplicity[parent] * order / run


def multiplicities(key_width: int, order: int) -> np.ndarray:
    """n!/prod(m_i!) of each monomial of one order, colex.

    >>> multiplicities(2, 2).tolist()
    [1.0, 2.0, 1.0]
    """
    return _plan(key_width, order)[3]


def features(x: Tensor, orders: tuple[int, ...]) -> Tensor:
    """Monomials of the last axis, (..., d) -> (..., total_width), the orders one after another.

    >>> features(torch.tensor([2.0, 3.0]), (0, 1, 2))
    tensor([1., 2., 3., 4., 6., 9.])
    """
    # Features first: a gather then copies whole rows (along the last axis it is 20 times slower).
    x = x.movedim(-1, 0).contiguous()
    current = torch.ones_like(x[:1])
    blocks = [current] if 0 in orders else []
    for n in range(1, max(orders) + 1):
        if n == 1:
            current = x
        else:
            parent, last = (torch.from_numpy(index).to(x.device) for index in _plan(x.shape[0], n)[:2])
            current = current.index_select(0, parent) * x.index_select(0, last)
        if n in orders:
            blocks.append(current)
    return (blocks[0] if len(blocks) == 1 else torch.cat(blocks)).movedim(0, -1)


@functools.cache
def exponents(key_width: int, order: int) -> tuple[tuple[int, ...], ...]:
    """Each monomial of one order as its sorted indices, colex: (0, 0), (0, 1), (1, 1), (0, 2), ..."""
    if order == 0:
        return ((),)
    parent, last, _, _ = _plan(key_width, order)
    below = exponents(key_width, order - 1)
    return tuple((*below[p], int(i)) for p, i in zip(parent, last, strict=True))


@functools.cache
def _lowering(key_width: int, orders: tuple[int, ...]) -> list[list[tuple[int, np.ndarray, np.ndarray, np.ndarray]]]:
    """For each coordinate l: (k, where to, where from, C(m_l, k)) for removing x_l k times from a monomial."""
    place, offset = {}, 0
    for n in orders:
        names = exponents(key_width, n)
        place.update({name: offset + i for i, name in enumerate(names)})
        offset += len(names)
    table: list[dict[int, list[tuple[int, int, int]]]] = [{} for _ in range(key_width)]
    for name, to in place.items():
        for index in set(name):
            power = name.count(index)
            rest = tuple(i for i in name if i != index)
            for k in range(1, power + 1):
                source = tuple(sorted((*rest, *(index,) * (power - k))))
                table[index].setdefault(k, []).append((to, place[source], comb(power, k)))
    return [
        [(k, *(np.array(column) for column in zip(*rows, strict=True))) for k, rows in sorted(entry.items())]  # type: ignore[misc]
        for entry in table
    ]


def translate(moments: Tensor, shift: Tensor, orders: tuple[int, ...]) -> Tensor:
    """Moments of x + shift from moments of x: a polynomial shift, one coordinate at a time.

        M'[m] = sum_k C(m_l, k) shift_l^k M[m - k e_l]

    moments (..., F, e), shift (..., d); `orders` must be 0..P. Exact, but digits already lost do not come back.
    """
    if orders != tuple(range(len(orders))):
        raise ValueError(f"translating moments of orders {orders} needs all lower orders 0..{max(orders)}")
    for index, rules in enumerate(_lowering(shift.shape[-1], orders)):
        step = shift[..., index, None, None]
        moved = moments
        for k, to, source, factor in rules:
            device = moments.device
            gain = torch.from_numpy(factor).to(moments)[:, None] * step**k
            addend = moments.index_select(-2, torch.from_numpy(source).to(device)) * gain
            moved = moved.index_add(-2, torch.from_numpy(to).to(device), addend)
        moments = moved
    return moments


def recentred(dense: tuple[float, ...], shift: Tensor, order: int) -> Tensor:
    """c_n of sum_n c_n z^n = sum_j b_j (z + shift)^j:  c_n = sum_{j>=n} b_j C(j, n) shift^(j-n)."""
    out = torch.zeros_like(shift)
    for j in range(len(dense) - 1, order - 1, -1):
        out = out * shift + dense[j] * comb(j, order)
    return out
