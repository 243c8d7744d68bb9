"""What keeps a decision from resting on a run: records that are gone, values that cannot be, work that was broken off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from termwise.report.read import Reading
from termwise.report.words import Words
from termwise.results import num_records

CHECK = "check"
# Commands that mark their end in run.json and whose figures do not tell that it was not reached.
ENDING = ("convert",)


@dataclass(frozen=True)
class Flaw:
    """What is wrong with the run `source`: `why` is a key of the words (`flaw.*`) with its `fields`, `n` things of a kind."""

    why: str
    source: str
    n: int = 1
    fields: tuple[tuple[str, Any], ...] = ()


def flaws(reading: Reading) -> tuple[Flaw, ...]:
    """Everything that is wrong with a run, the most telling first; empty for one whose figures stand for themselves.

    How many records a run ended with stands in its run.json; of runs recorded before that was said, nothing is known to be gone.
    """
    source = str(reading.folder.path)
    found = [
        Flaw("implausible", source, len(group.lines), (("line", group.lines[0]), ("value", group.values[0])))
        for group in reading.left_out
        if group.why == "implausible"
    ]
    for kind, (missing, stated) in missing_records(reading).items():
        what = CHECK if kind == CHECK else "record"
        found.append(Flaw("incomplete", source, missing, (("stated", stated), ("what", what))))
    if reading.run.get("command") in ENDING and not reading.run.get("finished"):
        found.append(Flaw("unfinished", source))
    return tuple(found)


def missing_records(reading: Reading) -> dict[str, tuple[int, int]]:
    """kind -> how many records are gone since the run ended, of how many."""
    stated = reading.run.get("num_records")
    found = num_records(reading.records)
    return {
        kind: (number - found.get(kind, 0), number)
        for kind, number in (stated if isinstance(stated, dict) else {}).items()
        if isinstance(number, int) and found.get(kind, 0) < number
    }


def told(flaw: Flaw, say: Words) -> str:
    """One of them in a sentence that names the run, and the line where there is one."""
    fields = dict(flaw.fields)
    if "what" in fields:
        fields["what"] = say(f"flaw.what.{fields['what']}")
    return say.plural(f"flaw.{flaw.why}", flaw.n, run=flaw.source, **fields)
