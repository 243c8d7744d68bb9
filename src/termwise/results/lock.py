"""One folder, one writer."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import filelock

from termwise.results.environment import now
from termwise.results.files import atomic_write_text, canonical_json, is_left_over

_log = logging.getLogger(__name__)


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
        for path in filter(is_left_over, self.path.iterdir()):
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
