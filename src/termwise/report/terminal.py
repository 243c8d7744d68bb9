"""What a command prints when it ends: the verdict, a small table, what went wrong, and the page to open."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from termwise.report import (
    bench_page,
    bench_tables,
    convert_page,
    inspect_page,
    plan_page,
    tables,
    verdict,
    verify_page,
)
from termwise.report.bench_view import BenchView, Missing, bench_view
from termwise.report.blocks import Cell
from termwise.report.convert_page import convert_view
from termwise.report.inspect_view import inspect_view
from termwise.report.page import progress, title
from termwise.report.plan_view import plan_view
from termwise.report.read import read
from termwise.report.verify_view import VerifyView, verify_view
from termwise.report.view import View, view
from termwise.report.words import Words, words

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

_TONES = {"missing": "dim italic", "lower": "bold blue", "higher": "bold dark_orange", "flag": "bold yellow"}
MOST_PROBLEMS = 8


def summary(folder: str | Path, *, lang: str = "en") -> Group:
    """The end of a command as a rich renderable, from the same records and words as the page.

    ValueError for a folder without run.json or a language that is not there. Needs neither altair nor jinja2.
    """
    from rich.console import Group
    from rich.text import Text

    say = words(lang)
    reading = read(folder)
    if reading.run["command"] == "bench":
        return _bench(bench_view(reading), Path(folder), say)
    if reading.run["command"] == "convert":
        conversion = convert_view(reading)
        kept = (convert_page.losses(conversion, say), convert_page.heads(conversion, say))
        return _ended(convert_page.parts(conversion, say), kept, Path(folder), say)
    if reading.run["command"] == "verify":
        return _verify(verify_view(reading), Path(folder), say)
    if reading.run["command"] == "inspect":
        inspection = inspect_view(reading)
        made = (inspect_page.ladder_table(inspection, say), inspect_page.heads_table(inspection, say))
        return _ended(inspect_page.parts(inspection, say), made, Path(folder), say)
    if reading.run["command"] == "plan":
        plan = plan_view(reading)
        return _ended(plan_page.parts(plan, say), (plan_page.front_table(plan, say),), Path(folder), say)
    shown = view(reading)
    told = verdict.summary(shown, say)
    head = Text(title(shown, say), style="bold")
    if shown.is_demonstration:
        head.append(f"  {say('demonstration')}", style="yellow")
    parts = [head, Text(told.headline), *(Text(line) for line in told.lines)]
    if progress(shown, say):
        parts.append(Text(progress(shown, say), style="yellow"))
    body = [as_rich(tables.brief(shown, say))] if shown.variants else []
    page = Path(folder) / "index.html"
    opened = [opened_at(page, say)] if page.exists() else []
    return Group(*parts, *body, *_problems(shown, say), *opened)


def opened_at(page: Path, say: Words) -> Text:
    """Which file to open, on one line however narrow the terminal: a path that is broken in two opens nothing."""
    from rich.text import Text

    return Text(say("terminal.open", path=page), style="bold", no_wrap=True, overflow="ignore")


def _bench(shown: BenchView, folder: Path, say: Words) -> Group:
    """The end of a benchmark: crossings, one table a measure, what is missing."""
    from rich.console import Group
    from rich.text import Text

    parts = bench_page.parts(shown, say)
    told = parts["summary"]
    head = [Text(parts["title"], style="bold"), Text(told.headline), *(Text(line) for line in told.lines)]
    tables = [as_rich(table) for table in bench_tables.brief(shown, say)]
    missing = [Text(_missing(problem, say), style=_TONES["flag"]) for problem in shown.problems[:MOST_PROBLEMS]]
    page = folder / "index.html"
    opened = [opened_at(page, say)] if page.exists() else []
    return Group(*head, *tables, *missing, *opened)


def _verify(shown: VerifyView, folder: Path, say: Words) -> Group:
    """The end of a verification: the verdict, every figure, what failed and what was left out."""
    from rich.console import Group
    from rich.text import Text

    told = verify_page.parts(shown, say)
    is_bad = bool(shown.having("failed"))
    head = [
        Text(told["title"], style="bold"),
        Text(told["summary"].headline, style="bold red" if is_bad else "bold green"),
    ]
    head += [Text(line) for line in told["summary"].lines]
    brief = (verify_page.figures(shown, say, is_brief=True), verify_page.soak(shown, say, is_brief=True))
    rest = [
        Text(say("terminal.check", **_check(row), status=say(f"verify.status.{status}")), style=style)
        for status, style in (("failed", _TONES["flag"]), ("excluded", "dim"), ("not_measured", "dim"))
        for table in (verify_page.problems(shown, status, say),)
        for row in (table.rows if table else ())
    ]
    page = folder / "index.html"
    opened = [opened_at(page, say)] if page.exists() else []
    return Group(*head, *(as_rich(table) for table in brief if table), *rest, *opened)


def _missing(row: Missing, say: Words) -> str:
    measure = say(f"bench.measure.{row.measure}")
    return say(
        "terminal.missing",
        variant=row.variant,
        measure=measure,
        length=say.integer(row.length),
        reason=say.recorded(row.reason),
    )


def _check(row: tuple[Cell, ...]) -> dict[str, str]:
    return {"check": row[0].text, "stages": row[1].text, "reason": row[2].text}


def _ended(parts: dict[str, Any], made: Sequence[tables.Table | None], folder: Path, say: Words) -> Group:
    """The end of an inspection, a plan or a conversion: what the page says first, and the tables that have rows."""
    from rich.console import Group
    from rich.text import Text

    told = parts["summary"]
    lines = [Text(parts["title"], style="bold"), Text(told.headline), *(Text(line) for line in told.lines)]
    if parts["progress"]:
        lines.append(Text(parts["progress"], style="yellow"))
    body = [as_rich(table) for table in made if table is not None]
    page = folder / "index.html"
    opened = [opened_at(page, say)] if page.exists() else []
    return Group(*lines, *body, *opened)


def as_rich(brief: tables.Table) -> Table:
    """A table of a page as rich draws it: texts only, notes are for the page."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=brief.caption, caption_justify="left")
    for column in brief.columns:
        table.add_column(column.label, justify="right" if column.is_number else "left", overflow="fold")
    for place, row in enumerate(brief.rows):
        table.add_row(*map(_text, row), style="bold" if place in brief.strong else None)
    return table


def _text(cell: Cell) -> Text:
    from rich.text import Text

    return Text(cell.text, style=_TONES.get(cell.tone, ""))


def _problems(shown: View, say: Words) -> list[Text]:
    """The first lines of what failed or was not measured."""
    from rich.text import Text

    lines = []
    for problem in shown.problems[:MOST_PROBLEMS]:
        fields = {
            "names": say.listing(problem.variants),
            "seeds": say.row(problem.seeds) or say("all_seeds"),
            "what": say.known(f"metric.{problem.metric}", problem.metric),
            "state": tables.problem_state(problem, say),
            "reason": say.recorded(problem.reason) or say("problems.no_record"),
        }
        style = _TONES["flag"] if problem.status == "failed" else "dim"
        lines.append(Text(say("terminal.problem", **fields), style=style))
    if len(shown.problems) > MOST_PROBLEMS:
        lines.append(Text(say("terminal.more", n=len(shown.problems) - MOST_PROBLEMS), style="dim"))
    return lines
