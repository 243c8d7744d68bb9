"""One measured row, as records of a run folder and as a line with llama-bench's names."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from termwise.bench.config import BASELINE, BenchConfig
from termwise.bench.timing import Spread
from termwise.results import Record, RunFolder, atomic_write_text, config_hash, now

UNITS = {
    "prefill": "s", "decode": "s/token", "memory": "B", "training": "s", "step": "s/token", "generate": "s/token",
}  # fmt: skip
BASELINES = {
    "step": "transformers' Llama, fused attention, static cache",
    "generate": "transformers' Llama, fused attention, static cache",
    "training": "torch scaled_dot_product_attention",
}
PERCENTILES = 0.8  # between percentiles 10 and 90


@dataclass(frozen=True)
class Figure:
    """A further figure of a row."""

    kind: str
    metric: str
    unit: str
    value: float | None
    spread: Spread | None = None
    method: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Row:
    """What was measured of one subject at one length. `samples` are in the unit of the measure, one a repeat.

    `ratios`: the baseline's time over this one's in the same round. `failed` or `missing` say why there are no samples.
    """

    variant: str
    measure: str
    length: int
    samples: tuple[float, ...] = ()
    num_tokens: int = 1
    form: str | None = None
    why: str | None = None
    ratios: tuple[float, ...] = ()
    figures: tuple[Figure, ...] = ()
    failed: str | None = None
    missing: str | None = None
    method: str = "median and percentiles 10 and 90 of interleaved repeats"
    started: str = field(default_factory=now)

    @property
    def is_baseline(self) -> bool:
        """Whether it is what the others are compared with."""
        return self.variant == BASELINE

    def subject(self, config: BenchConfig) -> dict[str, Any]:
        """What the records of this row are about."""
        names = ("batch", "heads", "kv_heads", "key_width", "value_width", "dtype", "threads")
        shape = {} if self.measure in ("step", "generate") else {name: getattr(config, name) for name in names}
        return {"variant": self.variant, "measure": self.measure, "length": self.length} | shape

    @property
    def sizes(self) -> dict[str, int]:
        """Tokens of the prompt, generated, and there before."""
        if self.measure in ("decode", "step", "generate"):
            return {"n_prompt": 0, "n_gen": self.num_tokens, "n_depth": self.length}
        return {"n_prompt": self.length, "n_gen": 0, "n_depth": 0}


def records(row: Row, config: BenchConfig, run_id: str) -> Iterator[Record]:
    """The records of one row: its figure, its ratio to the baseline, whatever else was found."""
    common: dict[str, Any] = {
        "run_id": run_id, "subject": row.subject(config), "started": row.started, "form": row.form,
        "config_hash": config_hash(config.model_dump(mode="json")),
    }  # fmt: skip
    kind = "memory" if row.measure == "memory" else "speed"
    main: dict[str, Any] = {"kind": kind, "metric": row.measure, "unit": UNITS[row.measure], **common}
    if not row.samples:
        status = "failed" if row.failed else "not_measured"
        yield Record(**main, value=None, status=status, reason=row.failed or row.missing)
        return
    spread = Spread.of(list(row.samples))
    yield Record(**main, **_bounds(spread), method=row.method, reason=row.why)
    if row.ratios:
        ratio = _bounds(Spread.of(list(row.ratios)))
        how = "baseline over this, round by round" if kind == "speed" else "baseline over this"
        yield Record(
            kind=kind,
            metric=f"{row.measure}_ratio",
            unit="1",
            method=how,
            baseline=baseline_of(row.measure),
            **ratio,
            **common,
        )
    for figure in row.figures:
        bounds = {"value": figure.value} if figure.spread is None else _bounds(figure.spread)
        missing: dict[str, Any] = {} if bounds["value"] is not None else {"status": "not_measured"}
        yield Record(
            kind=figure.kind, metric=figure.metric, unit=figure.unit, method=figure.method, reason=figure.reason,
            **bounds, **missing, **common,
        )  # fmt: skip


def baseline_of(measure: str) -> str:
    """What the figures of a measure are compared with."""
    return BASELINES.get(measure, "torch scaled_dot_product_attention, key/value cache written in place")


def _bounds(spread: Spread) -> dict[str, Any]:
    if spread.n == 1:
        return {"value": spread.median, "n": 1}
    return {"value": spread.median, "low": spread.low, "high": spread.high, "level": PERCENTILES, "n": spread.n}


def line(row: Row, config: BenchConfig, run: dict[str, Any]) -> dict[str, Any]:
    """One JSON line, named as llama-bench names things; times in ns, speeds in tokens/s, null where there is no figure."""
    is_timed = bool(row.samples) and row.measure != "memory"
    tokens = config.batch * (1 if UNITS[row.measure] == "s/token" else row.length)
    nanoseconds = [sample * 1e9 * (row.num_tokens if tokens == config.batch else 1) for sample in row.samples]
    speeds = [tokens / sample for sample in row.samples] if is_timed else []
    found = {
        "test": row.measure, "model_filename": row.variant, "model_type": row.form, "cpu_info": run["machine"]["cpu"],
        "build_commit": run["versions"].get("termwise"), "backends": f"torch {run['versions'].get('torch')}",
        "n_threads": config.threads, "n_batch": config.batch, "type_k": config.dtype, "type_v": config.dtype,
        **row.sizes, "test_time": row.started,
        "avg_ns": statistics.fmean(nanoseconds) if is_timed else None,
        "stddev_ns": _deviation(nanoseconds) if is_timed else None,
        "avg_ts": statistics.fmean(speeds) if speeds else None, "stddev_ts": _deviation(speeds) if speeds else None,
        "samples_ns": nanoseconds if is_timed else [], "samples_ts": speeds,
    }  # fmt: skip
    found |= {"memory_bytes": row.samples[0] if row.measure == "memory" and row.samples else None}
    found |= {figure.metric: figure.value for figure in row.figures if figure.spread is None}
    ratio = statistics.median(row.ratios) if row.ratios else None
    return found | {"ratio_to_baseline": ratio, "error": row.failed or row.missing}


def _deviation(samples: list[float]) -> float:
    return statistics.stdev(samples) if len(samples) > 1 else 0.0


class Lines:
    """OUT/bench.jsonl: one line a row, replaced whole; a row measured again takes the place of the old one."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "bench.jsonl"
        self._lines: dict[tuple[Any, ...], dict[str, Any]] = {}
        for text in self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else ():
            self._keep(json.loads(text))

    def _keep(self, found: dict[str, Any]) -> None:
        names = ("test", "model_filename", "model_type", "n_prompt", "n_depth")
        self._lines[tuple(found[name] for name in names)] = found

    def add(self, found: list[dict[str, Any]]) -> None:
        """Keep these too, on disk when this returns."""
        for one in found:
            self._keep(one)
        atomic_write_text(self._path, "".join(json.dumps(one, allow_nan=False) + "\n" for one in self._lines.values()))


def known(folder: RunFolder) -> set[tuple[str, str, int]]:
    """(variant, measure, length) of every row that has its figure, or failed for good."""
    found = set()
    for record in folder.records():
        if record.status in ("ok", "failed") and record.metric == record.subject.get("measure"):
            found.add((record.subject["variant"], record.metric, record.subject["length"]))
    return found
