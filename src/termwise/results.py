"""Run folders, records and locks: where all commands meet.

    OUT/run.json        what was asked, as given and as resolved; versions, machine, time
    OUT/records.jsonl   one JSON object a measured value, appended line by line
    OUT/lock            pid, host and start time of the one writer
    OUT/runs/VARIANT/SEED/

Standard library and filelock only: a lock is taken before torch is imported. One file, because it is the leaf that
all others may import and that imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import importlib.metadata
import json
import logging
import math
import numbers
import os
import platform
import socket
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

SCHEMA = 1
KINDS = ("train", "loss", "recall", "score", "term", "importance", "speed", "memory", "check", "plan")
STATUSES = ("ok", "failed", "excluded", "not_measured")
# The last version of termwise that reads each schema other than this one.
_READERS: dict[int, str] = {}
_PACKAGES = ("termwise", "torch", "numpy", "transformers", "accelerate", "tokenizers", "safetensors", "triton")
_log = logging.getLogger(__name__)


def now() -> str:
    """The time now, UTC, ISO 8601, to the millisecond.

    >>> now().endswith("+00:00")
    True
    """
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, no NaN. ValueError for what JSON cannot hold.

    >>> canonical_json({"b": (1, 2), "a": None})
    '{"a":null,"b":[1,2]}'
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{value!r} does not go into JSON ({error}); allowed are finite numbers, text, lists, dicts"
        ) from error


def config_hash(value: Any) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of the canonical JSON.

    >>> config_hash({"lr": 0.1, "steps": 3}) == config_hash({"steps": 3, "lr": 0.1})
    True
    """
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:12]


def versions() -> dict[str, str]:
    """Versions of the installed packages that numbers depend on, read without importing them."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def machine() -> dict[str, Any]:
    """Processor, cores this process may use, memory in bytes (None where the system does not say), platform, python."""
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, IndexError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = None
    with contextlib.suppress(AttributeError, ValueError, OSError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu,
        "cores": cores,
        "memory": memory,
        "platform": platform.platform(),
        "python": platform.python_version(),
    }


def sync_folder(path: Path) -> None:
    """Make renames inside a folder survive a power cut (where the system can open a folder)."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def atomic_write_text(path: str | Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new one, never a part, also after a power cut.

    Temporary file in the same folder, fsync, rename, fsync of the folder. OSError leaves the old file as it was.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def check_schema(found: Any, where: str) -> None:
    """ValueError unless `found` is the schema this version reads; the message says which version reads it."""
    if found == SCHEMA and not isinstance(found, bool):
        return
    ours = f"termwise {versions().get('termwise', 'as installed')} reads schema {SCHEMA}"
    if isinstance(found, int) and found > SCHEMA:
        raise ValueError(f"{where}: schema {found} was written by a newer termwise; {ours}: update termwise to read it")
    if found in _READERS:
        raise ValueError(f"{where}: schema {found} is too old; {ours}; termwise {_READERS[found]} reads schema {found}")
    raise ValueError(f"{where}: schema {found!r} was never written by termwise; {ours}")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One measured value, with all that is needed to judge it. `value` is None exactly when status is not "ok".

    `unit` is spelled out ("nats/token", "bits/byte", "s", "B", "tokens/s"), `low` and `high` bound an interval of
    `level`, `n` counts what was averaged, `baseline` names the variant compared with. ValueError for NaN and infinity.

    >>> record = Record(run_id="study-1", kind="loss", subject={"variant": "softmax", "seed": 0},
    ...                 metric="held-out loss", value=2.25, unit="nats/token")
    >>> Record.from_json(record.to_json()) == record
    True
    """

    schema: int = SCHEMA
    run_id: str
    kind: str
    subject: dict[str, Any]
    metric: str
    value: float | None
    unit: str
    low: float | None = None
    high: float | None = None
    level: float | None = None
    n: int | None = None
    method: str | None = None
    baseline: str | None = None
    status: str = "ok"
    reason: str | None = None
    started: str | None = None
    seconds: float | None = None
    form: str | None = None
    config_hash: str | None = None

    def __post_init__(self) -> None:
        for name, allowed in (("kind", KINDS), ("status", STATUSES)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"record: {name}={getattr(self, name)!r}; allowed are {', '.join(allowed)}")
        for name in ("value", "low", "high", "level", "seconds"):
            object.__setattr__(self, name, _number(name, getattr(self, name)))
        if (self.value is None) == (self.status == "ok"):
            raise ValueError(
                f"record: value={self.value!r} with status={self.status!r}; a value stands exactly where status is ok"
            )
        if self.status != "ok" and not self.reason:
            raise ValueError(f"record: status={self.status!r} needs a reason")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"record: low={self.low!r} is above high={self.high!r}")
        canonical_json(self.subject)

    def to_json(self) -> str:
        """One line of JSON with every field, in the order of the class."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, where: str = "record") -> Record:
        """Read one line. ValueError for another schema (naming the version that reads it) or unknown fields."""
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise ValueError(f"{where}: not a JSON object")
        check_schema(fields.get("schema"), where)
        try:
            return cls(**fields)
        except TypeError as error:
            raise ValueError(f"{where}: not a record of schema {SCHEMA} ({error})") from error


