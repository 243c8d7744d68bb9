"""Before the first step: the text, the rows of the grid, the number of steps, the folders of the runs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from termwise.results import FolderLock, RunFolder, atomic_write_text, config_hash
from termwise.study import recall
from termwise.study.budget import Speed, format_duration, grid_seconds, steps_within
from termwise.study.grid import BASELINE, EXTENDABLE, MAX_STEPS, Entry, RunConfig, StudyConfig, merge, resolve
from termwise.study.measures import read_result
from termwise.study.workers import Task, run_tasks

if TYPE_CHECKING:
    from termwise.data.text import Text

Say = Callable[[str], None]
ROWS_PER_STEP = {"paper": 36}
DEFAULT_ROWS = 8
# Scored held-out tokens of a run, unless asked otherwise: more costs minutes and moves the loss by less than a seed does.
EVALUATION_TOKENS = 131_072
# Recall may take this share of a budget; above it, it is left out unless asked for.
RECALL_SHARE = 1 / 3


@dataclass(frozen=True)
class Plan:
    """A study ready to start: everything that is the same for its runs, and the rows of its grid."""

    entries: tuple[Entry, ...]
    seeds: tuple[int, ...]
    shared: dict[str, Any]
    recall_steps: int | None
    speeds: dict[str, Speed]
    parameters: dict[str, int]
    left_out: str | None = None

    @property
    def steps(self) -> int:
        return self.shared["steps"]

    def config(self, entry: Entry, seed: int, kind: Literal["train", "recall", "speed"] = "train") -> RunConfig:
        """The run of one cell of the grid."""
        context = self.shared["context"]
        # The state's size does not depend on the seed.
        lengths = (max(1, context // 4), context) if seed == self.seeds[0] else ()
        fields = {"spec": entry.spec, "layer": entry.layer, "state_lengths": lengths} | self.shared
        run = RunConfig(kind=kind, variant=entry.name, seed=seed, **fields)
        return recall.recall_config(run, self.recall_steps or recall.MAX_STEPS) if kind == "recall" else run

    def runs(self, folder: RunFolder) -> Iterator[tuple[Path, RunConfig]]:
        """Folder and configuration of every run, in the order of work: one seed of all, recall, the other seeds."""
        for number, seed in enumerate(self.seeds):
            for entry in self.entries:
                yield folder.run_path(entry.name, seed), self.config(entry, seed)
            if number == 0 and self.recall_steps:
                for entry in self.entries:
                    path = folder.run_path(entry.name, seed)
                    yield path.with_name(f"recall-{seed}"), self.config(entry, seed, "recall")

    def estimated_seconds(self, num_workers: int) -> float | None:
        """Wall time of the whole grid; None where no speed was measured."""
        if set(self.speeds) != {entry.name for entry in self.entries}:
            return None
        return grid_seconds(
            list(self.speeds.values()), len(self.seeds), self.steps, self.recall_steps or 0, num_workers
        )


def default_folder(config: StudyConfig) -> Path:
    """termwise-runs/study-HASH of what was asked for, so that the same command finds its folder again."""
    return Path("termwise-runs") / f"study-{config_hash(config.model_dump(mode='json'))}"


@contextlib.contextmanager
def reserved(folder: Path, command: str) -> Iterator[None]:
    """Hold the lock of a run folder; what fails before there is a run.json leaves nothing behind.

    A folder that is not this command's is refused before anything is written into it.
    """
    RunFolder.check(folder, command)
    was_there = folder.exists()
    try:
        with FolderLock(folder):
            yield
    finally:
        if not was_there and not (folder / "run.json").exists():
            shutil.rmtree(folder, ignore_errors=True)


def open_study_text(config: StudyConfig, cache: Path) -> tuple[Text, dict[str, Any]]:
    """The text, and how every run opens it again."""
    from termwise.data.text import open_text

    settings = {name: _settings(config)[name] for name in ("column", "tokenizer", "document", "errors")}
    paths = list(config.data) or None
    text = open_text(paths, cache=cache, **settings)
    return text, settings | {"paths": paths, "cache": str(cache.absolute()), "fingerprint": text.fingerprint}


def open_study(
    config: StudyConfig, out: Path, arguments: Mapping[str, Any], entries: Sequence[Entry], say: Say
) -> tuple[RunFolder, dict[str, Any]]:
    """The run folder with its text in OUT/data, and how the runs open that."""
    before = _resolved_before(out)
    check_device(config.device)
    _refuse_other_settings(config, before, out)
    if before and before["data"]["given"] == (list(config.data) or None):
        text, how = open_study_text(config, out / "data")
        return open_folder(config, out, arguments, text, how, entries, say), how
    # A run folder begins empty, and a text that will be refused must not replace the one that is there.
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as beside:
        text, how = open_study_text(config, Path(beside) / "data")
        folder = open_folder(config, out, arguments, text, how, entries, say)
        if (out / "data").exists():
            os.rename(out / "data", Path(beside) / "replaced")
        os.rename(Path(beside) / "data", out / "data")
    return folder, how | {"cache": str((out / "data").absolute())}


def _settings(config: StudyConfig) -> dict[str, Any]:
    """What must be the same in every run of a study, as far as it is known before the text is read."""
    from termwise.models.presets import preset

    names = ("preset", "lr", "device", "dtype", "demonstration", "document", "column", "errors")
    tokenizer = config.tokenizer or preset(config.preset).tokenizer
    return {name: getattr(config, name) for name in names} | {"tokenizer": tokenizer} | sizes(config)


def _refuse_other_settings(config: StudyConfig, before: Mapping[str, Any], out: Path) -> None:
    asked = _settings(config).items()
    other = [
        f"{name} (was {before[name]!r}, now {value!r})" for name, value in asked if before and before[name] != value
    ]
    if other:
        raise ValueError(f"{out} was made with other settings: {', '.join(other)}; give a new --out")


def sizes(config: StudyConfig) -> dict[str, int]:
    """Context and tokens a step: as asked, else the preset's. ValueError for a step that is no whole number of windows."""
    from termwise.models.presets import preset

    context = config.context or preset(config.preset).context
    tokens_per_step = config.tokens_per_step or context * ROWS_PER_STEP.get(config.preset, DEFAULT_ROWS)
    if tokens_per_step % context:
        nearest = max(1, round(tokens_per_step / context)) * context
        raise ValueError(
            f"--tokens-per-step {tokens_per_step} is no whole number of windows of {context}; e.g. {nearest}"
        )
    return {"context": context, "tokens_per_step": tokens_per_step}


