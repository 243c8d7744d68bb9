"""From which length on something is faster or smaller than the baseline, between the lengths that were measured."""

from __future__ import annotations

import math
from collections.abc import Mapping


def crossing(ratios: Mapping[int, float]) -> float | None:
    """The length where `ratios` (baseline over candidate, by length) pass 1 for the last time and stay above; None without one.

    Straight lines between the logarithms of lengths and ratios. A candidate that is ahead at every measured length crosses
    at or below the first of them, which is then the answer.

    >>> round(crossing({1024: 0.5, 4096: 2.0}))
    2048
    >>> crossing({1024: 0.5, 4096: 0.9}) is None
    True
    """
    points = sorted((math.log(length), math.log(ratio)) for length, ratio in ratios.items())
    if not points or points[-1][1] <= 0:
        return None
    for (before, low), (after, high) in zip(reversed(points[:-1]), reversed(points[1:]), strict=True):
        if low <= 0:
            return math.exp(before + (after - before) * low / (low - high))
    return math.exp(points[0][0])
