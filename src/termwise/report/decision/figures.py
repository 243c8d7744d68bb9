"""A measured value with its interval. A missing one stays missing: nothing here turns it into a number."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

LEVEL = 0.95
"""The least level at which an interval is evidence; a correction for many comparisons asks for a higher one."""
LEAST = 3
"""The least number of repeats, texts or seeds: of two, the interval is as wide as one difference happens to be."""


@dataclass(frozen=True)
class Figure:
    """One value from the records. `value` is None where it was not measured.

    `why` says why there is none, or what has to be known of it: a key of the words (`decision.why.*`) with its `fields`, or a
    sentence of the records. `low` and `high` bound it at `level`; None where there is no interval. A count (bytes by a
    formula) has low = high = value. `source` is the run it comes from.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    level: float | None = None
    n: int | None = None
    unit: str = ""
    source: str = ""
    why: str = ""
    fields: tuple[tuple[str, Any], ...] = ()

    @property
    def is_there(self) -> bool:
        """Whether it was measured."""
        return self.value is not None

    @property
    def has_interval(self) -> bool:
        """Whether it was measured and says how far to trust it."""
        return self.value is not None and self.low is not None and self.high is not None


MISSING = Figure()


def missing(why: str, source: str = "", **fields: Any) -> Figure:
    """Not measured, and why."""
    return Figure(source=source, why=why, fields=tuple(fields.items()))


def exactly(value: float, unit: str, source: str = "") -> Figure:
    """A count: it lies nowhere else."""
    return Figure(value, value, value, unit=unit, source=source)


def as_evidence(figure: Figure, least: int = LEAST) -> Figure:
    """The figure with its interval where that may carry a claim, else without it, and why.

    It has to stand at `LEVEL` or above and to be taken over at least `least` values; what does not say so is not believed.

    >>> as_evidence(Figure(0.1, 0.0, 0.2, level=0.95, n=3)).has_interval
    True
    >>> as_evidence(Figure(0.1, 0.0, 0.2, level=0.1, n=3)).why, as_evidence(Figure(0.1, 0.0, 0.2, level=0.95, n=2)).why
    ('decision.why.other_level', 'decision.why.too_few')
    """
    if not figure.has_interval:
        return figure
    if figure.level is None or figure.level < LEVEL - 1e-9:
        return without_interval(figure, "decision.why.other_level", level=figure.level, needed=LEVEL)
    if figure.n is None or figure.n < least:
        return without_interval(figure, "decision.why.too_few", n=figure.n, least=least)
    return figure


def without_interval(figure: Figure, why: str, **fields: Any) -> Figure:
    """The value alone, and why there is no more."""
    return dataclasses.replace(figure, low=None, high=None, level=None, why=why, fields=tuple(fields.items()))


@dataclass(frozen=True)
class Pair:
    """Today beside the candidate. `change` is candidate - today for a loss, candidate / today for bytes and seconds."""

    today: Figure = MISSING
    candidate: Figure = MISSING
    change: Figure = MISSING
