"""A study as its readers see it: one row a variant, every figure either measured or missing with its reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from termwise.report.index import Index, Measured, largest, mean, seed_of, whole
from termwise.report.read import Curve, Reading, read_curve
from termwise.results import Record


@dataclass(frozen=True)
class Variant:
    """One variant with everything the records say of it. `order` is its place in run.json, `seeds` are those planned.

    A control is another variant trained a second time under other seeds: it is compared, and is no candidate. `weights` is the
    fingerprint of a folder that an evaluation scored.
    """

    name: str
    order: int
    formula: str
    short_name: str
    note: str
    equal_names: tuple[str, ...]
    parts_that_cancel: tuple[str, ...]
    is_baseline: bool
    is_control: bool
    seeds: tuple[int, ...]
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
    weights: str = ""


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
    """A whole study. `variants` are sorted by held-out loss, the unmeasured last, in the order of run.json.

    `seeds` are those of the variants compared; a control has its own.
    """

    reading: Reading
    baseline: str
    context: int | None
    seeds: tuple[int, ...]
    variants: tuple[Variant, ...]
    problems: tuple[Problem, ...]
    by_position: dict[str, tuple[tuple[float, float, float], ...]]
    by_distance: dict[str, dict[tuple[int, int], Measured]]
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

    @property
    def compared(self) -> tuple[Variant, ...]:
        """The variants that the study is about: all but its control."""
        return tuple(v for v in self.variants if not v.is_control)

    @property
    def control(self) -> Variant | None:
        """The baseline trained a second time, where there is one."""
        return next((v for v in self.variants if v.is_control), None)

    def curves(self) -> list[Curve]:
        """Training curves of every run that logged a step."""
        found = (read_curve(self.reading.folder, v.name, seed) for v in self.variants for seed in v.seeds)
        return [curve for curve in found if curve is not None]


def view(reading: Reading) -> View:
    """Everything the page and the terminal show, gathered from one folder's records."""
    every = Index(reading.records)
    described = _described(reading, every)
    names = [entry["name"] for entry in described]
    index = Index(r for r in every.records if "variant" not in r.subject or r.subject["variant"] in names)
    controls = {entry["name"] for entry in described if entry.get("control_of")}
    seeds = _seeds(reading, (r for r in index.records if r.subject.get("variant") not in controls))
    baseline = _baseline(index, names)
    context = reading.setting("context")
    variants = [_variant(order, entry, index, baseline, context, seeds) for order, entry in enumerate(described)]
    variants.sort(key=lambda v: (v.loss.value is None, v.loss.value or 0.0, v.order))
    return View(
        reading=reading,
        baseline=baseline,
        context=context,
        seeds=seeds,
        variants=tuple(variants),
        problems=tuple(_problems(index, variants if _is_loss_asked(reading) else [])),
        by_position={name: _by_position(index.of("loss", "held_out_by_position", name)) for name in names},
        by_distance={name: _by_distance(index.of("recall", "accuracy_by_distance", name)) for name in names},
        state_by_length={name: _by_length(index.of("memory", "state", name)) for name in names},
        num_documents=len({str(r.subject.get("document")) for r in index.records if r.metric == "held_out_document"}),
        num_foreign=len(every.records) - len(index.records),
    )


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


def _seeds(reading: Reading, records: Iterable[Record]) -> tuple[int, ...]:
    asked = reading.setting("seeds")
    planned = range(asked) if isinstance(asked, int) else (asked if isinstance(asked, list) else ())
    found = map(seed_of, records)
    return tuple(sorted({seed for seed in (*map(whole, planned), *found) if seed is not None}))


def _baseline(index: Index, names: list[str]) -> str:
    """The variant the records compare with; before there is a comparison, softmax."""
    compared = (r.baseline for r in index.records if r.metric in ("paired_difference", "verdict") and r.baseline)
    return next(compared, "softmax" if "softmax" in names else "")


def _variant(
    order: int, entry: dict[str, Any], index: Index, baseline: str, context: int | None, seeds: tuple[int, ...]
) -> Variant:
    name, offset = entry["name"], whole(entry.get("seed_offset")) or 0
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
        is_control=bool(entry.get("control_of")),
        seeds=tuple(seed + offset for seed in seeds),
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
        weights=str(entry.get("weights") or ""),
    )


def _seeds_where(records: Iterable[Record], status: str) -> tuple[int, ...]:
    return tuple(sorted({seed for r in records if r.status == status and (seed := seed_of(r)) is not None}))


def _problems(index: Index, variants: list[Variant]) -> list[Problem]:
    """Everything that is not ok, alike ones together; then the runs of `variants` that have not reported how they went."""
    groups: dict[tuple[str, str, str, str], set[int]] = defaultdict(set)
    for record in index.records:
        if record.status != "ok":
            key = (str(record.subject.get("variant", "")), record.metric, record.status, record.reason or "")
            groups[key] |= {seed for seed in (seed_of(record),) if seed is not None}
    for v in variants:
        told = {seed_of(r) for r in index.runs(v.name) if r.status != "ok" or r.metric == "held_out_nats"}
        silent = {seed for seed in v.seeds if seed not in told and None not in told}
        if silent:
            groups[v.name, "held_out_nats", "not_measured", ""] |= silent
    same: dict[tuple, list[str]] = defaultdict(list)
    for (variant, metric, status, reason), found in groups.items():
        same[tuple(sorted(found)), metric, status, reason].append(variant)
    return [Problem(tuple(names), *rest) for rest, names in same.items()]


def _by_distance(records: list[Record]) -> dict[tuple[int, int], Measured]:
    """Recall by how far back the key was last seen, from the nearest on."""
    found: dict[tuple[int, int], list[Record]] = defaultdict(list)
    for record in records:
        low, high = (whole(record.subject.get(f"distance_{end}")) for end in ("low", "high"))
        if low is not None and high is not None:
            found[low, high].append(record)
    return {ends: mean(found[ends]) for ends in sorted(found)}


def _by_position(records: list[Record]) -> tuple[tuple[float, float, float], ...]:
    """(position_low, position_high, mean over seeds), in order of position."""
    bins: dict[tuple[float, float], list[float]] = defaultdict(list)
    for record in records:
        low, high = whole(record.subject.get("position_low")), whole(record.subject.get("position_high"))
        if record.value is not None and low is not None and high is not None:
            bins[low, high].append(record.value)
    return tuple((low, high, sum(values) / len(values)) for (low, high), values in sorted(bins.items()))


def _by_length(records: list[Record]) -> dict[int, float]:
    lengths = ((whole(record.subject.get("length")), record.value) for record in records)
    return {length: value for length, value in lengths if length is not None and value is not None}
