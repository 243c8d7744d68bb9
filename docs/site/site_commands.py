"""docs/commands.md: every command with its options, from the command line itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from termwise import cli

START = """# The command line

Written from the commands themselves, as `termwise COMMAND --help` prints it. Exit codes: 0 done, 1 a run or a check failed, 2 bad input (one
line says what was given, what is allowed and what to do), 130 and 143 stopped by a signal, with everything saved.
"""


def write(page: Path) -> None:
    page.write_text(text(), encoding="utf-8")


def text() -> str:
    """The page in Markdown.

    >>> "## `termwise study`" in text()
    True
    """
    group = typer.main.get_command(cli.app)
    return "\n".join([START, *(_section(name, command) for name, command in group.commands.items())])  # type: ignore[attr-defined]


def _section(name: str, command: Any) -> str:
    context = command.make_context(f"termwise {name}", [], resilient_parsing=True)
    usage = command.get_usage(context).removeprefix("Usage: ")
    records = [parameter.get_help_record(context) for parameter in command.params]
    rows = [f"| `{_cell(given)}` | {_cell(said)} |" for given, said in filter(None, records)]
    return "\n".join(
        [f"## `termwise {name}`", "", f"    {usage}", "", command.help, "", "| | |", "|---|---|", *rows, ""]
    )


def _cell(text: str) -> str:
    """Text on one line, in which a bar ends no cell."""
    return " ".join(text.split()).replace("|", "\\|")
