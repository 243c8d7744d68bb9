"""The child's side of a grid: `python -m termwise.study.worker FOLDER ...` works through the folders given.

Environment and locks come first, torch after. Exit codes: 0 all folders have a result, 1 a run failed (failure.txt says
why), 75 another process holds a folder, 128 + signal stopped by a signal.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback
from pathlib import Path

from termwise.results import FolderLock, FolderLocked, atomic_write_text
from termwise.study.workers import ALOUD, EXIT_LOCKED, worker_environment


def main(folders: list[Path]) -> int:
    os.environ.update(worker_environment())
    _warn_aloud()
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    for folder in folders:
        if (folder / "result.json").exists():
            continue
        try:
            with FolderLock(folder):
                code = _run(folder)
        except FolderLocked as error:
            print(error, file=sys.stderr)
            return EXIT_LOCKED
        if code:
            return code
    return 0


def _run(folder: Path) -> int:
    (folder / "failure.txt").unlink(missing_ok=True)
    try:
        from termwise.study.grid import RunConfig
        from termwise.study.run import run_one

        run_one(folder, RunConfig.load(folder))
    except Exception as error:
        traceback.print_exc()
        atomic_write_text(folder / "failure.txt", f"{type(error).__name__}: {error}\n")
        return 1
    return 0


def _warn_aloud() -> None:
    """Warnings of ours go to worker.log in lines that the parent finds and repeats."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"{ALOUD}%(message)s"))
    ours = logging.getLogger("termwise")
    ours.addHandler(handler)
    ours.propagate = False


def _stop_with_parent() -> None:
    """End as SIGTERM would when standard input ends, that is when the parent is gone."""
    # The raw descriptor: a buffered reader would be held by this thread when the interpreter ends.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main([Path(argument) for argument in sys.argv[1:]]))
