"""How far the runs of a grid are, read from their folders, and how that is shown: a live table or plain lines."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from termwise.data.sizes import counted
from termwise.results import format_duration
from termwise.study.budget import makespan
from termwise.study.workers import Task

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LINE_SECONDS = 30.0
MAX_ROWS = 24
_TAIL_BYTES = 4096


@dataclass
class Run:
    """One run on the way: its task, its length, and what its log said last."""

    task: Task
    label: str
    variant: str
    kind: str
    num_steps: int
    tokens_per_step: int
    step: int = 0
    loss: float | None = None
    seconds_per_step: float | None = None

    @property
    def folder(self) -> Path:
        return self.task.folders[0]

    @property
    def phase(self) -> str:
        """What to call its state now."""
        if self.task.state != "running":
            return self.task.state
        if self.step == 0:
            return "starting"
        return "evaluating" if self.step >= self.num_steps else self.kind

    def refresh(self) -> None:
        """Read the last line of its log, and how fast the steps since the last look were."""
        if self.task.state in ("done", "failed"):
            self.step = self.num_steps if self.task.state == "done" else self.step
        line = last_line(self.folder / "log.jsonl")
        if line is None or line["step"] <= self.step:
            return
        self.step, self.loss = line["step"], line.get("loss")
        self.seconds_per_step = line["seconds_per_step"] or self.seconds_per_step


def last_line(path: Path) -> dict[str, Any] | None:
    """The last whole line of a log with the time a step took lately; None before there is one."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            tail = file.read().rpartition(b"\n")[0].split(b"\n")
    except OSError:
        return None
    lines = []
    # The first piece may begin in the middle of a line.
    for text in tail[1:] or tail:
        with contextlib.suppress(ValueError):
            lines.append(json.loads(text))
    if not lines:
        return None
    first, last = lines[0], lines[-1]
    steps = last["step"] - first["step"]
    return last | {"seconds_per_step": (last["seconds"] - first["seconds"]) / steps if steps else None}


def seconds_left(runs: Sequence[Run], num_workers: int) -> float | None:
    """Wall time until all runs end, from the speeds seen so far; None while those of a kind that is waiting are unknown."""
    known: dict[str, list[float]] = {}
    for run in runs:
        if run.seconds_per_step:
            known.setdefault(run.kind, []).append(run.seconds_per_step)
    left = []
    for run in runs:
        if run.task.state in ("waiting", "running"):
            if run.kind not in known:
                return None
            left.append((run.num_steps - run.step) * (run.seconds_per_step or statistics.mean(known[run.kind])))
    return makespan(left, num_workers)


class Display(AbstractContextManager):
    """Shows runs on a console: a live table on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console, runs: Sequence[Run], num_workers: int) -> None:
        self.console, self.runs, self.num_workers = console, runs, num_workers
        self._live: Any = None
        self._last_line = time.monotonic()
        self._started: set[str] = set()

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._live:
            self._live.__exit__(*exception)

    def tick(self) -> None:
        """Look at every run, and show it."""
        for run in self.runs:
            if run.task.state == "running":
                run.refresh()
        if self._live:
            self._live.update(self._table())
        elif time.monotonic() - self._last_line >= LINE_SECONDS:
            self._last_line = time.monotonic()
            self.console.print(self._line(), highlight=False, markup=False, soft_wrap=True)

    def warn(self, run: Run, text: str) -> None:
        """Repeat what a worker had to say aloud."""
        self.console.print(f"{run.label}: {text}", highlight=False, markup=False, soft_wrap=True)

    def finished(self, run: Run, result: str) -> None:
        """Tell that a run ended."""
        run.refresh()
        self.console.print(f"{run.label}: {result}", highlight=False, markup=False, soft_wrap=True)

    def _line(self) -> str:
        parts = [
            f"{run.label} {run.phase} {run.step}/{run.num_steps}"
            + (f" loss {run.loss:.3f}" if run.loss is not None else "")
            for run in self.runs
            if run.task.state == "running"
        ]
        return f"[{self._summary()}] " + "; ".join(parts)

    def _summary(self) -> str:
        done = sum(run.task.state in ("done", "failed") for run in self.runs)
        text = f"{done} of {counted(len(self.runs), 'run')} done"
        left, rest = seconds_left(self.runs, self.num_workers), ""
        if left is None:
            left, rest = (
                seconds_left([run for run in self.runs if run.kind != "recall"], self.num_workers),
                " and recall",
            )
        return f"{text}, {format_duration(left)} of training{rest} left" if left and left >= 1 else text

    def _table(self) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table(box=None, pad_edge=False, caption=self._summary(), caption_justify="left")
        for column, justify in (
            ("run", "left"),
            ("", "left"),
            ("steps", "right"),
            ("", "left"),
            ("loss", "right"),
            ("tokens/s", "right"),
        ):
            table.add_column(column, justify=justify)  # type: ignore[arg-type]
        for run in self._shown():
            speed = f"{run.tokens_per_step / run.seconds_per_step:,.0f}" if run.seconds_per_step else ""
            loss = f"{run.loss:.3f}" if run.loss is not None else ""
            bar = ProgressBar(total=run.num_steps, completed=run.step, width=20)
            table.add_row(run.label, run.phase, f"{run.step}/{run.num_steps}", bar, loss, speed)
        return table

    def _shown(self) -> Sequence[Run]:
        """All runs where they fit, else those at work and the next ones."""
        if len(self.runs) <= MAX_ROWS:
            return self.runs
        running = [run for run in self.runs if run.task.state == "running"]
        waiting = [run for run in self.runs if run.task.state == "waiting"]
        return [*running, *waiting[: max(0, MAX_ROWS - len(running))]]
