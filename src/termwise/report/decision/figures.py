"""A measured value with its interval. A missing one stays missing: nothing here turns it into a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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


@dataclass(frozen=True)
class Pair:
    """Today beside the candidate. `change` is candidate - today for a loss, candidate / today for bytes and seconds."""

    today: Figure = MISSING
    candidate: Figure = MISSING
    change: Figure = MISSING
