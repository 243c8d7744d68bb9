"""One call from run folders to a folder with the report: index.html, report.md, report.csv, report.json."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from termwise.report import page
from termwise.report.decision.case import Case, gather
from termwise.report.decision.limits import Limits, read_limits
from termwise.report.decision_page.engineer import Engineer, engineer
from termwise.report.decision_page.exports import as_csv, as_json, as_markdown
from termwise.report.decision_page.manager import Manager, manager
from termwise.report.decision_page.paper import type_size
from termwise.report.rendering import HERE, filled
from termwise.report.words import Words, words
from termwise.results import FolderLock, atomic_write_text, config_hash


@dataclass(frozen=True)
class Written:
    """What was decided, what the first page says, and where it lies. `json` is the text of report.json."""

    case: Case
    manager: Manager
    say: Words
    folder: Path
    json: str

    @property
    def page(self) -> Path:
        """The file to open."""
        return self.folder / "index.html"


def write(
    runs: Sequence[Path],
    limits_path: Path | None = None,
    given: Mapping[str, Any] | None = None,
    *,
    lang: str = "en",
    out: Path | None = None,
    with_pages: bool = False,
) -> Written:
    """Weigh what the runs hold and write the report, each file whole or not at all.

    `given` overrides the limits of the file. Reads records only: no model, no network; the run folders stay as they are,
    unless `with_pages` asks for their own pages in this language. ValueError where no folder can be read, nothing in them
    is a candidate, a limit or the language is not there, or `out` is somebody else's folder.
    """
    say = words(lang)
    limits = read_limits(limits_path, **given or {})
    case = gather(runs, limits, str(limits_path or ""))
    folder = out or Path("termwise-runs") / f"report-{_hash(runs, limits)}"
    check_out(folder)
    first, behind = manager(case, say), engineer(case, say)
    whole = json.dumps(as_json(case, say), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    files = {
        "index.html": as_html(first, behind, say), "report.md": as_markdown(first, behind, say),
        "report.csv": as_csv(case, say), "report.json": whole,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        atomic_write_text(folder / name, content)
    if with_pages:
        for reading in case.readings:
            page.write(reading.folder.path, lang=lang)
    return Written(case, first, say, folder, whole)


def as_html(first: Manager, behind: Engineer, say: Words) -> str:
    """The page; its one script is allowed by its hash, so nothing else can run."""
    script = (HERE / "decision_page" / "script.js").read_text(encoding="utf-8")
    return filled(
        "decision_page/decision.html.j2", with_tips=True, manager=first, engineer=behind, say=say,
        type_size=type_size(first),         script=script, script_hash=script_hash(script),
    )  # fmt: skip


def script_hash(script: str) -> str:
    """What the Content-Security-Policy knows a script by."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def check_out(folder: Path) -> None:
    """ValueError for a place that cannot be written, or holds something else: a file, the page of a run."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; give --out a folder, new or made by termwise report")
    if (folder / "run.json").exists():
        raise ValueError(f"{folder} is a run folder with a page of its own; give --out another folder")
    FolderLock(folder).check()


def _hash(folders: Sequence[Path], limits: Limits) -> str:
    """The same question gives the same folder."""
    return config_hash(["report", [str(path) for path in folders], json.loads(limits.model_dump_json())])
