"""A study from its configuration to its records: plan, workers, comparisons. The page is made of the records afterwards."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from termwise.data.sources import check_text
from termwise.results import RunFolder, format_duration
from termwise.study import measures
from termwise.study.grid import StudyConfig
from termwise.study.opening import open_study, refuse_other_data, refuse_other_study
from termwise.study.planning import Plan, has_baseline, make_plan, study_entries, write_job
from termwise.study.progress import Display, Run
from termwise.study.workers import Task, run_tasks

if TYPE_CHECKING:
    from rich.console import Console

# Weights, gradients' two moments and the best of two checkpoints: what a run leaves on disk, in copies of its weights.
COPIES_ON_DISK = 7


@dataclass(frozen=True)
class Study:
    """What a study learnt, and where it is kept."""

    folder: Path
    num_runs: int
    failures: dict[str, str]


def default_workers(device: str) -> int:
    """One worker a core; on a GPU one, since runs would share its memory."""
    if device not in ("cpu", "auto"):
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_study(
    config: StudyConfig, out: Path, *, arguments: Mapping[str, Any], num_workers: int, console: Console, started: float
) -> Study:
    """Run the grid, or what is left of it, and write every measure as a record. The caller holds the lock of `out`.

    `started` (time.monotonic) is when the budget began to run. A run that fails is a record with its reason, and the
    others go on. Errors: ValueError for what cannot be, `Interrupted` after a signal; the same call goes on then.
    """
    say = _sayer(console)
    plan, folder = _prepare(config, out, arguments, num_workers, started, say)
    _say_plan(plan, folder, num_workers, say)
    recorder = measures.Recorder(folder)
    runs = _runs(plan, folder)
    with Display(console, runs, num_workers) as display:
        _work(runs, display, recorder, folder, num_workers)
    _record_the_rest(plan, folder, recorder, say)
    return Study(out, len(runs), {run.label: reason for run in runs if (reason := _failure(run))})


def dry_run_study(
    config: StudyConfig, out: Path, *, num_workers: int, console: Console, started: float
) -> dict[str, Any]:
    """What the study would do in `out` and cost, from a few steps timed now in a temporary folder."""
    say = _sayer(console)
    before = refuse_other_study(config, out)
    with tempfile.TemporaryDirectory(prefix="termwise-") as temporary:
        plan, folder = _prepare(config, Path(temporary), {}, num_workers, started, say, always_measure=True)
        refuse_other_data(before, folder.run["resolved"]["data"], out)
        return _costs(plan, folder, num_workers)


def _sayer(console: Console) -> Callable[[str], None]:
    return lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True)


def _prepare(
    config: StudyConfig, out: Path, arguments: Mapping[str, Any], num_workers: int, started: float, say: Callable[[str], None],
    **how_to_plan: Any,
) -> tuple[Plan, RunFolder]:  # fmt: skip
    check_text(list(config.data) or None, config.column)
    entries = study_entries(config, say)
    folder, how = open_study(config, out, arguments, entries, say)
    plan = make_plan(config, folder, how, num_workers, lambda: time.monotonic() - started, say, **how_to_plan)
    return plan, folder


def _costs(plan: Plan, folder: RunFolder, num_workers: int) -> dict[str, Any]:
    tokens = plan.steps * plan.shared["tokens_per_step"]
    bytes_of = {name: COPIES_ON_DISK * 4 * number for name, number in plan.parameters.items()}
    state = {entry.name: _state_bytes(plan, entry) for entry in plan.entries}
    return {
        "runs": len(plan.entries) * len(plan.seeds),
        "recall_runs": len(plan.entries) if plan.recall_steps else 0,
        "variants": [entry.name for entry in plan.entries],
        "control": next((entry.name for entry in plan.entries if entry.control_of), None),
        "seeds": list(plan.seeds),
        "steps": plan.steps,
        "tokens_per_run": tokens,
        "epochs": tokens / folder.run["resolved"]["data"]["sizes"]["train_tokens"],
        "parameters": plan.parameters,
        "state_bytes": state,
        "disk_bytes": sum(bytes_of.values()) * len(plan.seeds),
        "seconds": plan.estimated_seconds(num_workers),
        "workers": num_workers,
        "recall_left_out": plan.left_out,
    }


def _state_bytes(plan: Plan, entry: Any) -> int:
    """By formula, for one sequence of the context's length over all layers and heads."""
    from termwise.attention.cost import cost
    from termwise.attention.spec import AttentionSpec
    from termwise.models.presets import preset

    shape = preset(plan.shared["preset"])
    heads = shape.num_attention_heads
    width, spec = shape.hidden_size // heads, AttentionSpec.from_dict(entry.spec)
    layer = cost(spec, key_width=width, value_width=width, length=plan.shared["context"], kv_heads=heads)
    return shape.num_hidden_layers * layer.state_bytes


