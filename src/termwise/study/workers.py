"""The parent's side of a grid: a few subprocesses at a time, each on one folder, restarted when they die.

A worker is `python -m termwise.study.worker FOLDER ...`. It saves and stops when it gets SIGTERM or when its parent is
gone (its standard input ends), so a killed grid leaves nothing running.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

MAX_TRIES = 3
POLL_SECONDS = 0.2
RETRY_SECONDS = 1.0
COMMAND = (sys.executable, "-m", "termwise.study.worker")
STOP_SECONDS = 120.0
# What a worker exits with when another process still holds its folder (EX_TEMPFAIL), and how long that is waited for.
EXIT_LOCKED = 75
LOCKED_SECONDS = 60.0
# What begins a line of worker.log that a person must see too.
ALOUD = "termwise: "


class Interrupted(Exception):  # noqa: N818
    """The grid was stopped by a signal; all workers have saved. `exit_code` is what the shell expects: 130 or 143."""

    def __init__(self, signum: int) -> None:
        self.exit_code = 128 + signum
        super().__init__(f"stopped by {signal.Signals(signum).name}")


@dataclass
class Task:
    """Folders for one worker, one after the other, and how that goes. `seconds` is how long its last process lived."""

    folders: tuple[Path, ...]
    state: str = "waiting"
    tries: int = 0
    reason: str | None = None
    process: subprocess.Popen | None = field(default=None, repr=False)
    started: float = 0.0
    seconds: float = 0.0
    not_before: float = 0.0
    locked_since: float | None = None
    log_start: int | None = None

    @property
    def warnings(self) -> list[str]:
        """What this task's processes had to say aloud, from worker.log."""
        if self.log_start is None:
            return []
        new = (self.folders[0] / "worker.log").read_bytes()[self.log_start :].decode(errors="replace")
        return [line.removeprefix(ALOUD) for line in new.splitlines() if line.startswith(ALOUD)]

    @property
    def is_finished(self) -> bool:
        """Whether every folder has its result."""
        return all((folder / "result.json").exists() for folder in self.folders)


def worker_environment() -> dict[str, str]:
    """One thread a worker, set before torch is imported: threads that wait must not spin on another worker's core."""
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }


def run_tasks(
    tasks: Sequence[Task],
    num_workers: int,
    *,
    on_tick: Callable[[], None] = lambda: None,
    on_finish: Callable[[Task], None] = lambda task: None,
    command: Sequence[str] = COMMAND,
) -> None:
    """Work through the tasks in order, `num_workers` at a time; `on_finish` is told of each that ended, well or not.

    Each is `command` with its folders as arguments; a folder is done when result.json is there.
    A worker that was killed is started again, three times at most; one that failed is not. SIGINT and SIGTERM stop all
    workers, which save, and raise `Interrupted`; a second one kills them.
    """
    for task in tasks:
        if task.state == "waiting" and task.is_finished:
            task.state = "done"
            on_finish(task)
    with _signals() as received:
        try:
            while any(task.state in ("waiting", "running") for task in tasks):
                if received:
                    _stop(tasks, received)
                    raise Interrupted(received[0])
                for task in tasks:
                    if task.state == "running" and _has_ended(task):
                        on_finish(task)
                _start_next(tasks, num_workers, command)
                on_tick()
                time.sleep(POLL_SECONDS)
        finally:
            _kill(tasks)


def _start_next(tasks: Sequence[Task], num_workers: int, command: Sequence[str]) -> None:
    free = num_workers - sum(task.state == "running" for task in tasks)
    ready = [task for task in tasks if task.state == "waiting" and task.not_before <= time.monotonic()]
    for task in ready[: max(free, 0)]:
        log = task.folders[0] / "worker.log"
        with open(log, "ab") as file:
            if task.log_start is None:
                task.log_start = file.tell()
            task.process = subprocess.Popen(
                [*command, *map(str, task.folders)],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=worker_environment(),
                # Ctrl-C in a terminal reaches the parent alone, which then stops the workers in order.
                start_new_session=True,
            )
        task.state, task.started = "running", time.monotonic()


def _has_ended(task: Task) -> bool:
    """Whether the task is over; sets its state, and puts it back in the queue where another try is due."""
    assert task.process is not None
    code = task.process.poll()
    if code is None:
        return False
    _close(task)
    task.seconds = time.monotonic() - task.started
    if task.is_finished:
        task.state = "done"
    elif code == EXIT_LOCKED:
        task.locked_since = task.locked_since or time.monotonic()
        _again(task, time.monotonic() - task.locked_since < LOCKED_SECONDS, "another process holds its folder")
    elif code < 0 or code > 128:
        task.tries += 1
        _again(task, task.tries < MAX_TRIES, f"killed {task.tries} times, last by {_signal_name(code)}")
    else:
        task.state, task.reason = "failed", _failure(task)
    return task.state in ("done", "failed")


def _again(task: Task, may_try: bool, reason: str) -> None:
    task.state = "waiting" if may_try else "failed"
    task.reason = reason
    task.not_before = time.monotonic() + RETRY_SECONDS


def _signal_name(code: int) -> str:
    number = -code if code < 0 else code - 128
    name = signal.Signals(number).name if number in signal.valid_signals() else f"signal {number}"
    return f"{name} (out of memory?)" if name == "SIGKILL" else name


def _failure(task: Task) -> str:
    for folder in task.folders:
        if (folder / "failure.txt").exists():
            return (folder / "failure.txt").read_text(encoding="utf-8").strip()
    return f"the worker ended without a result; see {task.folders[0] / 'worker.log'}"


def _close(task: Task) -> None:
    assert task.process is not None
    if task.process.stdin:
        task.process.stdin.close()
    task.process.wait()


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The stop signals received so far, collected instead of raised."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {s: signal.signal(s, lambda number, frame: received.append(number)) for s in _STOP_SIGNALS}
    try:
        yield received
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _stop(tasks: Sequence[Task], received: list[int]) -> None:
    """Ask every worker to save and stop; return when all have, or at once on a second signal."""
    running = [task.process for task in tasks if task.state == "running" and task.process]
    for process in running:
        process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    while any(process.poll() is None for process in running) and len(received) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)


def _kill(tasks: Sequence[Task]) -> None:
    for task in tasks:
        if task.process and task.process.poll() is None:
            task.process.kill()
            _close(task)