def check_text(text: Text, context: int) -> None:
    """ValueError for a text too short for one window."""
    if text.train.num_tokens < context + 1:
        raise ValueError(
            f"the training text has {text.train.num_tokens:,} tokens, fewer than one window of {context} + 1; "
            "give more text or a smaller --context"
        )


def check_device(name: str) -> None:
    """ValueError for a device that is not usable here, before anything is read."""
    import torch

    if name.startswith("cuda") and int(name.partition(":")[2] or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device={name!r}: {torch.cuda.device_count()} CUDA cards are usable here; --device auto takes what is"
        )
    if name == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device='mps': not usable here; --device auto takes what is")


def open_folder(
    config: StudyConfig,
    out: Path,
    arguments: Mapping[str, Any],
    text: Text,
    how: Mapping[str, Any],
    entries: Sequence[Entry],
    say: Say,
) -> RunFolder:
    """The run folder, new or taken up. More variants or seeds extend it; anything else that differs is a ValueError by name."""
    for note in text.notes:
        say(note)
    check_text(text, sizes(config)["context"])
    before = _resolved_before(out)
    data = _described(text, how)
    if before and before["data"]["fingerprint"] == text.fingerprint:
        data = before["data"]
    _refuse_other_data(before, data, out)
    rows = merge([*(Entry.from_dict(entry) for entry in before.get("variants", [])), *entries])
    grown = {
        "variants": [row.to_dict() for row in rows],
        "seeds": sorted({*before.get("seeds", []), *config.seed_list}),
    }
    learnt = {"data": data, "steps": _steps(config, before, out), "recall": before.get("recall")}
    scored = {"evaluation_tokens": min(config.evaluation_tokens or EVALUATION_TOKENS, text.held_out.num_tokens)}
    settings = _settings(config) | scored | grown | learnt
    folder = RunFolder.create(out, "study", dict(arguments), settings, extendable=(*EXTENDABLE, "steps"))
    folder.update(resolved=folder.run["resolved"] | grown)
    _say_extension(before, rows, grown["seeds"], say)
    return folder


