"""The parent's side of a grid, with workers that are two lines of Python."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest

from termwise.study import workers
from termwise.study.workers import Interrupted, Task, run_tasks

DONE = "open(sys.argv[1] + '/result.json', 'w').write('{}')"


def command(tmp_path, body: str) -> list[str]:
    script = tmp_path / "worker.py"
    script.write_text(f"import os, pathlib, signal, sys, time\nhere = pathlib.Path(sys.argv[1])\n{body}\n")
    return [sys.executable, "-S", str(script)]


@pytest.fixture
def tasks(tmp_path):
    made = []
    for number in range(3):
        folder = tmp_path / f"run-{number}"
        folder.mkdir()
        made.append(Task((folder,)))
    return made


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(workers, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(workers, "POLL_SECONDS", 0.02)


def test_every_folder_is_done_once_and_told_of_once(tmp_path, tasks):
    told = []
    run_tasks(tasks, 2, command=command(tmp_path, DONE), on_finish=told.append)
    assert [task.state for task in tasks] == ["done"] * 3
    assert sorted(told, key=tasks.index) == tasks


def test_a_finished_folder_starts_no_worker(tmp_path, tasks):
    (tasks[0].folders[0] / "result.json").write_text("{}")
    run_tasks(tasks[:1], 1, command=["/no/such/program"])
    assert tasks[0].state == "done"


def test_a_killed_worker_is_started_again(tmp_path, tasks):
    body = f"if not (here / 'tried').exists():\n    (here / 'tried').touch()\n    os.kill(os.getpid(), signal.SIGKILL)\n{DONE}"
    run_tasks(tasks, 2, command=command(tmp_path, body))
    assert [(task.state, task.tries) for task in tasks] == [("done", 1)] * 3


def test_one_that_is_always_killed_fails_and_the_others_go_on(tmp_path, tasks):
    body = f"if here.name == 'run-1':\n    os.kill(os.getpid(), signal.SIGKILL)\n{DONE}"
    run_tasks(tasks, 1, command=command(tmp_path, body))
    assert [task.state for task in tasks] == ["done", "failed", "done"]
    assert "killed 3 times" in tasks[1].reason
    assert "SIGKILL" in tasks[1].reason


def test_one_that_fails_is_not_repeated_and_says_why(tmp_path, tasks):
    body = (
        "with open(here / 'count', 'a') as f: f.write('x')\n(here / 'failure.txt').write_text('disk full')\nsys.exit(1)"
    )
    run_tasks(tasks[:1], 1, command=command(tmp_path, body))
    assert (tasks[0].state, tasks[0].reason) == ("failed", "disk full")
    assert (tasks[0].folders[0] / "count").read_text() == "x"


def test_a_locked_folder_is_tried_again(tmp_path, tasks):
    body = (
        f"if not (here / 'tried').exists():\n    (here / 'tried').touch()\n    sys.exit({workers.EXIT_LOCKED})\n{DONE}"
    )
    run_tasks(tasks[:1], 1, command=command(tmp_path, body))
    assert (tasks[0].state, tasks[0].tries) == ("done", 0)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_every_worker_save(tmp_path, tasks, signum):
    body = (
        "def save(*_):\n    time.sleep(0.2)\n    (here / 'saved').touch()\n    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save)\n(here / 'started').touch()\ntime.sleep(60)"
    )
    folders = [task.folders[0] for task in tasks[:2]]

    def send():
        while not all((folder / "started").exists() for folder in folders):
            time.sleep(0.02)
        os.kill(os.getpid(), signum)

    threading.Thread(target=send).start()
    before = signal.getsignal(signum)
    with pytest.raises(Interrupted) as stopped:
        run_tasks(tasks, 2, command=command(tmp_path, body))
    assert stopped.value.exit_code == 128 + signum
    assert all((folder / "saved").exists() for folder in folders)
    assert signal.getsignal(signum) is before


def test_a_second_signal_waits_for_nobody(tmp_path, tasks):
    body = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n(here / 'started').touch()\ntime.sleep(60)"

    def send():
        while not (tasks[0].folders[0] / "started").exists():
            time.sleep(0.02)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)

    threading.Thread(target=send).start()
    started = time.monotonic()
    with pytest.raises(Interrupted):
        run_tasks(tasks[:1], 1, command=command(tmp_path, body))
    assert time.monotonic() - started < 20
    assert tasks[0].process.poll() == -signal.SIGKILL


def test_what_a_worker_says_aloud_is_found_from_this_call_on(tmp_path, tasks):
    (task,) = tasks[:1]
    (task.folders[0] / "worker.log").write_text("termwise: of an earlier command\n")
    body = (
        "print('step 3', 'termwise: in passing')\nprint('termwise: checkpoints/7 is damaged', flush=True)\n"
        "if not (here / 'tried').exists():\n    (here / 'tried').touch()\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        + DONE
    )
    assert task.warnings == []
    run_tasks([task], 1, command=command(tmp_path, body))
    assert task.warnings == ["checkpoints/7 is damaged"] * 2
