"""The four measures side by side, complexity as counted facts, and what a month costs."""

from __future__ import annotations

from dataclasses import dataclass

from termwise.report.blocks import Cell, Column, Table
from termwise.report.decision.case import Verdict
from termwise.report.decision.evidence import Complexity
from termwise.report.decision.limits import Limits
from termwise.report.decision_page import wording
from termwise.report.decision_page.cost import Cost
from termwise.report.words import Words


def measures(verdict: Verdict, limits: Limits, say: Words) -> Table:
    """The four measures: today, candidate, difference, allowed, judgement."""
    rows = [_measure(verdict, name, limits, say) for name in wording.MEASURES]
    rows.append(_complexity_row(verdict.evidence.complexity, limits, say))
    names = ("measure", "today", "candidate", "difference", "allowed", "judgement")
    columns = tuple(
        Column(say(f"decision.column.{name}"), is_number=name in ("today", "candidate", "difference")) for name in names
    )
    return Table(say("decision.head.measures"), columns, tuple(rows))


def _measure(verdict: Verdict, name: str, limits: Limits, say: Words) -> tuple[Cell, ...]:
    evidence = verdict.evidence
    pair = wording.pair_of(evidence, name)
    context = "" if evidence.context is None else say("value.context", n=say.integer(evidence.context))
    about = say.row(filter(None, (say(f"decision.about.{name}"), context if name != "accuracy" else "")))
    difference = wording.change_cell(pair.change, name, say)
    if name == "accuracy" and (note := wording.perplexity(pair.change, say)):
        difference = Cell(difference.text, say.groups(filter(None, (difference.note, note))), value=difference.value)
    return (
        Cell(say(f"decision.measure.{name}"), about),
        wording.level_cell(pair.today, say),
        wording.level_cell(pair.candidate, say),
        difference,
        Cell(wording.allowed(limits, name, say)),
        wording.judgement(verdict, name, limits, say),
    )


def _complexity_row(found: Complexity, limits: Limits, say: Words) -> tuple[Cell, ...]:
    counts = [n for n in (_count(found.new_dependencies), found.own_kernels) if n is not None]
    added = (
        Cell(say.plural("decision.parts_added", sum(counts)))
        if counts
        else Cell(say("decision.not_counted"), tone="missing")
    )
    engines = say.listing(found.engines, 3)
    loaded = (
        Cell(say("decision.engines", names=engines)) if engines else Cell(say("decision.engines.none"), tone="missing")
    )
    lacking = [name for name in limits.engines if name.casefold() not in {one.casefold() for one in found.engines}]
    wanted = say("decision.allowed.engines", names=say.listing(limits.engines, 3)) if limits.engines else ""
    return (
        Cell(say("decision.measure.complexity"), say("decision.about.complexity")),
        Cell(say("decision.complexity.today")),
        loaded,
        added,
        Cell(wanted or say("decision.allowed.none")),
        _judged(counts, limits, lacking, say),
    )


def _judged(counts: list[int], limits: Limits, lacking: list[str], say: Words) -> Cell:
    if lacking:
        return Cell(say("decision.complexity.lacking", names=say.listing(lacking, 3)), tone="higher")
    if limits.engines:
        return Cell(say("decision.complexity.holds"))
    return Cell(say("decision.complexity.open")) if counts else Cell(say("decision.not_counted"), tone="missing")


def _count(names: tuple[str, ...] | None) -> int | None:
    return None if names is None else len(names)


@dataclass(frozen=True)
class Fact:
    """One counted fact of what the candidate adds; `text` says so where nobody counted it."""

    name: str
    text: str
    is_counted: bool


def complexity(found: Complexity, say: Words) -> tuple[Fact, ...]:
    """What the candidate adds to a system, counted."""
    dependencies = None if found.new_dependencies is None else say.integer(len(found.new_dependencies))
    if found.new_dependencies:
        dependencies = say("decision.named", n=dependencies, names=say.listing(found.new_dependencies, 3))
    values = {
        "dependencies": dependencies,
        "kernels": None if found.own_kernels is None else say.integer(found.own_kernels),
        "engines": say.listing(found.engines, 3) or None,
        "platforms": say.listing(found.platforms, 3) or None,
        "tuning": None if found.tuning_hours is None else say("decision.hours", n=_plain(found.tuning_hours, say)),
        "back": None if found.minutes_back is None else say("decision.minutes", n=_plain(found.minutes_back, say)),
    }
    return tuple(
        Fact(say(f"decision.fact.{key}"), say("decision.not_counted") if value is None else value, value is not None)
        for key, value in values.items()
    )


def _plain(number: float, say: Words) -> str:
    """Hours and minutes with one decimal where they have any."""
    return say.number(number, 0 if number == round(number) else 1)


def cost_lines(cost: Cost | None, verdict: Verdict, limits: Limits, say: Words) -> tuple[str, ...]:
    if cost is None or cost.candidate is None:
        return ()
    unit = f"\N{NO-BREAK SPACE}{limits.currency}" if limits.currency else ""
    money = {
        name: money_text(value, unit, say) for name, value in (("today", cost.today), ("candidate", cost.candidate))
    }
    lines = [say("decision.cost", **money)]
    if cost.change is not None:
        key = "saves" if cost.change < 0 else "adds"
        lines.append(say(f"decision.cost.{key}", change=money_text(abs(cost.change), unit, say)))
    load = {"requests": say.integer(limits.requests_per_day), "tokens": say.integer(limits.tokens_per_request)}
    price = f"{limits.price_per_hour:,g}{unit}"
    lines.append(
        say("decision.cost.assumes", **load, price=price, machine=verdict.evidence.machine or say("not_measured"))
    )
    return tuple(lines)


def money_text(value: float | None, unit: str, say: Words) -> str:
    """An amount: whole from 100 on, cents below."""
    if value is None:
        return say("not_measured")
    return say.number(value, 0 if value >= 100 else 2) + unit
