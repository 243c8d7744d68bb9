"""Clocks: warm-up apart, repeats interleaved, medians with the tenth and ninetieth percentile."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from termwise.bench.estimate import LONG_ROUND, MOST_SECONDS

if TYPE_CHECKING:
    from termwise.bench.inputs import Shape

T = TypeVar("T")
CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}


@dataclass(frozen=True)
class Spread:
    """The median of `n` samples, with percentiles 10 and 90."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, samples: list[float]) -> Spread:
        """The spread of samples.

        >>> Spread.of([3.0, 1.0, 2.0]).median
        2.0
        """
        low, median, high = np.quantile(samples, (0.1, 0.5, 0.9)).tolist()
        return cls(median, low, high, len(samples))


def seconds(run: Callable[[], object], shape: Shape) -> float:
    """Time of one call by the clock that was asked for, the device's queue included."""
    synchronize(shape.device)
    now = CLOCKS[shape.clock]
    started = now()
    run()
    synchronize(shape.device)
    return now() - started


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def interleaved(runs: Mapping[str, Callable[[], T]], repeats: int) -> dict[str, list[T]]:
    """Each in turn, round after round, so that a slow minute of the machine strikes all alike.

    The first round decides how many there are: `repeats`, fewer where a round takes more than 20 s, never under 2.
    """
    found: dict[str, list[T]] = {name: [] for name in runs}
    with quiet():
        started = time.perf_counter()
        wanted = repeats
        for number in range(repeats):
            if number >= wanted:
                break
            for name, run in runs.items():
                found[name].append(run())
            if number == 0 and (spent := time.perf_counter() - started) > LONG_ROUND:
                wanted = min(repeats, max(2, int(MOST_SECONDS / spent)))
    return found


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection inside."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def num_threads(number: int) -> Iterator[None]:
    """torch on so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
