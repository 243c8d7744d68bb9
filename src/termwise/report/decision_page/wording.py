"""Figures, limits and outcomes as people read them. A missing figure is said in words, never as zero or a dash."""

from __future__ import annotations

import math
import re
from typing import Any

from termwise.report.blocks import Cell, Tone
from termwise.report.decision.case import Component, Verdict
from termwise.report.decision.evidence import Evidence
from termwise.report.decision.figures import Figure, Pair
from termwise.report.decision.limits import Limits
from termwise.report.decision.rules import Outcome
from termwise.report.words import Words

MEASURES = ("accuracy", "memory", "latency")
_RUNG = re.compile(r"([\d.]+)@mean(?:\+(.+))?")
TIMES = 2.0
"""From this ratio on a change is told as "3.1 times", below it as a percentage."""

_TONES: dict[Outcome, Tone] = {
    Outcome.BETTER: "lower", Outcome.WITHIN: "", Outcome.WORSE: "higher", Outcome.BROKEN: "higher",
    Outcome.OPEN: "flag", Outcome.MISSING: "missing",
}  # fmt: skip


def pair_of(evidence: Evidence, measure: str) -> Pair:
    """Today beside the candidate in one of MEASURES."""
    pairs = {"accuracy": evidence.accuracy, "memory": evidence.memory, "latency": evidence.latency}
    return pairs[measure]


def missing(figure: Figure, say: Words) -> Cell:
    """Not measured, with the reason where the records have one."""
    return Cell(say("not_measured"), why(figure, say), "missing")


def why(figure: Figure, say: Words) -> str:
    """What a figure says of itself: a message with its fields, or a sentence of the records; empty where nothing."""
    if not say.known(figure.why, ""):
        return say.recorded(figure.why)
    is_empty = any(value in ((), None) for _, value in figure.fields)
    key = f"{figure.why}.none" if is_empty and say.known(f"{figure.why}.none", "") else figure.why
    return say(key, **{name: _field(value, say) for name, value in figure.fields})


def _field(value: Any, say: Words) -> str:
    """A field of a message: counts, levels and lists in the form of the language."""
    if isinstance(value, tuple):
        return say.row(_field(one, say) for one in value)
    if isinstance(value, int):
        return say.integer(value)
    if isinstance(value, float):
        return say.level(value)
    return say("not_measured") if value is None else str(value)


def level(figure: Figure, say: Words) -> str:
    """A value as it stands: a loss, bytes, seconds."""
    if figure.value is None:
        return say("not_measured")
    if figure.unit in ("B", "s", "s/token"):
        return say.figure(figure.value, figure.unit)
    return say.number(figure.value)


def level_cell(figure: Figure, say: Words, note: str = "") -> Cell:
    """The same in a table."""
    if figure.value is None:
        return missing(figure, say)
    return Cell(level(figure, say), note, value=figure.value)


def change(figure: Figure, measure: str, say: Words) -> str:
    """A change: nats with their sign for accuracy, else more or less than today."""
    if figure.value is None:
        return say("not_measured")
    return say.signed(figure.value, _digits(figure)) if measure == "accuracy" else ratio(figure.value, say)


def _digits(figure: Figure) -> int:
    """Decimals of a loss: one more for a change below a hundredth."""
    return 4 if 0 < abs(figure.value or 0.0) < 0.01 else 3


def change_cell(figure: Figure, measure: str, say: Words) -> Cell:
    """The same in a table, with its interval below; a count needs none."""
    if figure.value is None:
        return missing(figure, say)
    notes = (interval(figure, measure, say), why(figure, say))
    return Cell(change(figure, measure, say), say.groups(dict.fromkeys(filter(None, notes))), value=figure.value)


