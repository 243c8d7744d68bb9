"""A study as its readers see it: one row a variant, every figure either measured or missing with its reason."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from termwise.report.read import Curve, Reading, read_curve
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


@dataclass(frozen=True)
class Variant:
    """One variant with everything the records say of it. `order` is its place in run.json."""

    name: str
    order: int
    formula: str
    short_name: str
    note: str
    equal_names: tuple[str, ...]
    parts_that_cancel: tuple[str, ...]
    is_baseline: bool
    loss: Measured
    bits: Measured
    parameters: Measured
    state: Measured
    state_formula: Measured
    speed: Measured
    recall: Measured
    steps_to_recall: Measured
    vanishing_rows: Measured
    negative_rows: Measured
    over_seeds: Record | None
    over_documents: Record | None
    verdict: Record | None
    finished: tuple[int, ...]
    failed: tuple[int, ...]


@dataclass(frozen=True)
class Problem:
    """Something that failed, was excluded, or was not measured: for which variants and seeds, and why."""

    variants: tuple[str, ...]
    seeds: tuple[int, ...]
    metric: str
    status: str
    reason: str


@dataclass(frozen=True)
class View:
    """A whole study. `variants` are sorted by held-out loss, the unmeasured last, in the order of run.json."""

    reading: Reading
    baseline: str
    context: int | None
    seeds: tuple[int, ...]
    variants: tuple[Variant, ...]
    problems: tuple[Problem, ...]
    by_position: dict[str, tuple[tuple[float, float, float], ...]]
    state_by_length: dict[str, dict[int, float]]
    num_documents: int
    num_foreign: int

    @property
    def is_demonstration(self) -> bool:
        """Whether run.json says that the run only shows how the page works."""
        return bool(self.reading.setting("demonstration"))

    @property
    def is_loss_asked(self) -> bool:
        """Whether the run was asked for a held-out loss: an evaluation of recall alone was not."""
        return _is_loss_asked(self.reading)

    def curves(self) -> list[Curve]:
        """Training curves of every run that logged a step."""
        found = (read_curve(self.reading.folder, v.name, seed) for v in self.variants for seed in self.seeds)
        return [curve for curve in found if curve is not None]


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


def view(reading: Reading) -> View:
    """Everything the page and the terminal show, gathered from one folder's records."""
    every = Index(reading.records)
    described = _described(reading, every)
    names = [entry["name"] for entry in described]
    index = Index(r for r in every.records if "variant" not in r.subject or r.subject["variant"] in names)
    seeds = _seeds(reading, index)
    baseline = _baseline(index, names)
    context = reading.setting("context")
    variants = [_variant(order, entry, index, baseline, context) for order, entry in enumerate(described)]
    variants.sort(key=lambda v: (v.loss.value is None, v.loss.value or 0.0, v.order))
    return View(
        reading=reading,
        baseline=baseline,
        context=context,
        seeds=seeds,
        variants=tuple(variants),
        problems=tuple(_problems(index, variants, seeds if _is_loss_asked(reading) else ())),
        by_position={name: _by_position(index.of("loss", "held_out_by_position", name)) for name in names},
        state_by_length={name: _by_length(index.of("memory", "state", name)) for name in names},
        num_documents=len({str(r.subject.get("document")) for r in index.records if r.metric == "held_out_document"}),
        num_foreign=len(every.records) - len(index.records),
    )


def seed_of(record: Record) -> int | None:
    """The seed a record is about; None where it is about all of them."""
    return _whole(record.subject.get("seed"))


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_loss_asked(reading: Reading) -> bool:
    return "perplexity" in reading.setting("tasks", ["perplexity"])


def _described(reading: Reading, index: Index) -> list[dict[str, Any]]:
    """The variants of run.json; where it names none, those of the records."""
    listed = reading.setting("variants")
    entries = [e if isinstance(e, dict) else {"name": e} for e in (listed if isinstance(listed, list) else [])]
    if not entries:
        found = dict.fromkeys(str(r.subject["variant"]) for r in index.records if "variant" in r.subject)
        entries = [{"name": name} for name in found]
    return [entry | {"name": str(entry["name"])} for entry in entries if entry.get("name")]


