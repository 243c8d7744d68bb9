"""Sentences for a meeting. Each is filled from numbers and stands under a condition: where that fails, it is not said."""

from __future__ import annotations

from collections.abc import Callable

from termwise.report.decision.case import Verdict
from termwise.report.decision.limits import Limits
from termwise.report.decision.rules import Outcome
from termwise.report.decision_page import wording
from termwise.report.decision_page.cost import Cost
from termwise.report.words import Words

KEPT = (Outcome.BETTER, Outcome.WITHIN)
Phrase = Callable[[Verdict, Limits, Words], str]


def phrases(verdict: Verdict, limits: Limits, cost: Cost | None, say: Words) -> list[str]:
    """Every phrase that is true, the most useful first."""
    made = [make(verdict, limits, say) for make in (_gain, _price, _unknown, _slots, _crossing, _back)]
    return [line for line in (*made, _money(cost, limits, say)) if line]


def _outcome(verdict: Verdict, name: str) -> Outcome:
    return verdict.decision.outcomes.get(name, Outcome.MISSING)


def _gain(verdict: Verdict, limits: Limits, say: Words) -> str:
    """What is won, where memory or time is better beyond noise."""
    evidence = verdict.evidence
    won = [
        say(f"decision.phrase.{name}", change=wording.change(wording.pair_of(evidence, name).change, name, say))
        for name in ("memory", "latency")
        if _outcome(verdict, name) is Outcome.BETTER
    ]
    if not won or evidence.context is None:
        return ""
    return say("decision.phrase.gain", context=say.integer(evidence.context), won=say.listing(won))


def _price(verdict: Verdict, limits: Limits, say: Words) -> str:
    """What accuracy pays, whether it keeps its limit, breaks it or lies on it."""
    outcome, rise = _outcome(verdict, "accuracy"), verdict.evidence.accuracy.change
    if outcome is Outcome.MISSING or not rise.has_interval:
        return ""
    key = "kept" if outcome in KEPT else outcome.value
    figures = {"change": say.signed(rise.value), "low": say.signed(rise.low), "high": say.signed(rise.high)}
    return say(f"decision.phrase.{key}", **figures, limit=wording.short(limits.accuracy))


def _unknown(verdict: Verdict, limits: Limits, say: Words) -> str:
    """What must not be claimed because nobody measured it."""
    names = [name for name in wording.MEASURES if _outcome(verdict, name) is Outcome.MISSING]
    if not names:
        return ""
    return say("decision.phrase.unknown", names=say.listing([say(f"decision.name.{name}") for name in names]))


def _slots(verdict: Verdict, limits: Limits, say: Words) -> str:
    """Whether the untrained baseline of equal bytes does as well."""
    outcome, figure = _outcome(verdict, "slots"), verdict.evidence.slots
    if outcome not in (Outcome.BETTER, Outcome.BROKEN):
        return ""
    return say(f"decision.phrase.slots.{outcome.value}", change=say.number(abs(figure.value or 0.0)))


def _crossing(verdict: Verdict, limits: Limits, say: Words) -> str:
    """From which context on it is faster, where that was found."""
    crossing = verdict.evidence.crossing.value
    return "" if crossing is None else say("decision.phrase.crossing", context=say.length(round(crossing)))


def _back(verdict: Verdict, limits: Limits, say: Words) -> str:
    """How long going back takes."""
    minutes = verdict.evidence.complexity.minutes_back
    return (
        ""
        if minutes is None
        else say("decision.phrase.back", n=say.number(minutes, 0 if minutes == round(minutes) else 1))
    )


def _money(cost: Cost | None, limits: Limits, say: Words) -> str:
    """What the load saves a month."""
    if cost is None or cost.change is None or cost.change >= 0:
        return ""
    amount = -cost.change
    unit = f"\N{NO-BREAK SPACE}{limits.currency}" if limits.currency else ""
    fields = {"requests": say.integer(limits.requests_per_day), "tokens": say.integer(limits.tokens_per_request)}
    return say("decision.phrase.money", **fields, saved=say.number(amount, 0 if amount >= 100 else 2) + unit)
