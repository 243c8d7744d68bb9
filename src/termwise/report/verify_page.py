"""The page of a verification: whether all forms agree, then what failed and where, every figure, the soak, what was not measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from termwise.report.blocks import Block, Cell, Column, Lines, Section, Table
from termwise.report.sections import method
from termwise.report.verdict import Summary
from termwise.report.verify_view import SOAK, VerifyView, check_of, stage_of
from termwise.report.words import Words
from termwise.results import Record


def parts(view: VerifyView, say: Words) -> dict[str, Any]:
    """What the template is given: view, kicker, title, progress, summary, sections."""
    return {
        "view": view, "kicker": say("verify.kicker"), "title": say("verify.title", model=view.subject.get("model", "")),
        "progress": "" if view.is_finished else say("verify.unfinished", n=len(view.all)),
        "summary": summary(view, say), "sections": sections(view, say),
    }  # fmt: skip


def summary(view: VerifyView, say: Words) -> Summary:
    """One sentence: all agree, or how many do not; then what was read."""
    failed, total = len(view.having("failed")), len(view.all)
    good = len(view.having("ok"))
    if not total:
        return Summary(say("verify.headline.empty"), (), ())
    key = "verify.headline.failed" if failed else "verify.headline.ok" if view.is_finished else "verify.headline.so_far"
    lines = []
    if view.subject:
        lines.append(
            say(
                "verify.line.model",
                specs=say.listing([str(s) for s in view.subject.get("specs", [])]),
                layers=view.subject.get("layers"),
                parameters=say.integer(view.subject.get("parameters")),
            )
        )
        lengths = [str(n) for n in view.subject.get("lengths", [])]
        lines.append(say("verify.line.text", lengths=say.listing(lengths), text=view.subject.get("text", "")))
    left_out = len(view.having("excluded")) + len(view.having("not_measured"))
    lines.append(say.plural("verify.line.left_out", left_out) if left_out else say("verify.line.nothing_left_out"))
    return Summary(say(key, failed=failed, n=total, good=good), tuple(lines), ())


def sections(view: VerifyView, say: Words) -> list[Section]:
    """Every section that has something to say."""
    made: list[tuple[str, Sequence[Block | None]]] = [
        ("failed", [problems(view, "failed", say)]),
        ("figures", [figures(view, say), Lines((say("verify.tolerances"),))]),
        ("soak", [soak(view, say)]),
        ("left_out", [problems(view, "excluded", say), problems(view, "not_measured", say)]),
    ]
    found = []
    for key, blocks in made:
        kept: tuple[Block, ...] = tuple(block for block in blocks if block is not None)
        if kept:
            found.append(Section(key, say(f"verify.section.{key}"), kept))
    threats = tuple(say(f"verify.threat.{key}") for key in ("shared", "text", "device", "quality"))
    return [
        *found,
        method(view.reading, say),
        Section("threats", say("verify.section.threats"), (Lines(threats, is_list=True),)),
    ]


def figures(view: VerifyView, say: Words, *, is_brief: bool = False) -> Table | None:
    """Checks down, stages across: the worst figure of each and what is allowed."""
    stages = view.stages
    names = [name for name, by_stage in view.records.items() if name not in SOAK]
    if not names:
        return None
    columns = (
        Column(say("verify.column.check")),
        *(Column(say(f"verify.stage.{stage}"), is_number=True) for stage in stages),
    )
    made = []
    for name in names:
        by_stage = view.records[name]
        title = say.known(f"verify.check.{name}", name)
        first = Cell(title, "" if is_brief else say.known(f"verify.about.{name}", ""))
        # Transformers' own class is asked once, in float32.
        shown = {**by_stage, "float32": by_stage["original"]} if "original" in by_stage else by_stage
        made.append((first, *(cell(shown.get(stage), say) for stage in stages)))
    return Table("" if is_brief else say("verify.caption.figures"), columns, tuple(made))


def soak(view: VerifyView, say: Words, *, is_brief: bool = False) -> Table | None:
    """The same of the long stream."""
    names = [name for name in SOAK if name in view.records]
    stages = [stage for stage in view.stages if any(stage in view.records[name] for name in names)]
    if not names:
        return None
    columns = (
        Column(say("verify.column.soak")),
        *(Column(say(f"verify.stage.{stage}"), is_number=True) for stage in stages),
    )
    made = []
    for name in names:
        by_stage = view.records[name]
        about = say.known(f"verify.about.{name}", "")
        title = Cell(say.known(f"verify.check.{name}", name), "" if is_brief else about)
        made.append((title, *(cell(by_stage.get(stage), say, with_method=True) for stage in stages)))
    length = say.integer(view.subject.get("soak"))
    return Table("" if is_brief else say("verify.caption.soak", n=length), columns, tuple(made))


def cell(record: Record | None, say: Words, *, with_method: bool = False) -> Cell:
    """A figure, with what is allowed below it."""
    if record is None:
        return Cell("")
    if record.status != "ok":
        tone: Any = "flag" if record.status == "failed" else "missing"
        return Cell(say(f"verify.status.{record.status}"), _size(record.subject.get("measured"), record, say), tone)
    note = ""
    if record.subject.get("tolerance"):
        key = "verify.over" if check_of(record) == "sensitivity" else "verify.allowed"
        note = say(key, value=_size(record.subject["tolerance"], record, say))
    if with_method and record.method:
        note = say.recorded(record.method)
    return Cell(_size(record.value, record, say), note)


def _size(value: Any, record: Record, say: Words) -> str:
    """A number in the way of its unit: counts and bytes whole, relative errors in powers of ten."""
    if not isinstance(value, (int, float)):
        return ""
    if record.unit in ("B", "rows", "tokens", "tensors"):
        return say.bytes(value) if record.unit == "B" else say.integer(value)
    if record.metric == "step_time_ratio":
        return say.number(value, 2)
    return say.power(value)


def problems(view: VerifyView, status: str, say: Words) -> Table | None:
    """Everything that ended so, with its reason; stages of one reason in one row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for record in view.having(status):
        rows.setdefault((check_of(record), record.reason or ""), []).append(say(f"verify.stage.{stage_of(record)}"))
    if not rows:
        return None
    columns = tuple(Column(say(f"verify.column.{key}")) for key in ("check", "stages", "reason"))
    made = tuple(
        (Cell(say.known(f"verify.check.{name}", name)), Cell(say.row(stages)), Cell(say.recorded(reason)))
        for (name, reason), stages in rows.items()
    )
    return Table(say(f"verify.caption.{status}"), columns, made)