def interval(figure: Figure, measure: str, say: Words) -> str:
    """The interval of a change, or that there is none; empty for a count."""
    if figure.low is None or figure.high is None:
        return "" if figure.why else say("no_interval")
    if figure.low == figure.high:
        return say("decision.counted") if measure != "accuracy" else ""
    if measure == "accuracy":
        return say.interval(figure.low, figure.high, is_signed=True, digits=_digits(figure))
    return f"[{ratio(figure.low, say)}, {ratio(figure.high, say)}]"


def ratio(value: float, say: Words) -> str:
    """Candidate / today as more or less than today.

    >>> from termwise.report.words import words
    >>> [ratio(x, words("en")).replace("\N{NO-BREAK SPACE}", " ") for x in (0.25, 1.0, 1.305, 3.1)]
    ['−75.0 %', '±0 %', '+30.5 %', '3.10 times']
    """
    if value >= TIMES:
        return say("decision.times", n=say.digits(value))
    percent = 100 * (value - 1)
    return say("share", n="\N{PLUS-MINUS SIGN}0" if abs(percent) < 0.05 else say.signed(percent, 1))


def allowed(limits: Limits, measure: str, say: Words) -> str:
    """What a limit allows, or that there is none."""
    if measure == "accuracy":
        return say("decision.allowed.accuracy", limit=short(limits.accuracy))
    limit = limits.memory if measure == "memory" else limits.latency
    return say("decision.allowed.none") if limit is None else say("decision.allowed.share", limit=percent(limit, say))


def judgement(verdict: Verdict, measure: str, limits: Limits, say: Words) -> Cell:
    """An outcome in words; whether a limit was set changes what "worse" means."""
    outcome = verdict.decision.outcomes.get(measure, Outcome.MISSING)
    key = f"decision.outcome.{measure}.{outcome.value}"
    is_bounded = measure == "accuracy" or getattr(limits, measure, None) is not None
    text = say.known(key if is_bounded else f"{key}.unbounded", "") or say(key)
    return Cell(text, tone=_TONES[outcome])


def short(number: float) -> str:
    """A limit as it was typed.

    >>> short(0.05), short(0.1), short(2.0)
    ('0.05', '0.1', '2')
    """
    return f"{number:g}"


def percent(share: float, say: Words) -> str:
    """A limit as a percentage, with no more digits than it was typed with.

    >>> from termwise.report.words import words
    >>> percent(0.5, words("en")).replace("\N{NO-BREAK SPACE}", " ")
    '50 %'
    """
    return say("share", n=short(round(100 * share, 6)))


def perplexity(rise: Figure, say: Words) -> str:
    """What a rise in loss does to the perplexity; empty where it was not measured or leaves the range of sense."""
    if rise.value is None or abs(rise.value) > 3:
        return ""
    return say("decision.perplexity", change=ratio(math.exp(rise.value), say))


def component_name(component: Component, say: Words) -> str:
    """A part by its kind and name; of an inspection's ladder in words.

    >>> from termwise.report.decision.figures import MISSING
    >>> from termwise.report.words import words
    >>> component_name(Component("1..2@mean+w64s4", "order", MISSING, MISSING, "keep", ""), words("en"))
    'orders 1..2 around the mean, beside w64s4'
    """
    found = _RUNG.fullmatch(component.name) if component.kind == "order" else None
    if found:
        orders, slots = found.groups()
        return say(f"decision.component.order.{'slots' if slots else 'mean'}", orders=orders, slots=slots)
    key = f"decision.component.{component.kind}"
    return say(key, name=component.name) if say.known(key, "") else component.name


def saved(figure: Figure, say: Words) -> Cell:
    """What cutting a part saves: bytes, or a share of today's."""
    if figure.value is None:
        return missing(figure, say)
    if figure.unit == "B":
        return Cell(say.size(figure.value), value=figure.value)
    if figure.value >= TIMES:
        return Cell(say("decision.times", n=say.digits(figure.value)), value=figure.value)
    if figure.value < 0:
        return Cell(say("decision.takes_more", share=say.share(-figure.value)), value=figure.value)
    return Cell(say.share(figure.value), value=figure.value)
