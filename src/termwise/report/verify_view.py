"""A verification as its readers see it: one row a check, one figure a stage, each within what is allowed, failed, or left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from termwise.report.read import Reading
from termwise.results import Record

STAGES = ("original", "float64", "even", "float32", "bfloat16")
SOAK = ("drift", "far", "twin_states", "memory", "bad_rows", "step_time")


@dataclass(frozen=True)
class VerifyView:
    """`records[check][stage]`: the last word on each; `subject` is what run.json says of the model."""

    reading: Reading
    subject: dict[str, Any]
    records: dict[str, dict[str, Record]]
    is_finished: bool
    is_demonstration: bool = False

    @property
    def all(self) -> list[Record]:
        """Every check in every stage."""
        return [record for by_stage in self.records.values() for record in by_stage.values()]

    def having(self, status: str) -> list[Record]:
        """Those that ended so."""
        return [record for record in self.all if record.status == status]

    @property
    def stages(self) -> list[str]:
        """The precisions, in the order they were looked at."""
        found = {str(record.subject.get("stage")) for record in self.all}
        return [stage for stage in STAGES if stage in found and stage != "original"]


def verify_view(reading: Reading) -> VerifyView:
    """What the records of the last verification say; of two about one check in one stage the later counts."""
    begun = str(reading.run.get("begun") or "")
    records: dict[str, dict[str, Record]] = {}
    for record in _of_checks(reading.records):
        if record.started is None or record.started >= begun:
            records.setdefault(str(record.subject["check"]), {})[str(record.subject["stage"])] = record
    order = reading.setting("checks", [])
    # As they are listed; a check that one stage lacks was first made in a later one.
    records = dict(sorted(records.items(), key=lambda item: order.index(item[0]) if item[0] in order else -1))
    subject = reading.run.get("subject")
    return VerifyView(reading, subject if isinstance(subject, dict) else {}, records, bool(reading.run.get("finished")))


def _of_checks(records: Iterable[Record]) -> Iterable[Record]:
    return (r for r in records if r.kind == "check" and "check" in r.subject and "stage" in r.subject)


def check_of(record: Record) -> str:
    """The name of its check."""
    return str(record.subject["check"])


def stage_of(record: Record) -> str:
    """The stage it was made in."""
    return str(record.subject["stage"])
