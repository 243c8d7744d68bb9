"""Before the first step: the rows of the grid, the number of steps, whether recall is measured."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from termwise.results import RunFolder, atomic_write_text, format_duration
from termwise.study import recall
from termwise.study.budget import Grid, Speed, scored_within, steps_within
from termwise.study.grid import BASELINE, MAX_STEPS, Entry, RunConfig, StudyConfig, control_of, resolve
from termwise.study.measures import read_result
from termwise.study.opening import Say
from termwise.study.workers import Task, run_tasks

# Of a budget, held-out scores take this share at most, down to so many tokens: what is left trains.
SCORING_SHARE, LEAST_EVALUATION_TOKENS = 0.15, 16_384
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
        """The run of one cell of the grid; a control's has a seed of its own."""
        context = self.shared["context"]
        # The state's size does not depend on the seed.
        lengths = (max(1, context // 4), context) if seed == self.seeds[0] else ()
        fields = {"spec": entry.spec, "layer": entry.layer, "state_lengths": lengths} | self.shared
        run = RunConfig(kind=kind, variant=entry.name, seed=seed + entry.seed_offset, **fields)
        return recall.recall_config(run, self.recall_steps or recall.MAX_STEPS) if kind == "recall" else run

    def runs(self, folder: RunFolder) -> Iterator[tuple[Path, RunConfig]]:
        """Folder and configuration of every run, in the order of work: one seed of all, recall, the other seeds."""
        for number, seed in enumerate(self.seeds):
            for entry in self.entries:
                config = self.config(entry, seed)
                yield folder.run_path(entry.name, config.seed), config
            if number == 0 and self.recall_steps:
                for entry in self.entries:
                    config = self.config(entry, seed, "recall")
                    path = folder.run_path(entry.name, config.seed)
                    yield path.with_name(f"recall-{config.seed}"), config

    def estimated_seconds(self, num_workers: int) -> float | None:
        """Wall time of the whole grid; None where no speed was measured."""
        if set(self.speeds) != {entry.name for entry in self.entries}:
            return None
        scored = self.shared["evaluation_tokens"]
        grid = Grid(tuple(self.speeds.values()), len(self.seeds), scored, self.recall_steps or 0, num_workers)
        return grid.seconds(self.steps)


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
    known = tuple(speeds.values())
    recall_steps, left_out = _decide_recall(config, resolved, known, num_workers, seconds_gone())
    chosen: dict[str, Any] = {"steps": resolved["steps"], "evaluation_tokens": resolved["evaluation_tokens"]}
    if chosen["steps"] is None:
        assert config.budget is not None
        left = config.budget - seconds_gone()
        grid = Grid(known, len(plan.seeds), chosen["evaluation_tokens"], recall_steps or 0, num_workers)
        if config.evaluation_tokens is None:
            scored = scored_within(SCORING_SHARE * left, grid, LEAST_EVALUATION_TOKENS)
            grid, chosen["evaluation_tokens"] = dataclasses.replace(grid, scored_tokens=scored), scored
        chosen["steps"] = steps_within(left, grid, MAX_STEPS)
        say(f"the budget of {format_duration(config.budget)} gives {chosen['steps']:,} steps to every run")
    folder.update(resolved=resolved | chosen | {"recall": {"steps": recall_steps, "left_out": left_out}})
    return Plan(entries, plan.seeds, shared | chosen, recall_steps, speeds, parameters, left_out)


def _decide_recall(
    config: StudyConfig, resolved: Mapping[str, Any], speeds: tuple[Speed, ...], num_workers: int, gone: float
) -> tuple[int | None, str | None]:
    """(steps of the recall runs, or None with the reason). What the folder already measures stays measured."""
    before = resolved.get("recall") or {}
    if config.recall is False:
        return None, "left out by --no-recall"
    if config.recall or before.get("steps"):
        return recall.MAX_STEPS, None
    if config.budget is None or not speeds:
        return (None, before["left_out"]) if before else (recall.MAX_STEPS, None)
    longest = Grid(speeds, 1, 0, recall.MAX_STEPS, num_workers).recall_seconds
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
    speeds = {name: _speed(result, start) for name, result in good.items()}
    return speeds, {name: result["parameters"] for name, result in good.items()}


def _speed(result: Mapping[str, Any], start: float) -> Speed:
    once = start + result["seconds_to_build"] + result["seconds_of_other_measures"]
    return Speed(
        result["seconds_per_step"], result["seconds_per_evaluated_token"], result["seconds_per_recall_step"], once
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
    if config.control:
        entries.append(control_of(entries))
        say(f"{entries[-1].name} is {BASELINE} a second time, under other seeds: a check of the method")
    for entry in entries:
        if entry.equal_names:
            say(f"{entry.name} is equal to {', '.join(entry.equal_names)}: run once")
        for part in entry.parts_that_cancel:
            say(f"{entry.name}: {part}")
    return entries
