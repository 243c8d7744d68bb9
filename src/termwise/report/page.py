"""OUT/index.html: one file that shows a run without network, without scripts, on a screen and on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from termwise.report import bench_page, convert_page, drawing, inspect_page, plan_page, verify_page
from termwise.report.bench_view import bench_view
from termwise.report.convert_page import convert_view
from termwise.report.inspect_view import inspect_view
from termwise.report.plan_view import plan_view
from termwise.report.read import Reading, read
from termwise.report.sections import sections, text_name
from termwise.report.verdict import summary
from termwise.report.verify_view import verify_view
from termwise.report.view import View, view
from termwise.report.words import Words, words
from termwise.results import atomic_write_text

HERE = Path(__file__).parent


def write(folder: str | Path, *, lang: str = "en") -> Path:
    """Write the page of a run folder from its records, and say where it is.

    Half-finished, failed and foreign records are named on the page; a figure that is missing is printed as "not
    measured". Needs no model and no network. ValueError for a folder without run.json, for a language that is not
    there, and where the extra packages are not installed. The page is replaced whole or not at all.
    """
    say = words(lang)
    reading = read(folder)
    path = Path(folder) / "index.html"
    atomic_write_text(path, _text(reading, say))
    return path


def _text(reading: Reading, say: Words) -> str:
    """The page of whatever command made the run."""
    command = reading.run["command"]
    if command == "bench":
        return rendered(bench_page.parts(bench_view(reading), say), say)
    if command == "inspect":
        return rendered(inspect_page.parts(inspect_view(reading), say), say)
    if command == "plan":
        return rendered(plan_page.parts(plan_view(reading), say), say)
    if command == "convert":
        return rendered(convert_page.parts(convert_view(reading), say), say)
    if command == "verify":
        return rendered(verify_page.parts(verify_view(reading), say), say)
    return render(view(reading), say)


def render(shown: View, say: Words) -> str:
    """The page of a study as text."""
    parts = {
        "view": shown, "kicker": say("kicker"), "title": title(shown, say), "progress": progress(shown, say),
        "summary": summary(shown, say), "sections": sections(shown, say),
    }  # fmt: skip
    return rendered(parts, say)


def rendered(parts: dict[str, Any], say: Words) -> str:
    """A page of these parts: view, kicker, title, progress, summary, sections."""
    figures, jinja2 = _tools()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["letters"] = drawing.letters
    template = environment.get_template("page.html.j2")
    return template.render(
        **parts,
        say=say,
        svg=lambda figure: jinja2.utils.markupsafe.Markup(figures.svg(figure.specification, figure.key)),
        css=jinja2.utils.markupsafe.Markup((HERE / "page.css").read_text(encoding="utf-8")),
    )


def title(shown: View, say: Words) -> str:
    """What the page is about: how many variants, on which text."""
    if not shown.compared:
        return say("title.none")
    return say.plural("title", len(shown.compared), variant=shown.compared[0].name, text=text_name(shown, say))


def progress(shown: View, say: Words) -> str:
    """How far a study is; empty once every planned run has its held-out loss."""
    done, planned = sum(len(v.finished) for v in shown.variants), len(shown.variants) * len(shown.seeds)
    return (
        say.plural("unfinished", planned, done=done, planned=planned) if done < planned and shown.is_loss_asked else ""
    )


def _tools() -> tuple[Any, Any]:
    try:
        import altair  # noqa: F401
        import jinja2
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"the page needs {error.name}, which is not installed; install it with: pip install 'termwise[study]'"
        ) from error
    from termwise.report import figures

    return figures, jinja2
