"""A benchmark: seconds of a decoded token beside fused attention, where it becomes faster, bytes of state, the machine."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from termwise.report.bench_view import BASELINE, BenchView, Series, bench_view
from termwise.report.decision.figures import (
    LEVEL,
    MISSING,
    Figure,
    Pair,
    as_evidence,
    exactly,
    missing,
    without_interval,
)
from termwise.report.decision.gathering.claim import Claim, Keys, about, is_same, model_keys, variant_keys, weights_key
from termwise.report.decision.gathering.complexity import kernels_of
from termwise.report.read import Reading
from termwise.results import Record

# Whole models before attention alone: what a user waits for.
MEASURES = ("step", "generate", "decode")
SPREAD = 0.8  # between percentiles 10 and 90, which its records hold
FOLDER = "a model folder"  # what run.json calls the formula of one


def subjects(reading: Reading) -> list[Claim]:
    """Everything that was measured, for a report that has nothing else to decide on."""
    found: dict[str, int] = {}
    for series in bench_view(reading).series:
        if series.variant != BASELINE and series.measure in MEASURES:
            found[series.variant] = max([found.get(series.variant, 0), *series.values])
    return [
        Claim(**about(reading), names=(name,), keys=_keys(name, reading), today=BASELINE, context=longest or None)
        for name, longest in found.items()
    ]


def figures(reading: Reading, candidates: Sequence[Claim]) -> list[Claim | None]:
    """Time and bytes of each candidate at its context; None where this run did not measure it."""
    shown = bench_view(reading)
    return [_figures(shown, candidate) for candidate in candidates]


def _figures(shown: BenchView, candidate: Claim) -> Claim | None:
    reading = shown.reading
    mine = [s for s in shown.series if s.variant != BASELINE and is_same(_keys(s.variant, reading), candidate.keys)]
    decoding = sorted((s for s in mine if s.measure in MEASURES), key=lambda s: MEASURES.index(s.measure))
    if not mine:
        return None
    latency, crossing = Pair(), MISSING
    for series in reversed(decoding):
        found = _latency(series, shown, candidate)
        if found.change.is_there or not latency.change.is_there:
            latency, crossing = found, _crossing(series, reading)
    return Claim(
        **about(reading),
        names=candidate.names,
        context=candidate.context,
        latency=latency,
        crossing=crossing,
        memory=_memory(mine, shown, candidate),
        kernels=_kernels(mine[0].variant, reading),
        machine=_machine(reading),
        lacks_weights=_lacks_weights(mine[0].variant, reading),
        dtype=str(reading.setting("dtype", "")),
    )


def _entry(name: str, reading: Reading) -> dict[str, Any]:
    """What run.json says of a subject."""
    entries = reading.run.get("variants")
    found = (e for e in entries if isinstance(e, dict) and e.get("name") == name) if isinstance(entries, list) else ()
    return next(iter(found), {})


def _keys(name: str, reading: Reading) -> Keys:
    """What a subject is known by: its place where it is a folder, else its names."""
    entry = _entry(name, reading)
    if entry.get("formula") != FOLDER:
        return variant_keys((name, entry.get("short_name")))
    return model_keys(name) | weights_key(entry.get("weights"))


def _lacks_weights(name: str, reading: Reading) -> bool:
    entry = _entry(name, reading)
    return entry.get("formula") == FOLDER and not weights_key(entry.get("weights"))


def _kernels(name: str, reading: Reading) -> frozenset[str] | None:
    short = _entry(name, reading).get("short_name")
    return kernels_of([short]) if isinstance(short, str) and short else None


def _machine(reading: Reading) -> str:
    """The processor, and the device where that is another one."""
    told = reading.run.get("machine")
    cpu = str(told.get("cpu") or "") if isinstance(told, dict) else ""
    device = str(reading.setting("device", "cpu"))
    return cpu if device in ("cpu", "auto") else f"{cpu}, {device}"


def _latency(series: Series, shown: BenchView, candidate: Claim) -> Pair:
    """Seconds a token, and candidate / baseline: the recorded ratio the other way round."""
    source, context = str(shown.reading.folder.path), candidate.context
    lengths = tuple(series.values)
    if context is None or context not in series.main:
        return Pair(change=missing("decision.why.lengths", source, context=context, lengths=lengths))
    main, ratio = series.main[context], series.ratio.get(context)
    if main.value is None:
        return Pair(change=missing(main.reason or "decision.why.not_timed", source))
    base = next((s for s in shown.series if s.variant == BASELINE and s.measure == series.measure), None)
    today = _seconds(base.main.get(context) if base else None, source)
    change = (
        _inverse(ratio, _num_compared(series, shown), source)
        if ratio is not None
        else missing("decision.why.no_baseline", source)
    )
    if change.is_there and series.measure == "decode":
        sizes = tuple((name, shown.reading.setting(name)) for name in ("kv_heads", "key_width"))
        change = dataclasses.replace(change, why="decision.why.attention_alone", fields=sizes)
    return Pair(today, _seconds(main, source), change)


def _num_compared(series: Series, shown: BenchView) -> int:
    """How many subjects of the run were set against the baseline in the same measure."""
    return sum(one.measure == series.measure and bool(one.ratio) for one in shown.series)


def _seconds(record: Record | None, source: str) -> Figure:
    if record is None or record.value is None:
        return missing((record.reason if record else None) or "decision.why.no_baseline", source)
    return Figure(record.value, record.low, record.high, record.level, record.n, record.unit, source)


def _inverse(ratio: Record, num_compared: int, source: str) -> Figure:
    """Candidate / baseline from the recorded baseline / candidate; its interval is one of the median, Bonferroni over all compared."""
    from termwise.statistics.intervals import around_median

    if ratio.value is None or ratio.value <= 0:
        return missing(ratio.reason or "decision.why.not_timed", source)
    alone = Figure(1 / ratio.value, n=ratio.n, unit="1", source=source, why="decision.why.no_interval")
    if not (ratio.low and ratio.high and ratio.n and ratio.low > 0):
        return alone
    if ratio.level is None or abs(ratio.level - SPREAD) > 1e-9:
        return without_interval(alone, "decision.why.other_level", level=ratio.level, needed=SPREAD)
    middle, low, high = (math.log(number) for number in (ratio.value, ratio.low, ratio.high))
    interval = around_median(middle, low, high, ratio.n, level=1 - (1 - LEVEL) / num_compared)
    if interval is None:
        return alone
    ends = (math.exp(-interval.high), math.exp(-interval.low))
    return as_evidence(Figure(1 / ratio.value, *ends, interval.level, ratio.n, "1", source))


def _crossing(series: Series, reading: Reading) -> Figure:
    record, source = series.crossing, str(reading.folder.path)
    if record is None or record.value is None:
        return missing((record.reason if record else None) or "decision.why.not_timed", source)
    return Figure(record.value, unit="tokens", source=source)


def _memory(mine: list[Series], shown: BenchView, candidate: Claim) -> Pair:
    """Bytes of the states over those of the cache, both as the benchmark held them."""
    source, context = str(shown.reading.folder.path), candidate.context
    for series in mine:
        if context is None:
            break
        found = (shown.figure(name, series.label, series.measure, context) for name in ("state", "cache"))
        state, cache = (one.value if one is not None else None for one in found)
        if state is not None and cache:
            return Pair(exactly(cache, "B", source), exactly(state, "B", source), exactly(state / cache, "1", source))
    return Pair(change=missing("decision.why.lengths", source, context=context, lengths=()))
