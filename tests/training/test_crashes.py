"""Real child processes: killed at random moments, between fsync and rename, stopped by signals, out of disk."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import toy_training
from toy_training import Nursery, log_lines

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
STEPS = 40


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="module")
def uninterrupted(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert nursery.run(folder) == 0
    return folder


def assert_same_run(folder: Path, reference: Path) -> None:
    """Weights, optimizer, random states, log and model, bit by bit; only times may differ."""
    last = Path("checkpoints") / str(STEPS)
    for name in (last / "model.safetensors", last / "optimizer.safetensors", Path("model/model.safetensors")):
        assert (folder / name).read_bytes() == (reference / name).read_bytes(), name
    ours, theirs = (json.loads((path / last / "state.json").read_text()) for path in (folder, reference))
    assert ours | {"seconds": 0} == theirs | {"seconds": 0}
    assert log_lines(folder) == log_lines(reference)
    assert not [path for path in folder.rglob(".*") if path.name.endswith((".tmp", ".trash", ".old"))]


def wait_for_lines(folder: Path, count: int) -> None:
    log, until = folder / "log.jsonl", time.monotonic() + 20
    while not log.exists() or log.read_bytes().count(b"\n") < count:
        assert time.monotonic() < until
        time.sleep(0.002)


def test_killed_at_random_times_and_resumed_is_bit_identical(
    nursery: Nursery, uninterrupted: Path, tmp_path: Path
) -> None:
    dice, folder, kills = random.Random(0), tmp_path / "run", 0
    for _ in range(14):
        nursery.start(folder, sleep=0.01)
        time.sleep(dice.uniform(0, 0.15))
        nursery.send(signal.SIGKILL)
        status = nursery.wait()
        if status == 0:
            break
        assert status == -signal.SIGKILL, (tmp_path / "run.err").read_text()
        kills += 1
    assert nursery.run(folder) == 0
    assert kills >= 3
    assert_same_run(folder, uninterrupted)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("count", [1, 4, 14, 15])
def test_killed_around_a_rename_and_resumed_is_bit_identical(
    nursery: Nursery, uninterrupted: Path, tmp_path: Path, count: int, when: str
) -> None:
    folder = tmp_path / "run"
    assert nursery.run(folder, die_at_rename={"count": count, "when": when}) == -signal.SIGKILL
    assert nursery.run(folder) == 0
    assert_same_run(folder, uninterrupted)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_leaves_with_its_code(
    nursery: Nursery, uninterrupted: Path, tmp_path: Path, number: int, code: int
) -> None:
    folder = tmp_path / "run"
    nursery.start(folder, sleep=0.05)
    wait_for_lines(folder, 4)
    nursery.send(number)
    assert nursery.wait() == code
    done = log_lines(folder)[-1]["step"]
    assert done < STEPS
    assert (folder / "checkpoints" / str(done) / "manifest.json").exists()
    assert nursery.run(folder) == 0
    assert_same_run(folder, uninterrupted)


def test_a_second_ctrl_c_stops_at_once(nursery: Nursery, uninterrupted: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    nursery.start(folder, sleep=20)
    wait_for_lines(folder, 1)
    nursery.send(signal.SIGINT)
    while "Ctrl-C again" not in (tmp_path / "run.err").read_text():
        time.sleep(0.01)
    time.sleep(0.5)
    started = time.monotonic()
    nursery.send(signal.SIGINT)
    assert nursery.wait() == 130
    assert time.monotonic() - started < 2
    assert not list((folder / "checkpoints").glob("*"))
    assert nursery.run(folder) == 0
    assert_same_run(folder, uninterrupted)


def test_a_plain_python_process_exits_with_130(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    child = subprocess.Popen(
        [sys.executable, toy_training.__file__, str(folder), '{"sleep": 0.05}'], stderr=subprocess.PIPE, text=True
    )
    wait_for_lines(folder, 2)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=20)
    assert child.returncode == 130
    assert "Traceback" not in errors
    assert "Ctrl-C again" in errors


def test_a_second_writer_is_refused_while_the_first_trains(nursery: Nursery, tmp_path: Path) -> None:
    from termwise.results import FolderLock, FolderLocked

    folder = tmp_path / "run"
    pid = nursery.start(folder, sleep=0.05)
    wait_for_lines(folder, 1)
    started = time.monotonic()
    with pytest.raises(FolderLocked, match=f"process {pid} on"), FolderLock(folder):
        pass
    assert time.monotonic() - started < 1
    nursery.send(signal.SIGKILL)
    nursery.wait()
    with FolderLock(folder):
        pass


def test_a_full_disk_leaves_the_old_checkpoint_valid(nursery: Nursery, uninterrupted: Path, tmp_path: Path) -> None:
    """The system refuses writes past a file size, as a full disk would, in the middle of a tensor file."""
    folder = tmp_path / "run"
    nursery.start(folder, sleep=0.05)
    wait_for_lines(folder, 7)
    nursery.send(signal.SIGKILL)
    nursery.wait()
    before = sorted(path.name for path in (folder / "checkpoints").glob("[0-9]*"))
    assert nursery.run(folder, file_limit=6000) == 1
    errors = (tmp_path / "run.err").read_text()
    assert f"the one at step {before[-1]} is untouched" in errors
    assert sorted(path.name for path in (folder / "checkpoints").glob("*")) == before
    assert nursery.run(folder) == 0
    assert_same_run(folder, uninterrupted)