def _seeds(reading: Reading, index: Index) -> tuple[int, ...]:
    asked = reading.setting("seeds")
    planned = range(asked) if isinstance(asked, int) else (asked if isinstance(asked, list) else ())
    found = (seed_of(record) for record in index.records)
    return tuple(sorted({seed for seed in (*map(_whole, planned), *found) if seed is not None}))


def _baseline(index: Index, names: list[str]) -> str:
    """The variant the records compare with; before there is a comparison, softmax."""
    compared = (r.baseline for r in index.records if r.metric in ("paired_difference", "verdict") and r.baseline)
    return next(compared, "softmax" if "softmax" in names else "")


def _variant(order: int, entry: dict[str, Any], index: Index, baseline: str, context: int | None) -> Variant:
    name = entry["name"]
    losses = index.of("loss", "held_out_nats", name)
    formulas = index.of("memory", "state_formula", name)
    differences = {r.method: r for r in index.of("score", "paired_difference", name)}
    verdicts = index.of("score", "verdict", name)
    return Variant(
        name=name,
        order=order,
        formula=str(entry.get("formula") or ""),
        short_name=str(entry.get("short_name") or ""),
        note=str(entry.get("note") or ""),
        equal_names=tuple(map(str, entry.get("equal_names") or ())),
        parts_that_cancel=tuple(map(str, entry.get("parts_that_cancel") or ())),
        is_baseline=name == baseline,
        loss=mean(losses),
        bits=mean(index.of("loss", "held_out_bits", name)),
        parameters=mean(index.of("memory", "parameters", name)),
        state=mean([r for r in index.of("memory", "state", name) if r.subject.get("length") == context]),
        state_formula=mean([r for r in formulas if r.subject.get("length", context) == context]),
        speed=mean(index.of("speed", "training_tokens", name)),
        recall=mean(index.of("recall", "accuracy", name)),
        steps_to_recall=mean(index.of("recall", "steps_to_recall", name)),
        vanishing_rows=largest(index.of("check", "vanishing_rows", name)),
        negative_rows=largest(index.of("check", "negative_rows", name)),
        over_seeds=differences.get("t over seeds"),
        over_documents=differences.get("bootstrap over documents"),
        verdict=verdicts[-1] if verdicts else None,
        finished=_seeds_where(losses, "ok"),
        failed=_seeds_where(index.runs(name), "failed"),
    )


def _seeds_where(records: Iterable[Record], status: str) -> tuple[int, ...]:
    return tuple(sorted({seed for r in records if r.status == status and (seed := seed_of(r)) is not None}))


def _problems(index: Index, variants: list[Variant], seeds: tuple[int, ...]) -> list[Problem]:
    """Everything that is not ok, alike ones together; then the runs that have not reported how they went."""
    groups: dict[tuple[str, str, str, str], set[int]] = defaultdict(set)
    for record in index.records:
        if record.status != "ok":
            key = (str(record.subject.get("variant", "")), record.metric, record.status, record.reason or "")
            groups[key] |= {seed for seed in (seed_of(record),) if seed is not None}
    for v in variants:
        told = {seed_of(r) for r in index.runs(v.name) if r.status != "ok" or r.metric == "held_out_nats"}
        silent = {seed for seed in seeds if seed not in told and None not in told}
        if silent:
            groups[v.name, "held_out_nats", "not_measured", ""] |= silent
    same: dict[tuple, list[str]] = defaultdict(list)
    for (variant, metric, status, reason), found in groups.items():
        same[tuple(sorted(found)), metric, status, reason].append(variant)
    return [Problem(tuple(names), *rest) for rest, names in same.items()]


def _by_position(records: list[Record]) -> tuple[tuple[float, float, float], ...]:
    """(position_low, position_high, mean over seeds), in order of position."""
    bins: dict[tuple[float, float], list[float]] = defaultdict(list)
    for record in records:
        low, high = _whole(record.subject.get("position_low")), _whole(record.subject.get("position_high"))
        if record.value is not None and low is not None and high is not None:
            bins[low, high].append(record.value)
    return tuple((low, high, sum(values) / len(values)) for (low, high), values in sorted(bins.items()))


def _by_length(records: list[Record]) -> dict[int, float]:
    lengths = ((_whole(record.subject.get("length")), record.value) for record in records)
    return {length: value for length, value in lengths if length is not None and value is not None}
