"""A benchmark as its readers see it: one row a subject, measure and length, every figure measured or missing with its reason."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from termwise.report.read import Reading
from termwise.results import Record

BASELINE = "sdpa"
MEASURES = ("prefill", "decode", "memory", "training", "step", "generate")
WHOLE_MODELS = ("step", "generate")
MACHINE = ("copy_bandwidth", "read_bandwidth", "product_peak")


@dataclass(frozen=True)
class Series:
    """One subject of one measure: its records by length; `form` where the measure runs several."""

    variant: str
    label: str
    measure: str
    main: dict[int, Record]
    ratio: dict[int, Record]
    crossing: Record | None
    form: str | None = None

    @property
    def values(self) -> dict[int, float]:
        """The figures that are there, by length."""
        return {length: r.value for length, r in sorted(self.main.items()) if r.value is not None}


@dataclass(frozen=True)
class Missing:
    """A row without a figure."""

    variant: str
    measure: str
    length: int
    status: str
    reason: str


@dataclass(frozen=True)
class BenchView:
    """A whole benchmark. `series` are in the order of run.json, the baseline first in each measure; `picks` are a calibration's."""

    reading: Reading
    names: tuple[str, ...]
    formulas: dict[str, str]
    series: tuple[Series, ...]
    problems: tuple[Missing, ...]
    machine: dict[str, Record]
    figures: dict[tuple[str, str, str, int], Record]
    picks: tuple[tuple[Record, Record, Record], ...] = ()
    is_demonstration: bool = False

    def of(self, measure: str) -> list[Series]:
        """The series of one measure that have a figure."""
        return [series for series in self.series if series.measure == measure and series.values]

    def figure(self, metric: str, label: str, measure: str, length: int) -> Record | None:
        """A further figure of a row."""
        return self.figures.get((metric, label, measure, length))

    @property
    def lengths(self) -> list[int]:
        """Every length that has a figure."""
        return sorted({length for series in self.series for length in series.values})


def bench_view(reading: Reading) -> BenchView:
    """What the records say; of two about one thing the later counts."""
    latest: dict[tuple[Any, ...], Record] = {}
    for record in reading.records:
        subject = record.subject
        # The lengths a crossing lies between grow with the run: what it is about stays the same.
        about = [subject.get(name) for name in ("variant", "measure")] if record.metric == "crossing" else subject
        form = record.form if subject.get("measure") == "training" else None
        latest[record.metric, json.dumps(about, sort_keys=True), form] = record
    records = list(latest.values())
    entries = reading.run.get("variants")
    entries = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    formulas = {str(entry.get("name")): str(entry.get("formula") or "") for entry in entries}
    names = [BASELINE, *(name for name in formulas if name != BASELINE)]
    series = [made for measure in MEASURES for name in names for made in _series(records, name, measure) if made.main]
    rows = [r for r in records if r.metric == r.subject.get("measure") and r.status != "ok"]
    return BenchView(
        reading,
        tuple(name for name in names if name != BASELINE),
        formulas,
        tuple(series),
        tuple(
            Missing(str(r.subject["variant"]), r.metric, r.subject["length"], r.status, r.reason or "") for r in rows
        ),
        {metric: r for metric in MACHINE for r in records if r.metric == metric},
        {
            (r.metric, label_of(str(r.subject.get("variant")), measure, r.form), measure, length): r
            for r in records
            if isinstance(length := r.subject.get("length"), int) and r.metric not in MEASURES
            for measure in (str(r.subject.get("measure")),)
        },
        _picks(records),
    )


def label_of(name: str, measure: str, form: str | None) -> str:
    """What a series is called: training runs several forms of one subject."""
    return f"{name}, {form}" if measure == "training" and name != BASELINE and form else name


def _picks(records: Iterable[Record]) -> tuple[tuple[Record, Record, Record], ...]:
    """Of a calibration: seconds in parallel, in chunks, and the pick, for every shape not used to fit."""
    found: dict[str, dict[str, Record]] = {}
    for record in records:
        if record.metric in ("parallel", "chunked", "pick"):
            found.setdefault(json.dumps(record.subject, sort_keys=True), {})[record.metric] = record
    return tuple((one["parallel"], one["chunked"], one["pick"]) for one in found.values() if len(one) == 3)


def _series(records: Iterable[Record], name: str, measure: str) -> list[Series]:
    """One a form where a measure runs several (training), else one."""
    mine = [r for r in records if r.subject.get("variant") == name and r.subject.get("measure") == measure]
    forms = list(dict.fromkeys(r.form for r in mine)) if measure == "training" and name != BASELINE else [None]
    made = []
    for form in forms:
        own = [r for r in mine if form is None or r.form == form]
        label = label_of(name, measure, form)
        by_length = {
            metric: {
                r.subject["length"]: r for r in own if r.metric == metric and isinstance(r.subject.get("length"), int)
            }
            for metric in (measure, f"{measure}_ratio")
        }
        crossing = next((r for r in own if r.metric == "crossing"), None)
        made.append(Series(name, label, measure, by_length[measure], by_length[f"{measure}_ratio"], crossing, form))
    return made
