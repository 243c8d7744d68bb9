"""Groups of far keys by their definition: every weight of every key written out in float64, nothing of the package called.

U = sum_g exp(m_g) sum_{s in g} p(x_s - m_g) v_s,   Z = the same with v = 1,   m_g = mean of x over group g, or 0
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def nearest(key: Tensor, centers: Tensor) -> Tensor:
    """(B, G, N) by comparing squared distances one after another."""
    away = [(key - centers[None, :, i, None]).square().sum(dim=-1) for i in range(centers.shape[1])]
    best, group = away[0], torch.zeros_like(away[0], dtype=torch.int64)
    for i, distance in enumerate(away[1:], start=1):
        group = torch.where(distance < best, i, group)
        best = torch.minimum(distance, best)
    return group


def sums(
    query: Tensor, key: Tensor, value: Tensor, is_real: Tensor, group: Tensor, num_groups: int, orders: tuple[int, ...],
    around_mean: bool, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(U (B, G, R, T, m, e), Z (B, G, R, T, m)) of each group; empty groups are zero."""
    scores = torch.einsum("bgrtd,bgnd->bgrtn", query, key) * scale
    weighted, mass = [], []
    for i in range(num_groups):
        member = ((group == i) & is_real).to(scores)[:, :, None, None, :]
        number = member.sum(dim=-1, keepdim=True)
        middle = torch.zeros_like(scores[..., :1])
        if around_mean:
            middle = (scores * member).sum(dim=-1, keepdim=True) / number.clamp(min=1)
        y = scores - middle
        weights = sum(y**n / math.factorial(n) for n in orders) * member * middle.exp()
        weighted.append(weights @ value[:, :, None])
        mass.append(weights.sum(dim=-1))
    return torch.stack(weighted, dim=-2), torch.stack(mass, dim=-1)
