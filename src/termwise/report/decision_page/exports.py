"""The decision as Markdown, CSV and JSON: the same figures as the page, for other programs and other pages."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from termwise.report.blocks import Cell, Facts, Lines, Section, Table
from termwise.report.decision.case import Case, Verdict
from termwise.report.decision.figures import Figure
from termwise.report.decision.limits import Limits
from termwise.report.decision_page import conditions, wording
from termwise.report.decision_page.cost import monthly
from termwise.report.decision_page.engineer import Engineer
from termwise.report.decision_page.manager import Manager
from termwise.report.flaws import Flaw, told
from termwise.report.words import Words

SCHEMA = 1
COLUMNS = (
    "candidate", "measure", "unit", "today", "with_candidate", "change", "change_unit", "low", "high", "level", "n",
    "allowed", "outcome", "source", "note",
)  # fmt: skip


def as_csv(case: Case, say: Words) -> str:
    """One row a figure; a missing one is empty; the last column says why, or what has to be known of it, as the page does."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(row for verdict in case.verdicts for row in _rows(verdict, case.limits, say))
    return text.getvalue()


def _rows(verdict: Verdict, limits: Limits, say: Words) -> Iterator[dict[str, Any]]:
    evidence, outcomes = verdict.evidence, verdict.decision.outcomes
    bounds = {"accuracy": limits.accuracy, "memory": limits.memory, "latency": limits.latency}
    for measure in wording.MEASURES:
        pair = wording.pair_of(evidence, measure)
        yield {
            "candidate": evidence.candidate, "measure": measure, "unit": pair.candidate.unit or pair.today.unit,
            "today": pair.today.value, "with_candidate": pair.candidate.value, "allowed": bounds[measure],
            "change_unit": "nats/token" if measure == "accuracy" else "candidate/today",
            "outcome": outcomes[measure].value, **_change(pair.change, say),
        }  # fmt: skip
    if evidence.needs_slots:
        yield {
            "candidate": evidence.candidate, "measure": "slots", "unit": "nats/token", "change_unit": "nats/token",
            "allowed": 0, "outcome": outcomes["slots"].value, **_change(evidence.slots, say),
        }  # fmt: skip
    facts = evidence.complexity
    counts = {"new_dependencies": None if facts.new_dependencies is None else len(facts.new_dependencies)}
    counts |= {name: getattr(facts, name) for name in ("own_kernels", "tuning_hours", "minutes_back")}
    units = {"tuning_hours": "h", "minutes_back": "min"}
    for name, count in counts.items():
        yield {"candidate": evidence.candidate, "measure": name, "unit": units.get(name, "1"), "with_candidate": count}


def _change(figure: Figure, say: Words) -> dict[str, Any]:
    found = {name: getattr(figure, name) for name in ("low", "high", "level", "n", "source")}
    note = wording.why(figure, say) or ("" if figure.is_there else say("not_measured"))
    return found | {"change": figure.value, "note": note}


def as_json(case: Case, say: Words) -> dict[str, Any]:
    """The whole decision. A missing figure has `value: null`, and `why` where the records say why."""
    return {
        "schema": SCHEMA,
        "limits": json.loads(case.limits.model_dump_json()),
        "limits_path": case.limits_path,
        "limits_fixed": conditions.limits_state(case),
        "decision": _verdict(case.verdicts[0], case.limits, say),
        "candidates": [_verdict(one, case.limits, say) for one in case.verdicts],
        "components": [_plain(one, say) for one in case.components],
        "runs": [{"path": str(one.folder.path), "run_id": one.run.get("run_id"), "command": one.run["command"],
                  "records": len(one.records), "left_out": [asdict(group) for group in one.left_out]}
                 for one in case.readings],
        "refused": [asdict(one) | {"why": say.recorded(one.why)} for one in case.refused],
    }  # fmt: skip