def _say_plan(plan: Plan, folder: RunFolder, num_workers: int, say: Callable[[str], None]) -> None:
    tokens = plan.steps * plan.shared["tokens_per_step"]
    share = tokens / folder.run["resolved"]["data"]["sizes"]["train_tokens"]
    say(
        f"{_counted(len(plan.entries), 'variant')} x {_counted(len(plan.seeds), 'seed')}, {plan.steps:,} steps of {plan.shared['tokens_per_step']:,} "
        f"tokens each ({share:.2g} times the training text), {num_workers} at a time"
    )
    if plan.left_out:
        say(f"recall: {plan.left_out}")
    elif plan.recall_steps:
        say(f"recall: one small model a variant, at most {plan.recall_steps:,} steps")
    seconds = plan.estimated_seconds(num_workers)
    say(f"this takes about {format_duration(seconds)}; {folder.path}" if seconds else f"in {folder.path}")
    if plan.parameters:
        say("parameters: " + ", ".join(f"{name} {number:,}" for name, number in plan.parameters.items()))


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)


def _runs(plan: Plan, folder: RunFolder) -> list[Run]:
    runs = []
    for path, config in plan.runs(folder):
        write_job(path, config)
        label = f"{config.variant} recall" if config.kind == "recall" else f"{config.variant} seed {config.seed}"
        runs.append(Run(Task((path,)), label, config.variant, config.kind, config.steps, config.tokens_per_step))
    return runs


def _work(
    runs: Sequence[Run], display: Display, recorder: measures.Recorder, folder: RunFolder, num_workers: int
) -> None:
    run_of = {id(run.task): run for run in runs}
    run_id = folder.run["run_id"]

    def finished(task: Task) -> None:
        run = run_of[id(task)]
        result = measures.read_result(run.folder)
        if run.kind == "train":
            seed = int(run.folder.name)
            recorder.add(
                measures.records_of_run(run_id, result)
                if result
                else [measures.failed(run_id, run.variant, seed, task.reason or "no result")]
            )
        for warning in task.warnings:
            display.warn(run, warning)
        display.finished(run, measures.sentence(result) if result else f"failed: {task.reason}")

    run_tasks([run.task for run in runs], num_workers, on_tick=display.tick, on_finish=finished)


def _record_the_rest(plan: Plan, folder: RunFolder, recorder: measures.Recorder, say: Callable[[str], None]) -> None:
    """Recall and comparisons, which need all runs."""
    run_id, names = folder.run["run_id"], [entry.name for entry in plan.entries]
    controls = [entry.name for entry in plan.entries if entry.control_of]
    results = {path: (config, measures.read_result(path)) for path, config in plan.runs(folder)}
    recalled = [result for config, result in results.values() if config.kind == "recall" and result]
    recorder.add(measures.records_of_recall(run_id, recalled, controls))
    if plan.left_out:
        recorder.add(measures.not_measured_recall(run_id, names, plan.left_out))
    if not has_baseline(plan):
        say("no softmax in this study: variants are not compared; leave out --no-baseline for comparisons")
    trained = [result for config, result in results.values() if config.kind == "train" and result]
    recorder.add(measures.comparisons(run_id, trained, plan.entries))


def _failure(run: Run) -> str | None:
    """Why a run gave nothing, or None."""
    result = measures.read_result(run.folder)
    if result is None:
        return run.task.reason or "no result"
    return result["reason"] if result["status"] != "ok" else None
