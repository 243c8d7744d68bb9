"""One folder, one writer."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
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

    def check(self) -> None:
        """Refuse what entering would refuse, and leave nothing behind: for a dry run."""
        with self._refused("be written" if self.path.exists() else "be made"):
            there = next(path for path in (self.path, *self.path.absolute().parents) if path.exists())
            tempfile.TemporaryFile(dir=there).close()
        if (self.path / "lock.guard").exists():
            self._hold()
            self._guard.release()
        self._refuse_other_host()

    def __enter__(self) -> FolderLock:
        with self._refused("be made"):
            self.path.mkdir(parents=True, exist_ok=True)
        self._hold()
        if self._guard.lock_counter == 1:
            try:
                self._sign()
            except BaseException:
                self._guard.release()
                raise
        return self

    @contextlib.contextmanager
    def _refused(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ValueError(f"the folder {self.path} cannot {what}: {error.strerror}; give another --out") from None

    def _hold(self) -> None:
        """Take the operating system's lock; FolderLocked while another process has it."""
        self._guard = filelock.FileLock(self.path / "lock.guard", is_singleton=True)
        with self._refused("be written"):
            try:
                self._guard.acquire(timeout=0.4, poll_interval=0.05)
            except filelock.Timeout:
                raise FolderLocked(self.path, _read_holder(self._name)) from None

    def _refuse_other_host(self) -> dict[str, Any] | None:
        """Who signed last, if it was on this host; nobody here can know the end of a process elsewhere."""
        left = _read_holder(self._name)
        if left and left["host"] != socket.gethostname():
            raise FolderLocked(self.path, left)
        return left

    def _sign(self) -> None:
        if left := self._refuse_other_host():
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
