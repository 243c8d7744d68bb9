"""What `termwise report` prints: the verdict, its reason, the four measures, and the file to open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from termwise.report.decision_page.writing import Written
from termwise.report.terminal import as_rich, opened_at

if TYPE_CHECKING:
    from rich.console import Group

STYLES = {"adopt": "bold green", "conditions": "bold blue", "open": "bold", "reject": "bold dark_orange"}


def summary(written: Written) -> Group:
    """The end of the command as a rich renderable."""
    from rich.console import Group
    from rich.text import Text

    first, say = written.manager, written.say
    head = [
        Text(first.title, style="bold"),
        Text(first.verdict, style=STYLES[first.answer]),
        Text(first.reason),
        Text(f"{say('decision.next')} {first.next_stage}"),
    ]
    warnings = [Text(line, style="yellow") for line in first.warnings]
    return Group(*head, *warnings, as_rich(first.measures), opened_at(written.page, say))
