"""Where a command writes: the folder of its run, apart from the models it reads, and its own alone."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from termwise.results import FolderLock, RunFolder


def run_folder(out: Path | None, default: Path, *models: str) -> Path:
    """The folder of a run: `out` as it was given, apart from the models it reads, else the default, wherever that lies.

    A run that is there goes on where it is.
    """
    if out is not None and not (out / "run.json").exists():
        check_apart(out, *models)
    return out or default


def check_apart(out: Path, *models: str) -> None:
    """ValueError for an `out` inside the folder of a model."""
    for own in filter(None, map(_own_folder, models)):
        if Path(os.path.realpath(out)).is_relative_to(os.path.realpath(own)):
            raise ValueError(
                f"--out {out} lies in {own}, the folder of the model, which stays as it is; give one outside of it"
            )


def _own_folder(model: str) -> Path | None:
    """The folder that a model is: the one named, or the `model` of a run. None for a file and for a name of the catalogue."""
    path = Path(model).expanduser()
    found = [folder for folder in (path, path / "model") if (folder / "config.json").is_file()]
    return found[0] if found else path if any(path.glob("*.gguf")) else None


@contextlib.contextmanager
def reserved(folder: Path, command: str) -> Iterator[None]:
    """Hold the lock of a run folder; what fails before there is a run.json leaves nothing behind.

    A folder that is not this command's is refused before anything is written into it.
    """
    RunFolder.check(folder, command)
    was_there = folder.exists()
    try:
        with FolderLock(folder):
            yield
    finally:
        if not was_there and not (folder / "run.json").exists():
            shutil.rmtree(folder, ignore_errors=True)


def check_reservable(folder: Path, command: str) -> None:
    """Refuse what `reserved` would refuse, before a dry run says what would be done there; nothing is written."""
    RunFolder.check(folder, command)
    FolderLock(folder).check()
