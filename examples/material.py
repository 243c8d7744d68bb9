"""What the notebooks work on: a small pretrained model, pages of the text it was trained on, this project's records."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from termwise.attention.backends.compiled import cache_folder

HERE = Path(__file__).resolve().parent
FETCH = HERE.parent / "benchmarks" / "models.py"
ALICE = HERE / "alice.txt"
"""The first pages of Alice's Adventures in Wonderland (Carroll 1865, public domain)."""


def glassllm() -> Path:
    """The folder of glassllm: 0.85 M parameters, 4 layers, 4 heads sharing 2 kv heads of width 32, trained on Lewis Carroll's books.

    It is downloaded once (3 MB) and kept in $TERMWISE_MODELS, else in termwise's cache folder. Errors: ConnectionError where it
    cannot be fetched, saying how to get it by hand.
    """
    folder = Path(os.environ.get("TERMWISE_MODELS") or cache_folder() / "models")
    if not (folder / "glassllm").is_dir():
        _fetch(folder)
    return folder / "glassllm"


def workplace() -> None:
    """Make a new folder the current one, with the model as `glassllm` and its text as `alice.txt`, for commands to run in."""
    model = glassllm().resolve()
    os.chdir(tempfile.mkdtemp(prefix="termwise-"))
    shutil.copytree(model, "glassllm")
    shutil.copyfile(ALICE, "alice.txt")


def command(*arguments: str) -> None:
    """Run a command of termwise as on the command line, and say it first. Errors: RuntimeError unless it ends well."""
    from termwise import cli

    print("$ termwise", *arguments)
    try:
        cli.main(arguments)
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(f"termwise {arguments[0]} ended with {ended.code}") from None


def records(name: str) -> list[dict[str, Any]]:
    """The records of one of this project's own runs, benchmarks/records/NAME."""
    lines = (HERE.parent / "benchmarks" / "records" / name / "records.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def _fetch(folder: Path) -> None:
    """Whole or not at all: what is written is moved in place at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        command = [sys.executable, str(FETCH), work, "glassllm"]
        if subprocess.run(command, capture_output=True, text=True).returncode:
            raise ConnectionError(
                f"glassllm is not in {folder} and could not be fetched; with a connection run "
                f"`python benchmarks/models.py FOLDER glassllm` once, and set TERMWISE_MODELS=FOLDER"
            )
        (Path(work) / "glassllm").rename(folder / "glassllm")
