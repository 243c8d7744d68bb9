"""The engineer's part: the question, every candidate, parts, checks, what is missing, threats; then every run's own page."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from termwise.report import page
from termwise.report.blocks import Block, Cell, Column, Facts, Figure, Html, Lines, Section, Table
from termwise.report.decision.case import Case, Verdict
from termwise.report.decision_page import conditions, wording
from termwise.report.decision_page.heads import Chooser, choosers, models_of
from termwise.report.decision_page.manager import reason
from termwise.report.decision_page.pareto import pareto
from termwise.report.decision_page.parts import parts_table
from termwise.report.flaws import flaws, told
from termwise.report.read import Reading
from termwise.report.sections import command_line, left_out
from termwise.report.words import Words

MAPS = ("inspect-importance", "plan-heads")
MOST_PROBLEMS = 12


@dataclass(frozen=True)
class Run:
    """One run's own page inside the report. `key` makes its anchors unique; `model` ties its maps to a chooser."""

    key: str
    model: str
    command: str
    path: str
    title: str
    progress: str
    lines: tuple[str, ...]
    sections: tuple[Section, ...]


@dataclass(frozen=True)
class Engineer:
    """Sections about the decision as a whole, the heads to choose among with their maps, and the runs."""

    sections: tuple[Section, ...]
    choosers: tuple[tuple[Chooser, tuple[Figure, ...]], ...]
    runs: tuple[Run, ...]


def engineer(case: Case, say: Words) -> Engineer:
    """Everything behind the first page."""
    named = zip(case.readings, models_of(case.readings), strict=True)
    runs = [run(reading, f"run{number}", model, say) for number, (reading, model) in enumerate(named, start=1)]
    chosen = []
    for one in choosers(case.readings, say):
        maps: list[Figure] = []
        for place, owner in enumerate(runs):
            if owner.model == one.model:
                taken, runs[place] = _without_maps(owner)
                maps += taken
        chosen.append((one, tuple(maps)))
    made = (_question, _candidates, _figure, _parts, _checks, _problems, _left_out, _threats, _method)
    sections = tuple(section for make in made if (section := make(case, say)).blocks)
    return Engineer(sections, tuple(chosen), tuple(runs))


def run(reading: Reading, key: str, model: str, say: Words) -> Run:
    """A run's own page under anchors of its own."""
    parts = page.parts(reading, say)
    told = parts["summary"]
    return Run(
        key=key,
        model=model,
        command=str(reading.run["command"]),
        path=str(reading.folder.path),
        title=parts["title"],
        progress=parts["progress"],
        lines=(told.headline, *told.lines),
        sections=tuple(_under(section, key) for section in parts["sections"]),
    )


def _under(section: Section, key: str) -> Section:
    return Section(f"{key}-{section.key}", section.title, tuple(_renamed(block, key) for block in section.blocks))


def _renamed(block: Block, key: str) -> Block:
    """Ids of figures and of the attention viewer, so that two runs of one kind can stand on one page."""
    if isinstance(block, Figure):
        return replace(block, key=f"{key}-{block.key}")
    if isinstance(block, Html):
        return replace(block, markup=block.markup.replace("viewer-", f"{key}-viewer-"))
    return block


def _without_maps(owner: Run) -> tuple[list[Figure], Run]:
    """The maps that stand beside the chooser, and the run without them."""
    taken = [
        block
        for section in owner.sections
        for block in section.blocks
        if isinstance(block, Figure) and block.key in {f"{owner.key}-{name}" for name in MAPS}
    ]
    left = (
        replace(section, blocks=tuple(block for block in section.blocks if block not in taken))
        for section in owner.sections
    )
    return taken, replace(owner, sections=tuple(section for section in left if section.blocks))


