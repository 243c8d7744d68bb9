"""A study of seconds: a small text, few steps, and runs done inside the test's own process."""

from __future__ import annotations

import random
import time
from pathlib import Path

from rich.console import Console

from termwise.commands import folders
from termwise.study import experiment, planning
from termwise.study.grid import RunConfig, StudyConfig
from termwise.study.run import run_one

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "some",
    "other",
    "animals",
    "look",
    "on",
    "in",
    "wonder",
]


def write_text(folder: Path, *, name: str = "text.txt", num_words: int = 20_000, seed: int = 0) -> Path:
    chance = random.Random(seed)
    path = folder / name
    path.write_text(" ".join(chance.choice(WORDS) for _ in range(num_words)), encoding="utf-8")
    return path


def run_inline(tasks, num_workers, *, on_tick=lambda: None, on_finish=lambda task: None):
    """What the workers do, one after the other in this process."""
    for task in tasks:
        for folder in task.folders:
            if not (folder / "result.json").exists():
                run_one(folder, RunConfig.load(folder))
        task.state = "done"
        on_tick()
        on_finish(task)


def small(text: Path, **fields) -> StudyConfig:
    known = {"data": (str(text),), "variants": ("softmax", "linear_elu"), "seeds": 1, "steps": 6, "recall": False}
    known |= {"context": 32, "tokens_per_step": 64, "evaluation_tokens": 2000}
    return StudyConfig(**(known | fields))


def run(monkeypatch, config: StudyConfig, out: Path, *, num_workers: int = 1) -> tuple[experiment.Study, str]:
    """The study, and everything it said."""
    monkeypatch.setattr(experiment, "run_tasks", run_inline)
    monkeypatch.setattr(planning, "run_tasks", run_inline)
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    with folders.reserved(out, "study"):
        done = experiment.run_study(
            config, out, arguments={}, num_workers=num_workers, console=console, started=time.monotonic()
        )
    return done, console.export_text()
