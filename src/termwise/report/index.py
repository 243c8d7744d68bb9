"""Records by what they are about, and their means over seeds."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from termwise.results import Record

LEVEL = 0.95


@dataclass(frozen=True)
class Measured:
    """A mean over seeds. `value` is None where nothing was measured, and `reason` then says why, if a record does.

    `low` and `high` are the t interval over seeds at `LEVEL`, from two seeds on; `n` counts the values averaged.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    reason: str = ""
    values: tuple[float, ...] = ()
    where: tuple[tuple[str, Any], ...] = ()


class Index:
    """Records by kind, metric and variant. One written twice (a run taken up again) counts once, the last."""

    def __init__(self, records: Iterable[Record]) -> None:
        latest: dict[tuple, Record] = {}
        for record in records:
            subject = json.dumps(record.subject, sort_keys=True)
            latest[record.kind, record.metric, subject, record.method, record.baseline] = record
        measured = {(r.kind, r.metric, str(r.subject.get("variant"))) for r in latest.values() if r.value is not None}
        self.records = tuple(r for r in latest.values() if not _is_outdated(r, measured))
        self._groups: dict[tuple, list[Record]] = defaultdict(list)
        self._variants: dict[str, list[Record]] = defaultdict(list)
        for record in self.records:
            variant = str(record.subject.get("variant", ""))
            self._groups[record.kind, record.metric, variant].append(record)
            self._variants[variant].append(record)

    def of(self, kind: str, metric: str, variant: str) -> list[Record]:
        """Records of one metric of one variant, every status."""
        return self._groups.get((kind, metric, variant), [])

    def runs(self, variant: str) -> list[Record]:
        """Records that tell how the training runs of a variant went, not what was measured on them afterwards."""
        return [record for record in self._variants.get(variant, []) if record.kind in ("train", "loss")]


def largest(records: list[Record]) -> Measured:
    """The largest value, and in which seed, layer and head it stood."""
    good = [record for record in records if record.value is not None]
    if not good:
        return Measured(reason=_reason(records))
    worst = max(good, key=lambda record: record.value or 0.0)
    where = tuple((key, worst.subject[key]) for key in ("seed", "layer", "head") if key in worst.subject)
    return Measured(worst.value, n=len(good), where=where)


def _is_outdated(record: Record, measured: set[tuple]) -> bool:
    """Whether it says of a whole variant that nothing was measured, and a seed was measured since."""
    is_of_variant = record.value is None and record.subject.keys() == {"variant"}
    return is_of_variant and (record.kind, record.metric, str(record.subject["variant"])) in measured


def mean(records: list[Record]) -> Measured:
    """Mean and t interval of the records that hold a value; the reason of those that do not."""
    values = tuple(record.value for record in records if record.value is not None)
    if not values:
        return Measured(reason=_reason(records))
    center, half = sum(values) / len(values), _t_half_width(values)
    if half is None:
        return Measured(center, n=len(values), values=values, reason=_reason(records))
    return Measured(center, center - half, center + half, len(values), _reason(records), values)


def _t_half_width(values: tuple[float, ...]) -> float | None:
    if len(values) < 2:
        return None
    from scipy.special import stdtrit

    center = sum(values) / len(values)
    variance = sum((value - center) ** 2 for value in values) / (len(values) - 1)
    return float(stdtrit(len(values) - 1, (1 + LEVEL) / 2) * (variance / len(values)) ** 0.5)


def _reason(records: list[Record]) -> str:
    return "; ".join(dict.fromkeys(record.reason for record in records if record.status != "ok" and record.reason))


def seed_of(record: Record) -> int | None:
    """The seed a record is about; None where it is about all of them."""
    return whole(record.subject.get("seed"))


def whole(value: Any) -> int | None:
    """The whole number that a field of a record holds; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