def _question(case: Case, say: Words) -> Section:
    verdict, limits = case.verdicts[0], case.limits
    evidence = verdict.evidence
    context = say.integer(evidence.context) if evidence.context is not None else say("not_measured")
    pairs = [
        (say(f"decision.measure.{name}"), (wording.allowed(limits, name, say),), False) for name in wording.MEASURES
    ]
    engines = say.listing(limits.engines) or say("decision.allowed.none")
    pairs += [
        (say("decision.column.context"), (say("value.context", n=context),), False),
        (say("decision.fact.engines"), (engines,), False),
        (say("decision.fact.target"), (limits.machine or say("decision.allowed.none"),), False),
        (say("decision.fact.fixed"), (conditions.stamp(case, say),), False),
    ]
    fields = {"candidate": evidence.candidate, "today": evidence.today or say("decision.today")}
    lines = Lines((say.plural("decision.question", len(case.verdicts), **fields), say("decision.rules")))
    return Section("question", say("decision.section.question"), (lines, Facts(tuple(pairs))))


def _candidates(case: Case, say: Words) -> Section:
    names = ("candidate", "answer", "rise", "memory", "latency", "slots", "n", "reason")
    columns = tuple(Column(say(f"decision.column.{name}"), is_number=name in names[2:7]) for name in names)
    rows = tuple(_candidate(one, case, say) for one in case.verdicts)
    levels = {figure.level for one in case.verdicts if (figure := one.evidence.accuracy.change).level is not None}
    caption = say("decision.caption.candidates")
    if levels:
        named = say("decision.caption.levels", levels=say.listing([say.level(x) for x in sorted(levels)], 4))
        caption = say.sentences((caption, named))
    table = Table(caption, columns, rows, frozenset({0}))
    return Section("candidates", say("decision.section.candidates"), (table,))


def _candidate(one: Verdict, case: Case, say: Words) -> tuple[Cell, ...]:
    evidence = one.evidence
    slots = (
        wording.change_cell(evidence.slots, "accuracy", say) if evidence.needs_slots else Cell(say("decision.no_slots"))
    )
    count = evidence.accuracy.change.n
    return (
        Cell(evidence.candidate, say("decision.versus", today=evidence.today) if evidence.today else ""),
        Cell(say(f"decision.answer.{one.decision.answer.value}")),
        wording.change_cell(evidence.accuracy.change, "accuracy", say),
        wording.change_cell(evidence.memory.change, "memory", say),
        wording.change_cell(evidence.latency.change, "latency", say),
        slots,
        Cell(say("not_measured"), tone="missing") if count is None else Cell(say.integer(count), value=count),
        Cell(reason(one, case.limits, say)),
    )


def _figure(case: Case, say: Words) -> Section:
    figure = pareto(case, say)
    drawn = figure or Lines((say("decision.pareto.none"),))
    return Section("pareto", say("decision.section.pareto"), (drawn,))


def _parts(case: Case, say: Words) -> Section:
    """Keep and cut in full, a table a kind."""
    kinds = list(dict.fromkeys(one.kind for one in case.components))
    blocks: list[Block] = [
        parts_table(
            [one for one in case.components if one.kind == kind], say.known(f"decision.caption.parts.{kind}", kind), say
        )
        for kind in kinds
    ]
    return Section("parts", say("decision.section.parts"), tuple(blocks or [Lines((say("decision.parts.none"),))]))


def _checks(case: Case, say: Words) -> Section:
    checks = case.verdicts[0].evidence.checks
    if not (checks.num_passed or checks.num_failed):
        return Section("checks", say("decision.section.checks"), (Lines((say("decision.checks.none"),)),))
    counts = {"passed": checks.num_passed, "failed": checks.num_failed, "missing": checks.num_not_measured}
    lines = [say("decision.checks", **counts)]
    lines.append(say("decision.checks.soak" if checks.has_soak else "decision.checks.no_soak"))
    if not checks.is_whole:
        lines.append(say("decision.checks.not_whole"))
    if checks.failed:
        named = [say.known(f"verify.check.{name}", name) for name in checks.failed]
        lines.append(say("decision.checks.failed", names=say.listing(named, 12)))
    return Section("checks", say("decision.section.checks"), (Lines(tuple(lines)),))


