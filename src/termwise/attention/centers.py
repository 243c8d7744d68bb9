"""Centers of a head's keys: which is nearest, and where they stand on keys of real text (math: section 7).

Axes: B batch, G kv heads, N keys, m centers, d key width.
"""

from __future__ import annotations

import torch
from torch import Tensor

TIE = 1e-12  # of the squared lengths of key and centers: distances closer than this are one (float64 rounds at 1e-16)
AT_A_TIME = 2**20  # distances that stand at once while calibrating
ROUNDS = 50  # Lloyd's; on the keys of a head the sum of squares moves by less than a thousandth after some 20


def nearest_center(key: Tensor, centers: Tensor) -> Tensor:
    """Index (B, G, N) of the nearest of `centers` (G, m, d) to each of `key` (B, G, N, d); ties to the lower index.

    argmin |k - c|^2 = argmax k.c - |c|^2 / 2, about the mean of the centers and in float64, so that a vector common to all
    keys and centers costs no digits. No gradient flows.
    """
    centers, key = centers.detach().double(), key.detach().double()
    middle = centers.mean(dim=-2, keepdim=True)
    centers, key = centers - middle, key - middle
    square = centers.square().sum(dim=-1)
    closeness = torch.einsum("bgnd,gmd->bgnm", key, centers) - square[:, None, :] / 2
    slack = TIE * (key.square().sum(dim=-1, keepdim=True) + square.amax(dim=-1)[:, None, None])
    is_best = closeness >= closeness.amax(dim=-1, keepdim=True) - slack
    return is_best.to(torch.int8).argmax(dim=-1)


def calibrate_centers(keys: Tensor, m: int, seed: int) -> Tensor:
    """m centers (m, d) of the keys (N, d) of one head, by k-means: k-means++ start, then Lloyd's iterations.

        minimise sum_s min_g |k_s - c_g|^2

    The same keys and seed give the same centers. An empty group starts again at the key that is worst served; where there are
    fewer different keys than centers some centers are equal, and the later ones stay empty.
    Errors: ValueError without keys, or with keys that are not finite.
    Source: Lloyd 1982; Arthur and Vassilvitskii 2007.

    >>> calibrate_centers(torch.tensor([[0.0], [1.0], [5.0], [6.0]]), 2, seed=0).sort(dim=0).values.flatten().tolist()
    [0.5, 5.5]
    """
    _check(keys, m)
    middle = keys.double().mean(dim=0)
    points = (keys.double() - middle).float()
    centers = _spread_start(points, m, torch.Generator().manual_seed(seed))
    group, distance = _assign(points, centers)
    for _ in range(ROUNDS):
        centers = _means(points, group, distance, m)
        before, (group, distance) = group, _assign(points, centers)
        if torch.equal(before, group):
            break
    return (centers.double() + middle).to(keys.dtype)


def _check(keys: Tensor, m: int) -> None:
    if keys.dim() != 2 or keys.shape[0] == 0:
        raise ValueError(
            f"calibrate_centers: keys of shape {tuple(keys.shape)}; expected (keys, key width) of one head"
        )
    if isinstance(m, bool) or not isinstance(m, int) or m < 1:
        raise ValueError(f"calibrate_centers: m={m!r}; allowed are whole numbers from 1")
    if not bool(torch.isfinite(keys).all()):
        raise ValueError("calibrate_centers: some keys are not finite; leave out padded positions and broken texts")


def _spread_start(points: Tensor, m: int, generator: torch.Generator) -> Tensor:
    """k-means++: each further start is a key drawn in proportion to its squared distance to those before."""
    square = points.square().sum(dim=1)
    distance = torch.full_like(square, torch.inf)
    chosen = torch.randint(len(points), (1,), generator=generator).to(points.device)
    starts = [points[chosen]]
    for _ in range(m - 1):
        last = starts[-1]
        to_last = square - 2 * (points @ last[0]) + last.square().sum()
        distance = torch.minimum(distance, to_last.clamp(min=0))
        total = distance.double().cumsum(dim=0)
        drawn = torch.rand(1, generator=generator, dtype=torch.float64).to(points.device) * total[-1]
        chosen = torch.searchsorted(total, drawn, right=True).clamp(max=len(points) - 1)
        starts.append(points[chosen])
    return torch.cat(starts)


def _assign(points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """(group (N,), squared distance (N,)), so many keys at a time that their distances stay few."""
    square = centers.square().sum(dim=1)
    groups, distances = [], []
    for part in points.split(max(1, AT_A_TIME // len(centers))):
        away, group = torch.addmm(square, part, centers.T, alpha=-2).min(dim=1)
        groups.append(group)
        distances.append(away + part.square().sum(dim=1))
    return torch.cat(groups), torch.cat(distances)


def _means(points: Tensor, group: Tensor, distance: Tensor, m: int) -> Tensor:
    """Mean of each group; an empty one takes a key that is worst served, a different key for each."""
    count = torch.bincount(group, minlength=m)
    total = points.new_zeros(m, points.shape[1], dtype=torch.float64).index_add_(0, group, points.double())
    means = (total / count.clamp(min=1)[:, None]).float()
    empty = (count == 0).nonzero().flatten()
    worst = distance.topk(min(len(empty), len(points))).indices
    means[empty[: len(worst)]] = points[worst]
    return means