def _number(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"record: {name}={value!r}; allowed are a number and None")
    if not math.isfinite(value):
        raise ValueError(f"record: {name}={value!r} is no measured value; use None, status='failed' and a reason")
    return int(value) if isinstance(value, numbers.Integral) else float(value)


class FolderLocked(ValueError):  # noqa: N818
    """Another process writes to the folder. `holder` is what its lock file says: pid, host, started."""

    def __init__(self, path: Path, holder: Mapping[str, Any] | None) -> None:
        who = "a process that has not named itself yet"
        if holder:
            who = f"process {holder['pid']} on {holder['host']}, started {holder['started']}"
        self.path, self.holder = path, holder
        super().__init__(
            f"{path} is in use by {who}; one folder has one writer: wait for it, stop it, or give another --out. "
            f"If it is certainly gone, delete lock and lock.guard there"
        )


class FolderLock:
    """One folder, one writer, for the length of a `with`; taken again freely inside the same thread.

    The lock itself is held by the operating system (`lock.guard`), so it ends with its process, kill -9 included;
    `lock` only says who. A second process gets FolderLocked within half a second. What a dead process of this host
    left is taken over and said aloud; a lock left by another host is refused, because nobody here can know its end.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._name = self.path / "lock"

    def __enter__(self) -> FolderLock:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"the folder {self.path} cannot be made: {error.strerror}; give another --out") from None
        self._guard = filelock.FileLock(self.path / "lock.guard", is_singleton=True)
        try:
            self._guard.acquire(timeout=0.4, poll_interval=0.05)
        except filelock.Timeout:
            raise FolderLocked(self.path, _read_holder(self._name)) from None
        if self._guard.lock_counter == 1:
            try:
                self._sign()
            except BaseException:
                self._guard.release()
                raise
        return self

    def _sign(self) -> None:
        left = _read_holder(self._name)
        if left and left["host"] != socket.gethostname():
            raise FolderLocked(self.path, left)
        if left:
            _log.warning("%s: took over the lock of process %s, which is gone", self.path, left["pid"])
        for path in filter(_is_left_over, self.path.iterdir()):
            path.unlink()
        atomic_write_text(
            self._name, canonical_json({"pid": os.getpid(), "host": socket.gethostname(), "started": now()}) + "\n"
        )

    def __exit__(self, *exception: object) -> None:
        if self._guard.lock_counter == 1:
            self._name.unlink(missing_ok=True)
        self._guard.release()


def _read_holder(path: Path) -> dict[str, Any] | None:
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return holder if isinstance(holder, dict) and {"pid", "host", "started"} <= holder.keys() else None


def file_name(variant: str) -> str:
    """A variant's name as one folder name on every system; urllib.parse.unquote gives the name back.

    Names that would be too long end in a hash of the whole instead: still unique, no longer reversible.

    >>> file_name("taylor:0..2@mean+w64s4")
    'taylor%3A0..2@mean+w64s4'
    """
    if not variant:
        raise ValueError("variant='' names no folder; give a catalogue name, a short name or a spec file")
    name = urllib.parse.quote(variant, safe="@+=,")
    if name.startswith(".") or name.endswith("."):
        name = name.replace(".", "%2E")
    return name if len(name) <= 120 else f"{name[:100]}%{config_hash(variant)}"


class RunFolder:
    """OUT: run.json, records.jsonl and the folders of single runs. Made with `create` (write) or `open` (read only).

    run.json and records.jsonl are written by one process, the one that holds `lock()`.
    """

    def __init__(self, path: Path, run: dict[str, Any], *, is_writable: bool) -> None:
        self.path, self.run, self._is_writable = path, run, is_writable
        self._is_tail_whole = False

    @classmethod
    def create(
        cls,
        path: str | Path,
        command: str,
        arguments: Mapping[str, Any],
        resolved: Mapping[str, Any],
        extendable: Sequence[str] = (),
    ) -> RunFolder:
        """Make a run folder, or take up the one that is there when it was made by the same command and settings.

        Fields named in `extendable` may differ: lists grow by what is new, anything else takes the new value. Any other
        difference is a ValueError naming the fields, as is a folder of somebody else's files.
        """
        path = Path(path)
        new = {"schema": SCHEMA, "run_id": f"{command}-{config_hash([command, resolved])}", "command": command}
        new |= {"arguments": dict(arguments), "resolved": dict(resolved)}
        new |= {"versions": versions(), "machine": machine(), "created": now()}
        new = json.loads(canonical_json(new))
        cls.check(path, command)
        with FolderLock(path):
            if (path / "run.json").exists():
                new = _extended(_read_run(path), new, extendable, path)
            folder = cls(path, {}, is_writable=True)
            folder.update(**new)
        return folder

    @staticmethod
    def check(path: Path, command: str) -> None:
        """ValueError for a path that `create` refuses whatever the settings: a file, files of somebody else, another command's run."""
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path} is a file; give --out a folder, new or made by termwise {command}")
        if (path / "run.json").exists():
            _check_command(_read_run(path), command, path)
        elif _holds_other_files(path):
            raise ValueError(f"{path} holds other files and no run.json; give --out a new or empty folder")

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Open a run folder for reading. ValueError when there is none or another version wrote it."""
        return cls(Path(path), _read_run(Path(path)), is_writable=False)

    def lock(self) -> FolderLock:
        """The lock of this folder, for the length of a `with`."""
        return FolderLock(self.path)

    def update(self, **fields: Any) -> None:
        """Set fields of run.json; the file is replaced whole."""
        self._check_writable()
        run = self.run | fields
        canonical_json(run)
        atomic_write_text(self.path / "run.json", json.dumps(run, indent=1, ensure_ascii=False) + "\n")
        self.run = run

    def append(self, *records: Record) -> None:
        """Add records, one line each, all on disk when this returns."""
        self._check_writable()
        with open(self.path / "records.jsonl", "ab") as file:
            if not self._is_tail_whole:
                _drop_torn_line(self.path / "records.jsonl")
                self._is_tail_whole = True
            file.write(b"".join(record.to_json().encode() + b"\n" for record in records))
            file.flush()
            os.fsync(file.fileno())

    def records(self) -> list[Record]:
        """All records, in order. A last line torn by a crash is left out, aloud; any other damage is a ValueError."""
        path = self.path / "records.jsonl"
        whole, _, torn = (path.read_bytes() if path.exists() else b"").rpartition(b"\n")
        if torn:
            _log.warning("%s: the last line is incomplete and left out: %.60r", path, torn)
        found = []
        for number, line in enumerate(whole.split(b"\n") if whole else (), start=1):
            where = f"{path} line {number}"
            try:
                found.append(Record.from_json(line.decode(), where))
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                raise ValueError(f"{where} is damaged ({error}); restore it or delete the line") from error
        return found

    def run_path(self, variant: str, seed: int) -> Path:
        """OUT/runs/VARIANT/SEED, with the variant as a file name."""
        return self.path / "runs" / file_name(variant) / str(seed)

    def _check_writable(self) -> None:
        if not self._is_writable:
            raise ValueError(f"{self.path} was opened for reading; RunFolder.create takes up a folder for writing")


def _holds_other_files(path: Path) -> bool:
    ours = ("lock", "lock.guard")
    return path.is_dir() and any(entry.name not in ours and not _is_left_over(entry) for entry in path.iterdir())


def _is_left_over(path: Path) -> bool:
    """A temporary file of atomic_write_text whose process was killed."""
    return path.name.startswith(".") and path.name.endswith(".tmp") and path.is_file()


def _read_run(path: Path) -> dict[str, Any]:
    try:
        run = json.loads((path / "run.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{path} is no run folder: it has no run.json; give the --out of an earlier command") from None
    except ValueError as error:
        raise ValueError(
            f"{path / 'run.json'} is damaged ({error}); restore it or start again in a new folder"
        ) from error
    check_schema(run.get("schema") if isinstance(run, dict) else None, str(path / "run.json"))
    return run


def _check_command(run: dict[str, Any], command: str, path: Path) -> None:
    if run["command"] != command:
        raise ValueError(f"{path} was made by 'termwise {run['command']}'; give 'termwise {command}' a new --out")


def _extended(old: dict[str, Any], new: dict[str, Any], extendable: Sequence[str], path: Path) -> dict[str, Any]:
    """The old run with the new arguments; what may differ is extended, what may not is refused by name."""
    before, after = old["resolved"], new["resolved"]
    _check_command(old, new["command"], path)
    names = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    refused = [
        f"{name} (was {before.get(name)!r}, now {after.get(name)!r})" for name in names if name not in extendable
    ]
    if refused:
        free = f"; only {', '.join(extendable)} may differ" if extendable else ""
        raise ValueError(f"{path} was made with other settings: {', '.join(refused)}{free}; give a new --out")
    resolved = dict(before)
    for name in names:
        was, wanted = before.get(name), after.get(name)
        both_lists = isinstance(was, list) and isinstance(wanted, list)
        resolved[name] = was + [item for item in wanted if item not in was] if both_lists else wanted
    return old | {"arguments": new["arguments"], "resolved": resolved}


def _drop_torn_line(path: Path) -> None:
    """Cut what follows the last line end, so that the next line does not join it."""
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        _log.warning("%s: the last line was incomplete and is removed: %.60r", path, content[end:])
        os.truncate(path, end)
