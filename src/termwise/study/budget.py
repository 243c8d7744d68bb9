"""From a wall time to a number of steps: the makespan of the whole grid on its workers, from speeds measured once."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MIN_STEPS = 20
# Measured speeds vary with the machine's load; planning to the last second would overrun half of the time.
SAFETY = 0.92
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class Speed:
    """What one variant costs here, in seconds: a training step, the evaluation after it, a recall step, a start."""

    step: float
    evaluation: float
    recall_step: float
    start: float


def parse_duration(text: str) -> float:
    """Seconds of a time like 90s, 10m, 1h30m; a bare number is minutes.

    >>> parse_duration("10m"), parse_duration("1h30m"), parse_duration("90s"), parse_duration("2")
    (600.0, 5400.0, 90.0, 120.0)
    """
    text = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return _positive(float(text) * 60.0, text)
    if not re.fullmatch(r"(\d+(\.\d+)?[smhd])+", text):
        raise ValueError(f"time {text!r}; allowed are numbers with s, m, h or d, e.g. 90s, 10m, 1h30m")
    return _positive(sum(float(n) * _UNITS[unit] for n, unit in re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)), text)


def _positive(seconds: float, text: str) -> float:
    if seconds <= 0:
        raise ValueError(f"time {text!r} is nothing; give e.g. 10m")
    return seconds


def format_duration(seconds: float) -> str:
    """A time for people.

    >>> format_duration(8.4), format_duration(95), format_duration(5400)
    ('8 s', '1 min 35 s', '1 h 30 min')
    """
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s" if seconds % 60 else f"{seconds // 60} min"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def makespan(durations: Iterable[float], num_workers: int) -> float:
    """Seconds until the last of the runs ends when each worker takes the next one in order.

    >>> makespan([3.0, 3.0, 2.0], num_workers=2)
    5.0
    """
    busy = [0.0] * num_workers
    for duration in durations:
        heapq.heapreplace(busy, busy[0] + duration)
    return max(busy)


def grid_seconds(speeds: Sequence[Speed], num_seeds: int, steps: int, recall_steps: int, num_workers: int) -> float:
    """Estimated wall time of the grid: every variant and seed trained and evaluated, recall once a variant."""
    trained = [s.start + steps * s.step + s.evaluation for s in speeds]
    recalled = [s.start + recall_steps * s.recall_step for s in speeds if recall_steps]
    return makespan([*trained, *recalled, *trained * (num_seeds - 1)], num_workers)


def steps_within(
    seconds: float, speeds: Sequence[Speed], num_seeds: int, recall_steps: int, num_workers: int, most: int
) -> int:
    """The largest common number of steps whose grid takes at most `seconds`. ValueError when even `MIN_STEPS` do not fit."""

    def fits(steps: int) -> bool:
        return grid_seconds(speeds, num_seeds, steps, recall_steps, num_workers) <= seconds * SAFETY

    if not fits(MIN_STEPS):
        needed = grid_seconds(speeds, num_seeds, MIN_STEPS, recall_steps, num_workers) / SAFETY
        raise ValueError(
            f"{format_duration(seconds)} left of the budget for {len(speeds)} variants x {num_seeds} seeds; even "
            f"{MIN_STEPS} steps need about {format_duration(needed)}: raise --budget, or ask for fewer variants or seeds"
        )
    low, high = MIN_STEPS, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
