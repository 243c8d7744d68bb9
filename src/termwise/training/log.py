"""log.jsonl: one line a step, appended as it happens, cut back when a run is taken up at an earlier step."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from termwise.results import sync_folder


class TrainingLog:
    """The open log of one run. Each line is with the operating system when `write` returns; `sync` puts it on disk."""

    def __init__(self, path: Path, *, last_step: int) -> None:
        """Open for appending after removing every line past `last_step` and whatever a crash left half written."""
        self._file = open(path, "ab")  # noqa: SIM115
        kept = _bytes_up_to(path, last_step)
        if kept < path.stat().st_size:
            os.truncate(path, kept)
        sync_folder(path.parent)

    def write(self, line: dict[str, Any]) -> None:
        """Append one line. ValueError for a number that is not finite: a gap is None."""
        try:
            text = json.dumps(line, allow_nan=False)
        except ValueError as error:
            raise ValueError(f"{self._file.name} takes finite numbers, and None for a gap; given {line!r}") from error
        self._file.write(text.encode() + b"\n")
        self._file.flush()

    def sync(self) -> None:
        """Put all lines on disk."""
        os.fsync(self._file.fileno())

    def __enter__(self) -> TrainingLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _bytes_up_to(path: Path, last_step: int) -> int:
    kept = 0
    with open(path, "rb") as file:
        for line in file:
            try:
                is_kept = line.endswith(b"\n") and json.loads(line)["step"] <= last_step
            except (ValueError, KeyError, TypeError):
                break
            if not is_kept:
                break
            kept += len(line)
    return kept
