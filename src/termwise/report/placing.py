"""Where labels go so that they can be read: arithmetic on pixels only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

RADIUS = 5.0  # of a point of the usual size, in pixels


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move positions as little as needed so that neighbours stand `gap` apart and all lie in [low, high].

    Least squares under the order (pools of touching labels share their mean); where they cannot fit, the gap shrinks.

    >>> spread([10.0, 12.0, 50.0], gap=10, low=0, high=100)
    [6.0, 16.0, 50.0]
    """
    if not positions:
        return []
    gap = min(gap, (high - low) / max(len(positions) - 1, 1))
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    pools: list[list[float]] = []
    for rank, index in enumerate(order):
        pools.append([positions[index] - gap * rank])
        while len(pools) > 1 and _mean(pools[-2]) > _mean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    placed = [_mean(pool) for pool in pools for _ in pool]
    room = high - gap * (len(positions) - 1)
    moved = [0.0] * len(positions)
    for rank, index in enumerate(order):
        moved[index] = min(max(placed[rank], low), room) + gap * rank
    return moved


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@dataclass(frozen=True)
class Label:
    """Where a label stands beside its point: shifted by (dx, dy) pixels, `align` left or right."""

    dx: float
    dy: float
    align: Literal["left", "right"]

    def beyond(self, radius: float) -> Label:
        """The same beside a point of another size than the usual."""
        more = radius - RADIUS
        return Label(
            self.dx + math.copysign(more, self.dx),
            self.dy + (math.copysign(more, self.dy) if self.dy else 0.0),
            self.align,
        )


_SIDES = (
    Label(9, 0, "left"),
    Label(-9, 0, "right"),
    Label(7, -11, "left"),
    Label(7, 12, "left"),
    Label(-7, -11, "right"),
    Label(-7, 12, "right"),
)


def beside(
    points: Sequence[tuple[float, float]],
    widths: Sequence[float],
    frame: tuple[float, float],
    radii: Sequence[float] | None = None,
    height: float = 13.0,
) -> list[Label | None]:
    """A side for the label of each point, in order of importance, that covers no point and no earlier label.

    Points beyond the given widths have no label. `frame` is the width and height of the plot, `radii` how large each point is
    drawn, in pixels. None where no side is free.
    """
    radii = [RADIUS] * len(points) if radii is None else radii
    taken = [(x - r, y - r, x + r, y + r) for (x, y), r in zip(points, radii, strict=True)]
    labels: list[Label | None] = []
    for index, ((x, y), width) in enumerate(zip(points, widths, strict=False)):
        free = None
        for side in (side.beyond(radii[index]) for side in _SIDES):
            left = x + side.dx - (width if side.align == "right" else 0)
            box = (left, y + side.dy - height / 2, left + width, y + side.dy + height / 2)
            is_inside = box[0] >= 0 and box[2] <= frame[0] and box[1] >= 0 and box[3] <= frame[1]
            others = (other for place, other in enumerate(taken) if place != index)
            if is_inside and not any(_overlap(box, other) for other in others):
                free = side
                taken.append(box)
                break
        labels.append(free)
    return labels


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
