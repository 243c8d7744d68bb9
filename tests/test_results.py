"""Records, run folders, locks."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from termwise.results import (
    FolderLock,
    FolderLocked,
    Record,
    RunFolder,
    atomic_write_text,
    config_hash,
    file_name,
    machine,
    versions,
)

GOOD: dict[str, Any] = {
    "run_id": "study-1",
    "kind": "loss",
    "subject": {"variant": "taylor:0..2", "seed": 0},
    "metric": "held-out loss",
    "value": 2.25,
    "unit": "nats/token",
}
HOLD = """
import sys, time
from termwise.results import FolderLock
with FolderLock(sys.argv[1]):
    print("held", "torch" in sys.modules, flush=True)
    time.sleep(60)
"""


def create(path: Path, **changes: Any) -> RunFolder:
    resolved = {"preset": "tiny", "variants": ["softmax"], "seeds": 1} | changes
    return RunFolder.create(path, "study", {"out": "x"}, resolved, extendable=("variants", "seeds"))


# Records ---------------------------------------------------------------------------------------------------------


def test_a_record_has_the_fields_of_the_schema_in_order() -> None:
    names = (
        "schema run_id kind subject metric value unit low high level n method baseline status reason started seconds"
    )
    assert list(json.loads(Record(**GOOD).to_json())) == [*names.split(), "form", "config_hash"]


@given(st.floats(allow_nan=False, allow_infinity=False), st.text(), st.integers())
def test_a_record_survives_json_bit_by_bit(value: float, text: str, seed: int) -> None:
    record = Record(**(GOOD | {"value": value, "method": text, "subject": {"variant": text, "seed": seed}}))
    assert "\n" not in record.to_json()
    assert Record.from_json(record.to_json()) == record


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "los"}, r"kind='los'; allowed are train, loss"),
        ({"status": "fine"}, r"status='fine'; allowed are ok, failed"),
        ({"value": math.nan}, "value=nan"),
        ({"high": math.inf}, "high=inf"),
        ({"value": True}, "value=True; allowed are a number and None"),
        ({"value": "2.25"}, "value='2.25'"),
        ({"value": None}, "value=None with status='ok'"),
        ({"status": "failed", "reason": "diverged"}, "value=2.25 with status='failed'"),
        ({"status": "failed", "value": None}, "needs a reason"),
        ({"low": 3, "high": 2}, "low=3 is above high=2"),
        ({"subject": {"x": object()}}, "does not go into JSON"),
    ],
)
def test_what_is_no_record_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Record(**(GOOD | changes))


def test_a_missing_value_is_null_with_a_reason() -> None:
    record = Record(**(GOOD | {"value": None, "status": "not_measured", "reason": "no card"}))
    assert json.loads(record.to_json())["value"] is None


def test_another_schema_says_which_version_reads_it() -> None:
    fields = dataclasses.asdict(Record(**GOOD))
    with pytest.raises(ValueError, match=r"schema 2 was written by a newer termwise; termwise \S+ reads schema 1"):
        Record.from_json(json.dumps(fields | {"schema": 2, "colour": "red"}))
    with pytest.raises(ValueError, match="schema 0 was never written"):
        Record.from_json(json.dumps(fields | {"schema": 0}))
    with pytest.raises(ValueError, match=r"not a record of schema 1 .*colour"):
        Record.from_json(json.dumps(fields | {"colour": "red"}))


# Hashes, names, machine ------------------------------------------------------------------------------------------


def test_a_hash_depends_on_values_only() -> None:
    assert config_hash({"a": [1, 2], "b": None}) == config_hash({"b": None, "a": (1, 2)})
    assert config_hash({"a": 1}) != config_hash({"a": 2})
    assert len(config_hash(0)) == 12
    with pytest.raises(ValueError, match="finite numbers"):
        config_hash({"a": math.nan})


@given(st.text(min_size=1, max_size=40))
def test_a_file_name_gives_the_variant_back(variant: str) -> None:
    name = file_name(variant)
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-~%@+=,")
    assert not name.startswith(".")
    assert not name.endswith(".")
    if len(name) < 113:
        assert urllib.parse.unquote(name) == variant


def test_file_names_are_unique_and_short() -> None:
    variants = ["taylor:0..2@mean+w64s4", "exp<5", "exp|l2", "../../x", "..", ".", "a" * 500, "a" * 501, "specs/a.json"]
    names = [file_name(variant) for variant in variants]
    assert len({name.lower() for name in names}) == len(variants)
    assert max(map(len, names)) <= 120
    with pytest.raises(ValueError, match="names no folder"):
        file_name("")


def test_machine_and_versions_need_no_torch() -> None:
    code = (
        "import sys, json; from termwise.results import machine, versions; "
        "print(json.dumps([machine(), versions(), sorted(m for m in ('torch', 'numpy', 'transformers') if m in sys.modules)]))"
    )
    found = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert found == [machine(), versions(), []]
    assert found[0]["cores"] >= 1
    assert found[0]["memory"] > 2**28
    assert {"python", "termwise", "torch"} <= found[1].keys()


def test_a_failed_write_leaves_the_old_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    atomic_write_text(path, "old\r\n")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            atomic_write_text(path, "new")
    assert path.read_bytes() == b"old\r\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


# Run folders -----------------------------------------------------------------------------------------------------


def test_a_folder_is_created_opened_and_read(tmp_path: Path) -> None:
    folder = create(tmp_path / "out")
    with folder.lock():
        folder.update(steps=300)
        for value in (1.0, 2.0):
            folder.append(Record(**(GOOD | {"value": value})))
    opened = RunFolder.open(tmp_path / "out")
    assert opened.run["steps"] == 300
    assert {
        "schema",
        "run_id",
        "command",
        "arguments",
        "resolved",
        "versions",
        "machine",
        "created",
    } <= opened.run.keys()
    assert opened.run["run_id"].startswith("study-")
    assert [record.value for record in opened.records()] == [1.0, 2.0]
    assert opened.run_path("elu1^2", 3) == tmp_path / "out" / "runs" / "elu1%5E2" / "3"
    with pytest.raises(ValueError, match="opened for reading"):
        opened.append(Record(**GOOD))


def test_the_same_command_takes_the_folder_up_and_extends_it(tmp_path: Path) -> None:
    first = create(tmp_path)
    first.update(steps=300)
    again = create(tmp_path, variants=["elu1", "softmax"], seeds=3)
    assert again.run["resolved"] == {"preset": "tiny", "variants": ["softmax", "elu1"], "seeds": 3}
    assert again.run["steps"] == 300
    assert (again.run["created"], again.run["run_id"]) == (first.run["created"], first.run["run_id"])


def test_other_settings_are_refused_by_field(tmp_path: Path) -> None:
    create(tmp_path)
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(ValueError, match=r"preset \(was 'tiny', now 'small'\); only variants, seeds may differ"):
        create(tmp_path, preset="small", seeds=9)
    with pytest.raises(ValueError, match="made by 'termwise study'"):
        RunFolder.create(tmp_path, "bench", {}, {})
    assert (tmp_path / "run.json").read_bytes() == before


def test_foreign_and_missing_folders_get_a_clear_word(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ValueError, match="holds other files and no run"):
        create(tmp_path)
    with pytest.raises(ValueError, match="is a file"):
        create(tmp_path / "thesis.tex")
    with pytest.raises(ValueError, match="is no run folder"):
        RunFolder.open(tmp_path / "nowhere")
    (tmp_path / "run.json").write_text('{"schema": 1')
    with pytest.raises(ValueError, match="is damaged"):
        RunFolder.open(tmp_path)
    (tmp_path / "run.json").write_text('{"schema": 7}')
    with pytest.raises(ValueError, match="schema 7 was written by a newer"):
        RunFolder.open(tmp_path)


def test_a_creation_killed_half_way_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / ".run.json.4711.tmp").write_text('{"sch')
    (tmp_path / "lock.guard").touch()
    create(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock.guard", "run.json"]


def test_a_torn_last_line_is_dropped_aloud_and_never_joined(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    create(tmp_path).append(Record(**GOOD))
    with open(tmp_path / "records.jsonl", "a") as file:
        file.write(Record(**GOOD).to_json()[:40])
    assert len(RunFolder.open(tmp_path).records()) == 1
    assert "incomplete" in caplog.text
    again = create(tmp_path)
    again.append(Record(**(GOOD | {"value": 7})))
    caplog.clear()
    assert [record.value for record in again.records()] == [2.25, 7]
    assert caplog.text == ""


def test_damage_inside_the_records_is_an_error_with_its_line(tmp_path: Path) -> None:
    folder = create(tmp_path)
    for _ in range(3):
        folder.append(Record(**GOOD))
    lines = (tmp_path / "records.jsonl").read_bytes().split(b"\n")
    (tmp_path / "records.jsonl").write_bytes(b"\n".join([lines[0], b"\xff" + lines[1], *lines[2:]]))
    with pytest.raises(ValueError, match=r"records\.jsonl line 2 is damaged"):
        folder.records()


# Locks -----------------------------------------------------------------------------------------------------------


def hold(path: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held False\n"
    return child


def test_a_second_process_is_refused_within_a_second_by_name(tmp_path: Path) -> None:
    create(tmp_path)
    child = hold(tmp_path)
    try:
        holder = json.loads((tmp_path / "lock").read_text())
        assert (holder["pid"], holder["host"]) == (child.pid, socket.gethostname())
        for attempt in (lambda: FolderLock(tmp_path).__enter__(), lambda: create(tmp_path)):
            started = time.monotonic()
            with pytest.raises(FolderLocked) as caught:
                attempt()
            assert time.monotonic() - started < 1
            assert caught.value.holder == holder
            for word in (f"process {child.pid}", socket.gethostname(), holder["started"]):
                assert word in str(caught.value)
    finally:
        child.kill()
        child.wait()


def test_the_lock_of_a_killed_process_is_taken_over_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    child = hold(tmp_path)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert (tmp_path / "lock").exists()
    with caplog.at_level(logging.WARNING), FolderLock(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
    assert f"process {child.pid}, which is gone" in caplog.text
    assert not (tmp_path / "lock").exists()


def test_a_lock_left_by_another_host_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(json.dumps({"pid": 1, "host": "elsewhere", "started": "2024-01-01T00:00:00+00:00"}))
    for _ in range(2):
        with pytest.raises(FolderLocked, match=r"process 1 on elsewhere.*delete lock"), FolderLock(tmp_path):
            pass
    (tmp_path / "lock").unlink()
    with FolderLock(tmp_path):
        pass


def test_a_lock_is_taken_again_by_its_own_process(tmp_path: Path) -> None:
    with FolderLock(tmp_path):
        with FolderLock(tmp_path):
            create(tmp_path).append(Record(**GOOD))
        assert (tmp_path / "lock").exists()
    assert not (tmp_path / "lock").exists()


def test_an_unreadable_lock_file_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text('{"pid": ')
    with FolderLock(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
