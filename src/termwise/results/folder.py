"""The folder of a run: run.json, records.jsonl and the folders of single runs."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from termwise.results.environment import machine, now, versions
from termwise.results.files import atomic_write_text, canonical_json, config_hash, file_name, is_left_over
from termwise.results.lock import FolderLock
from termwise.results.record import SCHEMA, Record, check_schema

_log = logging.getLogger(__name__)


class RunFolder:
    """OUT: run.json, records.jsonl and the folders of single runs. Made with `create` (write) or `open` (read only).

    run.json and records.jsonl are written by one process, the one that holds `lock()`.
    """

    def __init__(self, path: Path, run: dict[str, Any], *, is_writable: bool) -> None:
        self.path, self.run, self._is_writable = path, run, is_writable
        self._is_new = False
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
            was_there = (path / "run.json").exists()
            if was_there:
                new = _extended(_read_run(path), new, extendable, path)
            folder = cls(path, {}, is_writable=True)
            folder.update(**new)
            folder._is_new = not was_there
        return folder

    @contextlib.contextmanager
    def learning_first(self, *more: str) -> Iterator[None]:
        """Inside, bad input before the first record of a new run makes it forget what was asked, and the subfolders `more`.

        A mistyped text must not make the folder refuse the right one.
        """
        try:
            yield
        except (ValueError, OSError):
            if self._is_new and not self.records():
                (self.path / "run.json").unlink()
                for name in more:
                    shutil.rmtree(self.path / name, ignore_errors=True)
            raise

    @staticmethod
    def check(
        path: Path, command: str, resolved: Mapping[str, Any] | None = None, extendable: Sequence[str] = ()
    ) -> None:
        """ValueError for a path that `create` refuses: a file, files of somebody else, another command's run, other settings.

        Nothing is written. Without `resolved` only what is refused whatever the settings.
        """
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path} is a file; give --out a folder, new or made by termwise {command}")
        if (path / "run.json").exists():
            before = _read_run(path)
            _check_command(before, command, path)
            if resolved is not None:
                asked = {"command": command, "arguments": {}, "resolved": json.loads(canonical_json(dict(resolved)))}
                _extended(before, asked, extendable, path)
        elif _holds_other_files(path):
            raise ValueError(f"{path} holds other files and no run.json; give --out a new or empty folder")

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Open a run folder for reading. ValueError when there is none or another version wrote it."""
        return cls(Path(path), _read_run(Path(path)), is_writable=False)

    @staticmethod
    def check_weights(path: str | Path, variants: Iterable[Mapping[str, Any]]) -> None:
        """ValueError for a model whose weights are not those that a run was made with before; older runs do not say.

        `variants`: as run.json has them, each with its `name`, a model folder with its `weights`.
        """
        if not (Path(path) / "run.json").exists():
            return
        before = {entry["name"]: entry.get("weights") for entry in _read_run(Path(path)).get("variants", ())}
        for entry in variants:
            then, now = before.get(entry["name"]), entry.get("weights")
            if then and now and then != now:
                raise ValueError(
                    f"{path} was made with other weights of {entry['name']} (were {then}, now {now}); give a new --out"
                )

    @classmethod
    def seal(cls, path: str | Path) -> None:
        """State in run.json how many records of each kind a command ended with, so that a reader can tell when some are gone.

        The caller holds the lock. A run that goes on afterwards has more until it is sealed again; a number never falls.
        """
        folder = cls(Path(path), _read_run(Path(path)), is_writable=True)
        now, before = num_records(folder.records()), folder.run.get("num_records", {})
        folder.update(
            num_records={kind: max(now.get(kind, 0), before.get(kind, 0)) for kind in sorted({*now, *before})}
        )

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

    def append_new(self, *records: Record) -> None:
        """Add those that do not stand there yet with the same figures: what a command works out again each time it ends."""
        known = {_figures(record) for record in self.records()}
        self.append(*(record for record in records if _figures(record) not in known))

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
    return path.is_dir() and any(entry.name not in ours and not is_left_over(entry) for entry in path.iterdir())


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


def num_records(records: Iterable[Record]) -> dict[str, int]:
    """kind -> how many things are recorded; what a later record says again counts once."""
    return dict(Counter(str(kind) for kind, *_ in {_about(record) for record in records}))


def _about(record: Record) -> tuple[str | None, ...]:
    return record.kind, record.metric, canonical_json(record.subject), record.baseline, record.form


def _figures(record: Record) -> tuple[Any, ...]:
    return *_about(record), record.status, record.value, record.low, record.high, record.n