def _described(text: Text, how: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {
        f"{name}_{what}": getattr(part, f"num_{what}")
        for name, part in (("train", text.train), ("held_out", text.held_out))
        for what in ("tokens", "documents", "bytes")
    }
    paths = how["paths"] or ["standard library"]
    return {"paths": paths, "given": how["paths"], "notes": text.notes, "fingerprint": text.fingerprint, "sizes": sizes}


def _steps(config: StudyConfig, before: Mapping[str, Any], out: Path) -> int | None:
    """Steps of every run: those of the folder, else as asked; None where a budget is still to be turned into steps."""
    known = before.get("steps")
    if config.steps and known and known != config.steps:
        raise ValueError(
            f"{out} was trained for steps={known}, now {config.steps}; its other runs need the same number: give a new --out"
        )
    return known or config.steps


def _resolved_before(out: Path) -> dict[str, Any]:
    return RunFolder.open(out).run["resolved"] if (out / "run.json").exists() else {}


def _refuse_other_data(before: Mapping[str, Any], data: Mapping[str, Any], out: Path) -> None:
    """RunFolder.create would refuse it too, with both descriptions printed whole."""
    if before and before["data"]["fingerprint"] != data["fingerprint"]:
        was, now = (f"{', '.join(d['paths'])} ({d['fingerprint']})" for d in (before["data"], data))
        raise ValueError(f"{out} was made with other settings: data (was {was}, now {now}); give a new --out")


def _say_extension(before: Mapping[str, Any], rows: Sequence[Entry], seeds: Sequence[int], say: Say) -> None:
    if not before:
        return
    new = [row.name for row in rows if row.name not in {entry["name"] for entry in before["variants"]}]
    more = sorted({*seeds} - {*before["seeds"]})
    parts = ([f"variants {', '.join(new)}"] if new else []) + ([f"seeds {', '.join(map(str, more))}"] if more else [])
    say("this folder is extended by " + " and ".join(parts) if parts else "this folder is taken up where it stopped")


def make_plan(
    config: StudyConfig, folder: RunFolder, how: Mapping[str, Any], num_workers: int, seconds_gone: Callable[[], float], say: Say,
    *, always_measure: bool = False,
) -> Plan:  # fmt: skip
    """Steps and recall of the grid: as given, as written in the folder, or from speeds measured now."""
    resolved = folder.run["resolved"]
    entries = tuple(Entry.from_dict(entry) for entry in resolved["variants"])
    names = ("preset", "tokens_per_step", "context", "evaluation_tokens", "lr", "device", "dtype")
    shared = {name: resolved[name] for name in names} | {"text": dict(how), "steps": resolved["steps"] or MAX_STEPS}
    plan = Plan(entries, tuple(resolved["seeds"]), shared, None, {}, {})
    speeds: dict[str, Speed] = {}
    parameters: dict[str, int] = {}
    if resolved["steps"] is None or always_measure:
        say("measuring the speed of each variant here")
        speeds, parameters = measure_speeds(plan, folder.path / "speed", num_workers)
    recall_steps, left_out = _decide_recall(config, resolved, speeds, len(plan.seeds), num_workers, seconds_gone())
    steps = resolved["steps"]
    if steps is None:
        assert config.budget is not None
        left = config.budget - seconds_gone()
        steps = steps_within(left, list(speeds.values()), len(plan.seeds), recall_steps or 0, num_workers, MAX_STEPS)
        say(f"the budget of {format_duration(config.budget)} gives {steps:,} steps to every run")
    folder.update(resolved=resolved | {"steps": steps, "recall": {"steps": recall_steps, "left_out": left_out}})
    return Plan(entries, plan.seeds, shared | {"steps": steps}, recall_steps, speeds, parameters, left_out)


def _decide_recall(
    config: StudyConfig,
    resolved: Mapping[str, Any],
    speeds: Mapping[str, Speed],
    num_seeds: int,
    num_workers: int,
    gone: float,
) -> tuple[int | None, str | None]:
    """(steps of the recall runs, or None with the reason). What the folder already measures stays measured."""
    before = resolved.get("recall") or {}
    if config.recall is False:
        return None, "left out by --no-recall"
    if config.recall or before.get("steps"):
        return recall.MAX_STEPS, None
    if config.budget is None or not speeds:
        return (None, before["left_out"]) if before else (recall.MAX_STEPS, None)
    longest = grid_seconds(list(speeds.values()), 0, 0, recall.MAX_STEPS, num_workers)
    if longest > RECALL_SHARE * (config.budget - gone):
        took = f"it may take {format_duration(longest)} of the budget of {format_duration(config.budget)}"
        return None, f"{took}; --recall measures it all the same"
    return recall.MAX_STEPS, None


def measure_speeds(plan: Plan, folder: Path, num_workers: int) -> tuple[dict[str, Speed], dict[str, int]]:
    """Speed and parameters of every variant, measured by as many workers at once as will train."""
    paths = []
    for number, entry in enumerate(plan.entries):
        paths.append(folder / str(number))
        write_job(paths[-1], plan.config(entry, plan.seeds[0], "speed"))
    tasks = [Task(tuple(paths[start::num_workers])) for start in range(min(num_workers, len(paths)))]
    run_tasks(tasks, num_workers)
    results = {}
    for path, entry in zip(paths, plan.entries, strict=True):
        results[entry.name] = read_result(path) or {"status": "failed", "reason": (path / "worker.log").as_posix()}
    good = {name: result for name, result in results.items() if result["status"] == "ok"}
    if not good:
        reasons = "; ".join(f"{name}: {result['reason']}" for name, result in results.items())
        raise ValueError(f"no variant could be trained here ({reasons})")
    measured = sum(result["seconds"] for result in good.values())
    start = max(0.0, (sum(task.seconds for task in tasks) - measured) / len(tasks))
    speeds = {name: _speed(result, plan.shared["evaluation_tokens"], start) for name, result in good.items()}
    return speeds, {name: result["parameters"] for name, result in good.items()}


def _speed(result: Mapping[str, Any], evaluation_tokens: int, start: float) -> Speed:
    evaluation = result["seconds_per_evaluated_token"] * evaluation_tokens + result["seconds_of_other_measures"]
    return Speed(
        result["seconds_per_step"], evaluation, result["seconds_per_recall_step"], start + result["seconds_to_build"]
    )


def write_job(folder: Path, config: RunConfig) -> None:
    """job.json of a run that is not finished."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config.model_dump(mode="json"), indent=1) + "\n"
    path = folder / "job.json"
    if not (folder / "result.json").exists() and (not path.exists() or path.read_text(encoding="utf-8") != text):
        atomic_write_text(path, text)


def has_baseline(plan: Plan) -> bool:
    """Whether there is a softmax to compare with."""
    return any(entry.name == BASELINE for entry in plan.entries)


def study_entries(config: StudyConfig, say: Say) -> list[Entry]:
    """The rows asked for, with what the reader must know said aloud."""
    entries = resolve(config.variants, baseline=config.baseline)
    asked = resolve(config.variants, baseline=False)
    if len(entries) > len(asked):
        say("softmax is added as the baseline (--no-baseline leaves it out)")
    for entry in entries:
        if entry.equal_names:
            say(f"{entry.name} is equal to {', '.join(entry.equal_names)}: run once")
        for part in entry.parts_that_cancel:
            say(f"{entry.name}: {part}")
    return entries