def _problems(case: Case, say: Words) -> Section:
    """What failed, was excluded or not measured in any run, the most frequent reasons first."""
    found: Counter[tuple[str, str, str, str]] = Counter()
    for reading in case.readings:
        for record in reading.records:
            if record.status != "ok":
                name = say.known(f"metric.{record.metric}", record.metric)
                found[reading.folder.path.name, record.status, name, record.reason or ""] += 1
    if not found:
        return Section("problems", say("decision.section.problems"), (Lines((say("decision.problems.none"),)),))
    columns = tuple(
        Column(say(f"decision.column.{name}"), is_number=name == "records")
        for name in ("run", "status", "what", "records", "why")
    )
    rows = tuple(
        (Cell(where), Cell(say(f"status.{status}"), tone="flag" if status == "failed" else ""), Cell(what),
         Cell(say.integer(n), value=n), Cell(say.recorded(why) or say("problems.no_record")))
        for (where, status, what, why), n in found.most_common(MOST_PROBLEMS)
    )  # fmt: skip
    caption = say("decision.caption.problems", shown=len(rows), n=len(found))
    return Section("problems", say("decision.section.problems"), (Table(caption, columns, rows),))


def _left_out(case: Case, say: Words) -> Section:
    """Folders that could not be read and lines of records that were not used."""
    lines = [say("decision.refused.line", path=one.path, why=say.recorded(one.why)) for one in case.refused]
    for reading in case.readings:
        for group in reading.left_out:
            text = left_out(group, say)
            lines.append(say("decision.left_out", run=reading.folder.path.name, text=text))
        lines += [told(flaw, say) for flaw in flaws(reading) if flaw.why != "implausible"]
    lines += [say("decision.unused", path=path) for path in case.unused]
    if not lines:
        lines = [say("decision.left_out.none")]
    return Section("left-out", say("decision.section.left_out"), (Lines(tuple(lines), is_list=len(lines) > 1),))


def _threats(case: Case, say: Words) -> Section:
    """What could make the decision wrong, each said only where the evidence shows it."""
    evidence = case.verdicts[0].evidence
    keys = ["demonstration"] if evidence.is_demonstration else []
    state = conditions.limits_state(case)
    keys += [f"limits_{state}"] if state != "before" else []
    if len(case.verdicts) > 1:
        keys.append("many")
    if evidence.machine and evidence.latency.candidate.is_there:
        keys.append("machine")
    if len({one.evidence.today for one in case.verdicts}) > 1:
        keys.append("mixed")
    keys += ["weights"] if evidence.unidentified else []
    keys += ["text", "loss"]
    fields = {"machine": evidence.machine, "n": len(case.verdicts), "runs": say.listing(evidence.unidentified, 3)}
    lines = tuple(say(f"decision.threat.{key}", **fields) for key in keys)
    return Section("threats", say("decision.section.threats"), (Lines(lines, is_list=True),))


def _method(case: Case, say: Words) -> Section:
    """Commands, configurations, hashes and machines of all runs."""
    columns = tuple(Column(say(f"decision.column.{name}")) for name in ("run", "command", "hashes", "made", "machine"))
    rows = tuple(_made(reading, say) for reading in case.readings)
    return Section("method", say("decision.section.method"), (Table(say("decision.caption.method"), columns, rows),))


def _made(reading: Reading, say: Words) -> tuple[Cell, ...]:
    made, machine = reading.run, reading.run.get("machine")
    hashes = list(dict.fromkeys(str(record.config_hash) for record in reading.records if record.config_hash))
    about = machine if isinstance(machine, dict) else {}
    versions = made.get("versions")
    versions = versions if isinstance(versions, dict) else {}
    told = [f"{name} {versions[name]}" for name in ("termwise", "torch", "python") if name in versions]
    return (
        Cell(reading.folder.path.name, str(made.get("run_id", ""))),
        Cell(command_line(made)),
        Cell(say.listing(hashes, 4) or say("none_given")),
        Cell(say.datetime(str(made.get("created") or say("none_given"))), say.row(told)),
        Cell(str(about.get("cpu") or say("none_given")), str(about.get("platform") or "")),
    )
