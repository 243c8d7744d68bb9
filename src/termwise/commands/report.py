"""`termwise report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from termwise.commands.shared import Json, at_home


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN", help="Folders of study, inspect, plan, convert, evaluate, bench, verify.", show_default=False
        ),
    ],
    lang: Annotated[str, typer.Option(help="Language of the report: en or ja.")] = "en",
    limits: Annotated[
        Path | None,
        typer.Option(help="YAML file with what is allowed, fixed before the results.", show_default=False),
    ] = None,
    candidate: Annotated[
        str | None, typer.Option(help="Which candidate to decide on. [default: the best]", show_default=False)
    ] = None,
    price_per_hour: Annotated[
        float | None, typer.Option(help="Price of the machine, for the cost a month.", show_default=False)
    ] = None,
    requests_per_day: Annotated[
        float | None, typer.Option(help="Load, for the cost a month.", show_default=False)
    ] = None,
    tokens_per_request: Annotated[
        int | None, typer.Option(help="New tokens a request. [default: 256]", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the report. [default: termwise-runs/report-HASH]", show_default=False, callback=at_home
        ),
    ] = None,
    pages: Annotated[
        bool, typer.Option("--pages", help="Write the page of every run again too, in its own folder.")
    ] = False,
    json: Json = False,
) -> None:
    """Decide from the records of runs: a page for a manager, the engineer's part behind it, and the same as Markdown, CSV and JSON.

    Reads records only: no model, no network. The verdict is adopt, adopt with conditions, do not adopt, or cannot say yet.
    """
    from termwise.report import decision_page

    given = {
        "candidate": candidate, "price_per_hour": price_per_hour, "requests_per_day": requests_per_day,
        "tokens_per_request": tokens_per_request,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    written = decision_page.write(runs, limits, given, lang=lang, out=out, with_pages=pages)
    if json:
        typer.echo(written.json)
        return
    from rich.console import Console

    Console().print(decision_page.summary(written), crop=False)
