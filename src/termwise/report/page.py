"""OUT/index.html: one file that shows a run without network, without scripts, on a screen and on paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from termwise.report import bench_page, convert_page, inspect_page, plan_page, verify_page
from termwise.report.bench_view import bench_view
from termwise.report.convert_page import convert_view
from termwise.report.flaws import flaws, told
from termwise.report.inspect_view import inspect_view
from termwise.report.plan_view import plan_view
from termwise.report.read import Reading, read
from termwise.report.rendering import filled
from termwise.report.sections import sections, text_name
from termwise.report.verdict import summary
from termwise.report.verify_view import verify_view
from termwise.report.view import View, view
from termwise.report.words import Words, words
from termwise.results import atomic_write_text


def write(folder: str | Path, *, lang: str = "en") -> Path:
    """Write the page of a run folder from its records, and say where it is.

    Half-finished, failed and foreign records are named on the page; a figure that is missing is printed as "not
    measured". Needs no model and no network. ValueError for a folder without run.json, for a language that is not
    there, and where the extra packages are not installed. The page is replaced whole or not at all.
    """
    say = words(lang)
    reading = read(folder)
    path = Path(folder) / "index.html"
    atomic_write_text(path, filled("page.html.j2", **parts(reading, say), say=say))
    return path


def parts(reading: Reading, say: Words) -> dict[str, Any]:
    """What a page is made of, whatever command made the run: view, kicker, title, progress, summary, sections."""
    make = _PARTS.get(reading.run["command"])
    made = make(reading, say) if make is not None else _study(reading, say)
    # What is not finished says so in its own words.
    wrong = [told(flaw, say) for flaw in flaws(reading) if flaw.why != "unfinished"]
    return made | {"progress": say.sentences((made["progress"], *wrong))}


def _study(reading: Reading, say: Words) -> dict[str, Any]:
    shown = view(reading)
    return {
        "view": shown, "kicker": say("kicker"), "title": title(shown, say), "progress": progress(shown, say),
        "summary": summary(shown, say), "sections": sections(shown, say),
    }  # fmt: skip


_PARTS: dict[str, Callable[[Reading, Words], dict[str, Any]]] = {
    "bench": lambda reading, say: bench_page.parts(bench_view(reading), say),
    "inspect": lambda reading, say: inspect_page.parts(inspect_view(reading), say),
    "plan": lambda reading, say: plan_page.parts(plan_view(reading), say),
    "convert": lambda reading, say: convert_page.parts(convert_view(reading), say),
    "verify": lambda reading, say: verify_page.parts(verify_view(reading), say),
}


def title(shown: View, say: Words) -> str:
    """What the page is about: how many variants, on which text."""
    if not shown.compared:
        return say("title.none")
    return say.plural("title", len(shown.compared), variant=shown.compared[0].name, text=text_name(shown, say))


def progress(shown: View, say: Words) -> str:
    """How far a study is; empty once every planned run has its held-out loss."""
    done, planned = sum(len(v.finished) for v in shown.variants), len(shown.variants) * len(shown.seeds)
    is_short = done < planned and shown.is_loss_asked
    return say.plural("unfinished", planned, done=done, planned=planned) if is_short else ""
