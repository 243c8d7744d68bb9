"""What every command shares: the options they have in common, progress, and the end that writes the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

Data = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DATA",
        help="Files, folders, globs (.txt .md .jsonl .parquet .csv .py ...) or hf:org/name; "
        "without it the source of Python's standard library.",
        show_default=False,
    ),
]


def at_home(path: Path | None) -> Path | None:
    """A leading `~` as the user's home: no shell does it behind `--out=`."""
    return None if path is None else path.expanduser()


Out = Annotated[
    Path | None,
    typer.Option(
        help="Run folder. [default: termwise-runs/COMMAND-HASH, so that the same command resumes]",
        show_default=False,
        callback=at_home,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object at the end instead of a table.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps or auto.")]
Dtype = Annotated[
    str | None, typer.Option(help="float32, bfloat16 or auto. [default: what the device does well]", show_default=False)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done and what it would cost, and stop.")]
Errors = Annotated[str, typer.Option(help="Bad UTF-8: strict stops and names it, replace counts it.")]
Column = Annotated[str | None, typer.Option(help="The column that holds the text of tables.", show_default=False)]


def given(call: typer.Context) -> dict[str, Any]:
    """The arguments of this command that were given, as run.json keeps them."""
    found = {}
    for option in call.command.params:
        source = call.get_parameter_source(option.name)
        if source is not None and source.name == "COMMANDLINE":
            value = call.params[option.name]
            found[option.opts[0].lstrip("-").replace("-", "_")] = str(value) if isinstance(value, Path) else value
    return found


def progress_console() -> Console:
    from rich.console import Console

    return Console(stderr=True)


def finish(folder: Path, as_json: bool, lang: str = "en", lines: str | None = None, **more: Any) -> None:
    """Say in run.json that the run is whole, write the page, and print the end of a command.

    `lines` is what --json prints in place of the records.
    """
    from rich.console import Console

    from termwise.report import page, terminal
    from termwise.results import RunFolder

    RunFolder.seal(folder)

    try:
        path: Path | None = page.write(folder, lang=lang)
    except ValueError as error:
        if "pip install" not in str(error):
            raise
        path = None
        typer.echo(f"termwise: no page was written: {error}", err=True)
    if as_json and lines is not None:
        typer.echo(lines, nl=False)
        return
    if as_json:
        from termwise.study.measures import as_json as records_as_json

        typer.echo(
            json.dumps({"folder": str(folder), "page": str(path) if path else None, **more, **records_as_json(folder)})
        )
        return
    Console().print(terminal.summary(folder, lang=lang), crop=False)


def show(value: Any, as_json: bool, table: Any = None) -> None:
    if as_json:
        typer.echo(json.dumps(value, ensure_ascii=False))
    elif table is not None:
        from rich.console import Console

        Console().print(table(value))
    else:
        for name, held in value.items():
            typer.echo(f"{name.replace('_', ' ')}: {_in_words(name, held)}")


def _in_words(name: str, value: Any) -> str:
    """A value as a person reads it: 487.77 "seconds" is 8 min 8 s, a list has commas, a number thousands."""
    from termwise.results import format_duration

    if isinstance(value, dict):
        return ", ".join(f"{key} {_in_words(name, held)}" for key, held in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value)
    if value is None:
        return "none"
    if name == "seconds":
        return format_duration(value)
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
