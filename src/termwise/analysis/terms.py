"""What each order contributes in one layer over one text, and what truncations make of its weights.

One pass over blocks of queries, so that memory is bounded by a block of scores. Axes: T queries, S keys, G kv heads, r query
heads a kv head, R queries of a block, d key width, e value width, P highest order, D distances.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from termwise.attention.spec import Local

CENTERS = ("zero", "mean")
BLOCK_SCORES = 1 << 18  # scores of one block, all heads: they stay in the processor's cache
VANISHING = 1e-6  # the rule of vanishing sums, math section 2


@dataclass(eq=False)
class LayerTerms:
    """Sums over the queries of one layer, a row a query head (G r of them); `means` turns them into figures.

    With x_ts the scores, p softmax's weights and o = sum_s p_ts v_s, m_t the mean score of the keys a query sees:

    scores     mean m_t, spread (standard deviation over the keys), largest and smallest score away from m_t
    first      p on the first token, over the queries after it;  `distances`: p by distance |t - s|, the first token left out,
               in bins 0, 1, 2..3, 4..7, ...
    magnitude  of order n around c (0 or m_t):  mean_t |a_nt| / mean_t |o_t|,   a_nt = e^c sum_s (x_ts - c)^n / n! v_s / sum_s e^x_ts.
               All orders share softmax's own denominator, so they compare, and their sum over n is o itself; terms that cancel
               each other show as magnitudes far above 1.
    reduced    for orders 0..P around c, with and without exact slots:  w = truncated weights over their sum;
               variation 1/2 sum_s |w_ts - p_ts|;  error sqrt(sum_t |o'_t - o_t|^2 / sum_t |o_t|^2);  negative: share of the weights'
               absolute sum that is negative;  vanishing: share of queries whose sum is below 1e-6 of their count (moved away
               from zero);  top: weight given to the key that softmax gives most
    """

    num_queries: Tensor
    mean: Tensor
    spread: Tensor
    above: Tensor
    below: Tensor
    first: Tensor
    distances: Tensor  # (heads, D)
    output_norm: Tensor
    output_square: Tensor
    top_exact: Tensor
    magnitude: Tensor  # (heads, centers, P + 1)
    variation: Tensor  # (heads, centers, slots, P + 1), as all below
    error_square: Tensor
    negative: Tensor
    vanishing: Tensor
    top: Tensor

    def __add__(self, other: LayerTerms) -> LayerTerms:
        return LayerTerms(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def means(self, num_kv_heads: int) -> dict[str, Tensor]:
        """Every figure by its name, a row a kv head: the mean over the queries of its query heads."""
        sums = {f.name: _grouped(getattr(self, f.name), num_kv_heads) for f in fields(self)}
        count = sums.pop("num_queries")
        norm, square = sums.pop("output_norm"), sums.pop("output_square")
        found = {name: value / _like(count, value) for name, value in sums.items()}
        found["magnitude"] = sums["magnitude"] / _like(norm, sums["magnitude"])
        found["error"] = (sums["error_square"] / _like(square, sums["error_square"])).sqrt()
        # the first query sees the first token alone
        found["first"] = sums["first"] / (count - self.num_queries.new_tensor(len(self.mean) // num_kv_heads))
        del found["error_square"]
        return found


def _grouped(sums: Tensor, num_kv_heads: int) -> Tensor:
    return sums.unflatten(0, (num_kv_heads, -1)).sum(dim=1)


def _like(small: Tensor, large: Tensor) -> Tensor:
    return small.view(-1, *([1] * (large.dim() - 1)))


def measure_terms(
    query: Tensor, key: Tensor, value: Tensor, scale: float, *, is_causal: bool, top_order: int, local: Local | None
) -> LayerTerms:
    """The sums of one layer over one text: query (T, H, d), key (T, G, d), value (T, G, e); orders 0..top_order.

    `local`: the exact slots of the second kind of reduction; None measures without slots alone (an encoder has none).
    """
    groups = key.shape[1]
    grouped = query.unflatten(1, (groups, -1)).permute(1, 2, 0, 3)
    keys, values = key.transpose(0, 1), value.transpose(0, 1)
    parts = [
        _block(grouped[:, :, rows], keys[:, :seen], values[:, :seen], scale, rows.start, is_causal, top_order, local)
        for rows, seen in _blocks(query.shape[0], query.shape[1], is_causal)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _blocks(length: int, heads: int, is_causal: bool) -> Iterator[tuple[slice, int]]:
    """Blocks of queries, and how many keys the last query of each sees."""
    rows = max(1, BLOCK_SCORES // (heads * length))
    for start in range(0, length, rows):
        stop = min(length, start + rows)
        yield slice(start, stop), stop if is_causal else length


def num_distances(length: int) -> int:
    """Bins of distances 0..length - 1: 0, 1, 2..3, 4..7, ...

    >>> num_distances(1), num_distances(8), num_distances(9)
    (1, 4, 5)
    """
    return 1 + math.ceil(math.log2(length)) if length > 1 else 1


def _block(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    start: int,
    is_causal: bool,
    top_order: int,
    local: Local | None,
) -> LayerTerms:
    """query (G, r, R, d), key (G, S, d), value (G, S, e); the first query is number `start`."""
    shape = (*query.shape[:3], key.shape[1])
    scores = (query.flatten(1, 2) @ key.transpose(1, 2)).view(shape) * scale
    places = torch.arange(shape[3], device=scores.device)
    distance = torch.arange(start, start + shape[2], device=scores.device)[:, None] - places
    visible = (distance >= 0) if is_causal else torch.ones_like(distance, dtype=torch.bool)
    seen = _Seen(scores, visible, value)
    reduced = [[_Reduced.of(seen, seen.whole(center), top_order) for center in CENTERS]]
    if local is not None:
        far = (distance >= local.window) & (places >= local.sinks)
        reduced.append([_Reduced.of(seen, seen.tail(center, far), top_order) for center in CENTERS])
    magnitude = torch.stack([one.magnitude for one in reduced[0]], dim=1)
    sums = {
        name: torch.stack([torch.stack([getattr(one, name) for one in kind], dim=1) for kind in reduced], dim=2)
        for name in ("variation", "error_square", "negative", "vanishing", "top")
    }
    return LayerTerms(**seen.sums(distance.abs(), start), magnitude=magnitude, **sums)


class _Seen:
    """Softmax over one block: what everything else is compared with."""

    def __init__(self, scores: Tensor, visible: Tensor, value: Tensor) -> None:
        self.scores, self.visible, self.value = scores, visible, value
        self.count = visible.sum(dim=-1).to(scores.dtype)
        masked = scores.masked_fill(~visible, -torch.inf)
        self.log_sum = masked.logsumexp(dim=-1)
        self.softmax = (masked - self.log_sum[..., None]).exp()
        self.largest, self.top = masked.max(dim=-1)
        self.mean = (scores * visible).sum(dim=-1) / self.count
        self.output = self.apply(self.softmax)

    def apply(self, weights: Tensor) -> Tensor:
        """(G, r, R, e): weights times values."""
        return (weights.flatten(1, 2) @ self.value).view(*weights.shape[:3], -1)

    def whole(self, center: str) -> _Tail:
        """Every key in the series."""
        middle = self.mean if center == "mean" else torch.zeros_like(self.mean)
        return _Tail(self.visible, middle, middle, None)

    def tail(self, center: str, far: Tensor) -> _Tail:
        """Far keys in the series around their own mean, the others with their exponentials; M as in math section 6."""
        count = far.sum(dim=-1)
        middle = torch.zeros_like(self.mean)
        if center == "mean":
            middle = (self.scores * far).sum(dim=-1) / count.clamp(min=1)
        near = self.visible & ~far
        largest = self.scores.masked_fill(~near, -torch.inf).amax(dim=-1)
        reference = torch.where(count > 0, torch.maximum(largest, middle), largest)
        exact = (self.scores - reference[..., None]).masked_fill(~near, -torch.inf).exp()
        return _Tail(far, middle, reference, exact)

    def sums(self, distance: Tensor, start: int) -> dict[str, Tensor]:
        """Everything that needs no series, summed over the queries."""
        x, p = self.scores, self.softmax
        deviation = (x - self.mean[..., None]) * self.visible
        spread = (deviation.square().sum(dim=-1) / self.count).sqrt()
        smallest = x.masked_fill(~self.visible, torch.inf).amin(dim=-1)
        norm = self.output.norm(dim=-1)
        first = p[..., 0].clone()
        first[..., : max(0, 1 - start)] = 0  # the first query has nothing else to see
        rows = {
            "mean": self.mean, "spread": spread, "above": self.largest - self.mean, "below": self.mean - smallest,
            "first": first, "output_norm": norm, "output_square": norm.square(), "top_exact": p.amax(dim=-1),
            "num_queries": torch.ones_like(norm),
        }  # fmt: skip
        return {name: _over_queries(value) for name, value in rows.items()} | {"distances": self._distances(distance)}

    def _distances(self, distance: Tensor) -> Tensor:
        """(heads, 32) softmax weight by distance, the first token left out."""
        bins = torch.frexp(distance.to(torch.float64))[1].to(torch.int64)
        others = self.softmax.clone()
        others[..., 0] = 0
        found = others.new_zeros(*others.shape[:3], 32)
        return _over_queries(found.scatter_add_(-1, bins.expand_as(others), others))


@dataclass(frozen=True, eq=False)
class _Tail:
    """Which keys are in the series, around which `middle`; e^(middle - reference) times the series joins the `exact` weights."""

    keys: Tensor
    middle: Tensor
    reference: Tensor
    exact: Tensor | None


@dataclass(frozen=True, eq=False)
class _Reduced:
    """Sums over the queries for orders 0..P of one center, with or without slots; each (heads, P + 1).

    Magnitudes are of use without slots alone: there `factor` is 1.
    """

    magnitude: Tensor
    variation: Tensor
    error_square: Tensor
    negative: Tensor
    vanishing: Tensor
    top: Tensor

    @classmethod
    def of(cls, seen: _Seen, tail: _Tail, top_order: int) -> _Reduced:
        y = (seen.scores - tail.middle[..., None]).mul_(tail.keys)
        power = tail.keys.to(y.dtype).expand_as(y).clone()
        count = tail.keys.sum(dim=-1).to(y.dtype)
        factor = (tail.middle - tail.reference).exp().masked_fill(count == 0, 0)[..., None]
        weights = torch.zeros_like(y) if tail.exact is None else tail.exact.clone()
        output = seen.apply(weights)
        least = VANISHING * (weights.sum(dim=-1) + factor[..., 0] * count)
        # a query whose scores are all far below the center would be infinite here
        to_softmax = (tail.middle.double() - seen.log_sum.double()).clamp(max=300).exp()
        found: dict[str, list[Tensor]] = {name: [] for name in cls.__dataclass_fields__}
        for order in range(top_order + 1):
            if order:
                power *= y
            share = power * (factor / math.factorial(order))
            weights += share
            added = seen.apply(share)
            output = output + added
            size = added.double().norm(dim=-1) * to_softmax
            figures = _compared(seen, weights, output, least) | {"magnitude": size}
            for name, rows in figures.items():
                found[name].append(_over_queries(rows))
        return cls(**{name: torch.stack(values, dim=-1) for name, values in found.items()})


def _compared(seen: _Seen, raw: Tensor, output: Tensor, least: Tensor) -> dict[str, Tensor]:
    """(G, r, R) each: what weights before their sum is taken out, and their product with the values, are against softmax."""
    total = raw.sum(dim=-1)
    is_vanishing = total.abs() < least
    mass = torch.where(is_vanishing, torch.where(total < 0, -least, least), total)
    weights = raw / mass[..., None]
    negative = weights.clamp(max=0).sum(dim=-1).neg()
    absolute = weights.sum(dim=-1) + 2 * negative
    top = weights.gather(-1, seen.top[..., None])[..., 0]
    return {
        "variation": (weights - seen.softmax).abs_().sum(dim=-1) / 2,
        "error_square": (output / mass[..., None] - seen.output).square().sum(dim=-1),
        "negative": torch.where(absolute > 0, negative / absolute, torch.zeros_like(absolute)),
        "vanishing": is_vanishing.to(raw.dtype),
        "top": top,
    }


def _over_queries(rows: Tensor) -> Tensor:
    """(G, r, R, ...) -> (G r, ...) sums over the queries in float64."""
    return rows.double().sum(dim=2).flatten(0, 1)
