"""`termwise bench`: which rows are still to be measured, in which order; every figure a record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from termwise.bench.config import ATTENTION_MEASURES, BASELINE, EXTENDABLE, MODEL_MEASURES, BenchConfig
from termwise.bench.crossing import crossing
from termwise.data.sizes import counted
from termwise.results import Record, RunFolder, config_hash, now

if TYPE_CHECKING:
    from rich.console import Console

    from termwise.bench.inputs import Shape
    from termwise.bench.rows import Row
    from termwise.models.naming import Named

Say = Callable[[str], None]


@dataclass(frozen=True)
class Subject:
    """One variant or model to be measured, and what of it."""

    named: Named
    measures: tuple[str, ...]

    @property
    def name(self) -> str:
        """As it was given."""
        return self.named.name


@dataclass(frozen=True)
class Group:
    """Rows that are measured in turn with the baseline: one measure at one length."""

    measure: str
    length: int
    names: tuple[str, ...]


def describe(config: BenchConfig, out: Path) -> dict[str, Any]:
    """What would be measured in `out` and about how long it takes."""
    from termwise.bench.estimate import estimated_seconds
    from termwise.bench.rows import baseline_of
    from termwise.models.devices import usable_device

    usable_device(config.device)
    RunFolder.check(out, "bench", config.model_dump(mode="json"), EXTENDABLE)
    subjects = find(config)
    RunFolder.check_weights(out, described(subjects))
    groups = list(grouped(config, subjects, set()))
    return {
        "rows": sum(1 + len(group.names) for group in groups),
        "measures": list(dict.fromkeys(group.measure for group in groups)),
        "lengths": list(config.lengths),
        "variants": {subject.name: ", ".join(subject.measures) for subject in subjects},
        "baseline": "; ".join(dict.fromkeys(baseline_of(group.measure) for group in groups)),
        "seconds": estimated_seconds(config, groups, subjects),
    }


def find(config: BenchConfig) -> list[Subject]:
    """Every subject with its measures. ValueError for an unknown name, and for a model asked for what only a variant has."""
    from termwise.models.naming import find_model

    found = []
    for name in config.variants:
        if name == BASELINE:
            raise ValueError(f"{BASELINE!r} is the baseline, which is measured anyway; name variants or model folders")
        named = find_model(name)
        usual = MODEL_MEASURES if named.folder else ATTENTION_MEASURES[:3]
        allowed = MODEL_MEASURES if named.folder else (*ATTENTION_MEASURES, *MODEL_MEASURES)
        measures = tuple(measure for measure in config.measures or usual if measure in allowed)
        if not measures:
            raise ValueError(
                f"--measures {','.join(config.measures)}: {name} is a model folder, which has {', '.join(MODEL_MEASURES)}; "
                "the others are measured on variants"
            )
        found.append(Subject(named, measures))
    return found


def grouped(config: BenchConfig, subjects: list[Subject], done: set[tuple[str, str, int]]) -> Iterator[Group]:
    """What is left to measure, the short lengths first."""
    wanted = [measure for measure in (*ATTENTION_MEASURES, *MODEL_MEASURES)]
    for length in config.lengths:
        for measure in wanted:
            names = [subject.name for subject in subjects if measure in subject.measures]
            left = tuple(name for name in names if (name, measure, length) not in done)
            if left:
                yield Group(measure, length, left)


def run_bench(config: BenchConfig, out: Path, *, arguments: Mapping[str, Any], console: Console) -> RunFolder:
    """Measure what is not measured yet; each figure a record in `out`, whose lock the caller holds."""
    from termwise.bench.inputs import Shape
    from termwise.bench.timing import num_threads

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    subjects = find(config)
    shape = Shape.of(config)
    for subject in subjects:
        if subject.named.note:
            say(subject.named.note)
    is_new = not (out / "run.json").exists()
    RunFolder.check_weights(out, described(subjects))
    folder = RunFolder.create(out, "bench", dict(arguments), config.model_dump(mode="json"), extendable=EXTENDABLE)
    try:
        with num_threads(config.threads):
            _measure(config, folder, subjects, shape, say)
    except (ValueError, OSError):
        if is_new and not folder.records():
            (out / "run.json").unlink()
        raise
    return folder


def _measure(config: BenchConfig, folder: RunFolder, subjects: list[Subject], shape: Shape, say: Say) -> None:
    from termwise.bench.estimate import estimated_seconds, in_words
    from termwise.bench.rows import Lines, known, line, records

    done = known(folder)
    groups = list(grouped(config, subjects, done))
    kept = {entry["name"]: entry for entry in (*folder.run.get("variants", ()), *described(subjects))}
    folder.update(variants=list(kept.values()))
    if not groups:
        say("everything is measured already; another --out measures again")
        return
    say(f"{counted(len(groups), 'group')} of rows, {in_words(estimated_seconds(config, groups, subjects))} or so")
    _limits(config, folder, shape)
    lines, run_id = Lines(folder.path), folder.run["run_id"]
    for number, group in enumerate(groups, start=1):
        started = time.perf_counter()
        rows = measured(group, config, subjects, shape)
        fresh = [row for row in rows if (row.variant, row.measure, row.length) not in done]
        lines.add([line(row, config, folder.run) for row in fresh])
        folder.append(*(record for row in fresh for record in records(row, config, run_id)))
        done |= {(row.variant, row.measure, row.length) for row in fresh}
        spent = time.perf_counter() - started
        left = in_words(estimated_seconds(config, groups[number:], subjects))
        say(f"[{number}/{len(groups)}] {sentence(group, rows)} ({spent:.0f} s; {left} left)")
    folder.append(*crossings(folder, config))


def measured(group: Group, config: BenchConfig, subjects: list[Subject], shape: Shape) -> list[Row]:
    """The rows of one group, the baseline first."""
    from termwise.attention.catalogue import catalogue
    from termwise.bench import decode, memory, prefill, training

    if group.measure in MODEL_MEASURES:
        from termwise.bench import models

        named = [subject.named for subject in subjects if subject.name in group.names]
        measure = models.measure_step if group.measure == "step" else models.measure_generate
        return measure(named, config, shape, group.length)
    if group.measure == "memory":
        return memory.measure(group.names, config, group.length)
    specs = {name: catalogue.variant(name).spec for name in group.names}
    if group.measure == "training":
        return training.measure(specs, config, shape, group.length)
    if group.measure == "decode":
        return decode.measure(specs, shape, group.length, config.repeats, config.seed, config.half_state)
    return prefill.measure(specs, shape, group.length, config.repeats, config.seed)


def described(subjects: list[Subject]) -> list[dict[str, Any]]:
    """The subjects as run.json keeps them for the report, of a folder with its weights."""
    from termwise.attention.catalogue import catalogue
    from termwise.models.naming import fingerprint

    found: list[dict[str, Any]] = [{"name": BASELINE, "formula": "softmax, torch's fused attention", "short_name": ""}]
    for subject in subjects:
        if subject.named.folder:
            told = {"name": subject.name, "formula": "a model folder", "short_name": ""}
            found.append(told | {"weights": fingerprint(subject.named.folder)})
            continue
        spec = catalogue.variant(subject.name).spec
        found.append({"name": subject.name, "formula": spec.formula, "short_name": spec.short_name})
    return found


def _limits(config: BenchConfig, folder: RunFolder, shape: Shape) -> None:
    from termwise.bench import limits

    common = {
        "run_id": folder.run["run_id"],
        "started": now(),
        "config_hash": config_hash(config.model_dump(mode="json")),
    }
    subject = {"machine": folder.run["machine"]["cpu"], "threads": config.threads, "dtype": config.dtype}
    for metric, (unit, spread) in limits.measure(shape).items():
        folder.append(
            Record(
                kind="speed",
                subject=subject,
                metric=metric,
                unit=unit,
                value=spread.median,
                low=spread.low,
                high=spread.high,
                level=0.8,
                n=spread.n,
                method="median and percentiles 10 and 90",
                **common,
            )
        )


def crossings(folder: RunFolder, config: BenchConfig) -> Iterator[Record]:
    """From which length on each subject beats the baseline, by measure."""
    from termwise.bench.rows import baseline_of

    ratios: dict[tuple[str, str, str | None], dict[int, float]] = {}
    for record in folder.records():
        measure = record.subject.get("measure")
        if record.metric == f"{measure}_ratio" and record.value:
            key = (record.subject["variant"], str(measure), record.form if measure == "training" else None)
            ratios.setdefault(key, {})[record.subject["length"]] = record.value
    for (variant, measure, form), by_length in ratios.items():
        found = crossing(by_length)
        reason = None if found else f"no crossing up to {max(by_length):,}"
        yield Record(
            run_id=folder.run["run_id"], kind="memory" if measure == "memory" else "speed", metric="crossing",
            subject={"variant": variant, "measure": measure, "shortest": min(by_length), "longest": max(by_length)},
            value=found, unit="tokens", status="ok" if found else "not_measured", reason=reason, form=form,
            method="log-log interpolation between measured lengths", baseline=baseline_of(measure),
            config_hash=config_hash(config.model_dump(mode="json")),
        )  # fmt: skip


def sentence(group: Group, rows: list[Row]) -> str:
    """A group for people: its measure, its length, the medians."""
    from termwise.bench.estimate import in_words
    from termwise.bench.timing import Spread

    told = []
    for row in rows:
        if not row.samples:
            told.append(f"{row.variant} {row.failed or row.missing}")
        elif group.measure == "memory":
            told.append(f"{row.variant} {row.samples[0] / 2**20:.1f} MiB")
        else:
            told.append(f"{row.variant} {in_words(Spread.of(list(row.samples)).median)}")
    return f"{group.measure} at {group.length:,}: " + ", ".join(told)


def json_lines(folder: Path) -> str:
    """What --json prints: bench.jsonl as it is."""
    path = folder / "bench.jsonl"
    return path.read_text(encoding="utf-8") if path.exists() else ""
