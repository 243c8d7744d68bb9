"""The table of docs/findings.md about plans, from a record.

python benchmarks/plan.py [NAME]
"""

from __future__ import annotations

import sys
from pathlib import Path

from termwise.report.plan_page import answer
from termwise.report.plan_view import METHODS, PlanView, plan_view
from termwise.report.read import read
from termwise.report.words import words
from termwise.results import Record

RECORDS = Path(__file__).parent / "records"
WORDS = {"lower": "loses less", "higher": "loses more", "none": "no difference found", "few": "too few texts"}


def table(view: PlanView) -> str:
    """A row a share: the rise of each method, and what the plan wins over slots alone."""
    lines = [
        "| share of the cache | plan | exact slots alone | uniform window | plan - slots alone | |",
        "|---|---|---|---|---|---|",
    ]
    for share in sorted({point.share for point in view.points}):
        by_method = {p.method: p.rise for p in view.points if p.share == share}
        gain = view.gains.get((share, "slots"))
        cells = [
            f"{share:.0%}".replace("%", " %"),
            *(figure(by_method.get(method)) for method in METHODS),
            figure(gain),
        ]
        lines.append(f"| {' | '.join(cells)} | {WORDS[answer(gain)] if gain else ''} |")
    return "\n".join(lines)


def figure(record: Record | None) -> str:
    """A figure with its interval."""
    if record is None or record.value is None:
        return "not measured"
    span = "" if record.low is None or record.high is None else f" [{record.low:+.4f}, {record.high:+.4f}]"
    return f"{record.value:+.4f}{span}"


def facts(view: PlanView) -> list[str]:
    """What stands around the table."""
    told = [f"texts {view.num_reported}; kv heads " + ", ".join(f"{kind} {n}" for kind, n in kinds(view).items())]
    told += [
        f"{name}: {record.value:.2f} over {record.n} heads"
        for name, record in view.ranks.items()
        if record.value is not None
    ]
    if view.longer is not None:
        told.append(f"{view.longer.subject['length']} tokens: {figure(view.longer)}")
    told += [f"share of a {dtype} cache {words('en').share(record.value)}" for dtype, record in view.shares.items()]
    return told


def kinds(view: PlanView) -> dict[str, int]:
    """How many kv heads keep their keys in which way."""
    names = [head.keeps for head in view.heads]
    return {name: names.count(name) for name in dict.fromkeys(names)}


if __name__ == "__main__":
    shown = plan_view(read(RECORDS / (sys.argv[1] if len(sys.argv) > 1 else "plan_smollm2")))
    print(table(shown), *facts(shown), sep="\n")
