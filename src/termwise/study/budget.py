"""From a wall time to a number of steps: the makespan of the whole grid on its workers, from speeds measured once."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from termwise.data.sizes import counted
from termwise.results import format_duration

MIN_STEPS = 20
# Measured speeds vary with the machine's load; planning to the last second would overrun half of the time.
SAFETY = 0.92


@dataclass(frozen=True)
class Speed:
    """What one variant costs here, in seconds: a training step, scoring a token, a recall step, and once a run all the rest."""

    step: float
    scored_token: float
    recall_step: float
    start: float


@dataclass(frozen=True)
class Grid:
    """What is to be done with every variant: runs on several seeds, each scored on so many tokens, and recall (0: left out)."""

    speeds: tuple[Speed, ...]
    num_seeds: int
    scored_tokens: int
    recall_steps: int
    num_workers: int

    def seconds(self, steps: int) -> float:
        """Estimated wall time: every variant and seed trained and scored, recall once a variant."""
        trained = [s.start + steps * s.step + self.scored_tokens * s.scored_token for s in self.speeds]
        recalled = [s.start + self.recall_steps * s.recall_step for s in self.speeds if self.recall_steps]
        return makespan([*trained, *recalled, *trained * (self.num_seeds - 1)], self.num_workers)

    @property
    def recall_seconds(self) -> float:
        """The recall runs alone, none reaching it early."""
        return makespan([s.start + self.recall_steps * s.recall_step for s in self.speeds], self.num_workers)

    @property
    def scoring_seconds(self) -> float:
        """The held-out scores alone."""
        return makespan([self.scored_tokens * s.scored_token for s in self.speeds] * self.num_seeds, self.num_workers)


def makespan(durations: Iterable[float], num_workers: int) -> float:
    """Seconds until the last of the runs ends when each worker takes the next one in order.

    >>> makespan([3.0, 3.0, 2.0], num_workers=2)
    5.0
    """
    busy = [0.0] * num_workers
    for duration in durations:
        heapq.heapreplace(busy, busy[0] + duration)
    return max(busy)


def steps_within(seconds: float, grid: Grid, most: int) -> int:
    """The largest common number of steps whose grid takes at most `seconds`. ValueError when even `MIN_STEPS` do not fit."""

    def fits(steps: int) -> bool:
        return grid.seconds(steps) <= seconds * SAFETY

    if not fits(MIN_STEPS):
        needed = grid.seconds(MIN_STEPS) / SAFETY
        raise ValueError(
            f"{format_duration(max(seconds, 0))} left of the budget for {counted(len(grid.speeds), 'variant')} x {counted(grid.num_seeds, 'seed')}; "
            f"even {MIN_STEPS} steps need about {format_duration(needed)}: raise --budget, or ask for fewer variants or seeds"
        )
    low, high = MIN_STEPS, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def scored_within(seconds: float, grid: Grid, least: int) -> int:
    """As many scored tokens as take at most `seconds` in all, at most those of the grid and at least `least`.

    >>> scored_within(10.0, Grid((Speed(1.0, 0.01, 1.0, 0.0),), 2, 10_000, 0, 2), least=100)
    1000
    """
    fitting = int(grid.scored_tokens * min(1.0, max(seconds, 0.0) / grid.scoring_seconds))
    return max(min(least, grid.scored_tokens), fitting)