def _verdict(verdict: Verdict, limits: Limits, say: Words) -> dict[str, Any]:
    decision, cost = verdict.decision, monthly(verdict.evidence, limits)
    return {
        "candidate": verdict.evidence.candidate,
        "answer": decision.answer.value,
        "reason": decision.reason,
        "next_stage": decision.next_stage,
        "outcomes": {name: outcome.value for name, outcome in decision.outcomes.items()},
        "conditions": list(decision.conditions),
        "missing": list(decision.missing),
        "evidence": _plain(verdict.evidence, say),
        "cost_per_month": None if cost is None else asdict(cost) | {"change": cost.change, "currency": limits.currency},
    }


def _plain(value: Any, say: Words) -> Any:
    """A value of the case for programs: what a figure or a flaw says of itself in words, and the key of these beside them."""
    if isinstance(value, Figure):
        key = value.why if say.known(value.why, "") else ""
        return asdict(value) | {"why": wording.why(value, say), "why_key": key}
    if isinstance(value, Flaw):
        return asdict(value) | {"why": told(value, say), "why_key": f"flaw.{value.why}"}
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name), say) for field in fields(value)}
    if isinstance(value, dict):
        return {name: _plain(held, say) for name, held in value.items()}
    return [_plain(held, say) for held in value] if isinstance(value, tuple | list) else value


def as_markdown(first: Manager, behind: Engineer, say: Words) -> str:
    """The manager's page in full and the tables of the decision; the runs' own pages stay in the HTML file."""
    lines = [f"# {first.title}", "", first.kicker, "", f"**{first.verdict}.** {first.reason}", ""]
    lines += [f"**{say('decision.next')}** {first.next_stage}", ""]
    lines += [line for warning in first.warnings for line in (f"> {warning}", "")]
    lines += [f"## {say('decision.head.measures')}", "", *_table(first.measures), ""]
    shown = _table(first.parts) if first.parts else [say("decision.parts.none")]
    lines += [f"## {say('decision.head.parts')}", "", *shown, ""]
    lines += [
        f"## {say('decision.head.complexity')}",
        "",
        *(f"- {fact.name}: {fact.text}" for fact in first.complexity),
        "",
    ]
    if first.cost:
        lines += [f"## {say('decision.head.cost')}", "", *first.cost, ""]
    for key in ("go_on", "stop", "untested", "phrases"):
        points = getattr(first, key)
        if points:
            above = [first.stamp, ""] if key == "go_on" else []
            lines += [f"## {say(f'decision.head.{key}')}", "", *above, *(f"- {point}" for point in points), ""]
    if first.glossary:
        lines += [
            f"## {say('decision.head.glossary')}",
            "",
            *(f"- **{term}**: {text}" for term, text in first.glossary),
            "",
        ]
    lines += [f"# {say('decision.engineer.title')}", ""]
    lines += [line for section in behind.sections for line in _section(section)]
    lines += [f"## {say('decision.head.runs')}", "", *(f"- `{run.path}`: {run.title}" for run in behind.runs)]
    return "\n".join(lines).rstrip() + "\n"


def _section(section: Section) -> list[str]:
    lines = [f"## {section.title}", ""]
    for block in section.blocks:
        if isinstance(block, Table):
            lines += [*_table(block), "", *([block.caption, ""] if block.caption else [])]
        elif isinstance(block, Facts):
            lines += [*_facts(block), ""]
        elif isinstance(block, Lines):
            lines += [*(f"- {line}" if block.is_list else line for line in block.lines), ""]
        else:
            lines += [getattr(block, "description", ""), ""]
    return lines


def _table(table: Table) -> list[str]:
    """Pipes and line ends inside a cell would end it."""
    heads = [_clean(f"{column.label} ({column.unit})" if column.unit else column.label) for column in table.columns]
    rules = ["---:" if column.is_number else "---" for column in table.columns]
    rows = [[_cell(cell) for cell in row] for row in table.rows]
    return [f"| {' | '.join(row)} |" for row in (heads, rules, *rows)]


def _cell(cell: Cell) -> str:
    return _clean(f"{cell.text} ({cell.note})" if cell.note else cell.text)


def _facts(facts: Facts) -> list[str]:
    return [f"- {name}: {'; '.join(lines)}" for name, lines, _ in facts.pairs]


def _clean(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
