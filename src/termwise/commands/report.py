"""`termwise report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from termwise.commands.shared import finish


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders.", show_default=False)],
    lang: Annotated[str, typer.Option(help="Language of the page: en or ja.")] = "en",
) -> None:
    """Write the page of run folders again from their records, and print what it says."""
    for folder in runs:
        finish(folder, as_json=False, lang=lang)
