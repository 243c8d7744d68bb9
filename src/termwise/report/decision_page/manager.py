"""The first page: a verdict with its one reason, the four measures, what follows. No formula, at most one sheet of A4."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from termwise.report.blocks import Table
from termwise.report.decision.case import Case, Verdict
from termwise.report.decision.evidence import Evidence
from termwise.report.decision.limits import Limits
from termwise.report.decision_page import conditions, measures, parts, wording
from termwise.report.decision_page.cost import monthly
from termwise.report.decision_page.measures import Fact
from termwise.report.decision_page.phrases import phrases
from termwise.report.flaws import told
from termwise.report.words import Words

MOST_TERMS, MOST_PHRASES = 9, 4
TERMS = (
    "loss",
    "perplexity",
    "interval",
    "nats",
    "state",
    "decode",
    "slots",
    "head",
    "order",
    "layer",
    "kernel",
    "soak",
)


@dataclass(frozen=True)
class Manager:
    """Everything the page says, in reading order; plain values, so that HTML, Markdown and a terminal say the same."""

    kicker: str
    title: str
    answer: str
    verdict: str
    reason: str
    next_stage: str
    warnings: tuple[str, ...]
    measures: Table
    parts: Table | None
    complexity: tuple[Fact, ...]
    cost: tuple[str, ...]
    stamp: str
    go_on: tuple[str, ...]
    stop: tuple[str, ...]
    untested: tuple[str, ...]
    phrases: tuple[str, ...]
    glossary: tuple[tuple[str, str], ...]


def manager(case: Case, say: Words) -> Manager:
    """The page of the best candidate of a case."""
    verdict = case.verdicts[0]
    evidence, decision = verdict.evidence, verdict.decision
    cost = monthly(evidence, case.limits)
    made = Manager(
        kicker=_kicker(case, say),
        title=_title(verdict, say),
        answer=decision.answer.value,
        verdict=say(f"decision.answer.{decision.answer.value}"),
        reason=reason(verdict, case.limits, say),
        next_stage=_next(verdict, say),
        warnings=_warnings(case, say),
        measures=measures.measures(verdict, case.limits, say),
        parts=parts.few_parts(case, say),
        complexity=measures.complexity(evidence.complexity, say),
        cost=measures.cost_lines(cost, verdict, case.limits, say),
        stamp=conditions.stamp(case, say),
        go_on=conditions.go_on(verdict, case.limits, say),
        stop=conditions.stop(verdict, case.limits, say),
        untested=conditions.untested(case, say),
        phrases=tuple(phrases(verdict, case.limits, cost, say)[:MOST_PHRASES]),
        glossary=(),
    )
    return _with_glossary(made, say)


def _kicker(case: Case, say: Words) -> str:
    times = sorted(
        started for one in case.readings for r in one.records if (started := str(r.started or ""))[:4].isdigit()
    )
    if not times:
        return say("decision.kicker")
    days = say.date(times[0]), say.date(times[-1])
    if days[0] == days[1]:
        return say("decision.kicker.day", day=days[0])
    return say("decision.kicker.dated", first=days[0], last=days[1])


def _title(verdict: Verdict, say: Words) -> str:
    evidence = verdict.evidence
    fields = {"candidate": evidence.candidate, "today": evidence.today or say("decision.today")}
    if evidence.context is None:
        return say("decision.title", **fields)
    return say("decision.title.context", **fields, context=say.integer(evidence.context))


def _next(verdict: Verdict, say: Words) -> str:
    """The next stage, and what a deployment needs beside it."""
    decision = verdict.decision
    first = say(f"decision.next.{decision.next_stage}")
    others = [say(f"decision.condition.{key}") for key in decision.conditions if key != decision.next_stage]
    return say("decision.next.also", first=first, others=say.groups(others)) if others else first


def _told(evidence: Evidence, measure: str, say: Words) -> str:
    """A change with its interval, as part of a sentence."""
    figure = wording.pair_of(evidence, measure).change
    ends = wording.interval(figure, measure, say) if figure.has_interval and figure.low != figure.high else ""
    return f"{wording.change(figure, measure, say)} {ends}".strip()


def reason(verdict: Verdict, limits: Limits, say: Words) -> str:
    """Why the answer is what it is, with the figure that decides it."""
    evidence, key = verdict.evidence, verdict.decision.reason
    if evidence.flaws and key == evidence.flaws[0].why:
        return told(evidence.flaws[0], say)
    measure = next((name for name in wording.MEASURES if key.removeprefix("accept_").startswith(name)), "accuracy")
    figure = evidence.slots if key.startswith("slots") else wording.pair_of(evidence, measure).change
    said = {
        "change": wording.change(figure, measure, say),
        "interval": wording.interval(figure, measure, say),
        "allowed": wording.allowed(limits, measure, say),
        "checks": say.listing([say.known(f"verify.check.{name}", name) for name in evidence.checks.failed], 3),
        **{name: _told(evidence, name, say) for name in wording.MEASURES},
        "engines": say.listing(limits.engines),
        "machine": limits.machine or say("decision.target"),
    }
    return say(f"decision.reason.{key}", **said, n=evidence.checks.num_failed)


def _warnings(case: Case, say: Words) -> tuple[str, ...]:
    found = []
    if case.verdicts[0].evidence.is_demonstration:
        found.append(say("demonstration.note"))
    state = conditions.limits_state(case)
    if state != "before":
        found.append(say(f"decision.limits.{state}"))
    if case.refused:
        names = say.listing([one.path for one in case.refused], 3)
        found.append(say.plural("decision.refused", len(case.refused), names=names))
    return tuple(found)


def _with_glossary(made: Manager, say: Words) -> Manager:
    """The terms that the page uses, explained; the others are left out."""
    text = " ".join(texts(made))
    used = [key for key in TERMS if _stands_in(say(f"decision.term.{key}"), text, say.language)]
    entries = tuple((say(f"decision.term.{key}"), say(f"decision.meaning.{key}")) for key in used[:MOST_TERMS])
    return replace(made, glossary=entries)


def _stands_in(term: str, text: str, language: str) -> bool:
    if language == "ja":
        return term in text
    return re.search(rf"\b{re.escape(term)}s?\b", text, re.IGNORECASE) is not None


def texts(value: Any) -> Iterator[str]:
    """Every text of a page, wherever it stands."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from texts(one)
    elif is_dataclass(value):
        for field in fields(value):
            yield from texts(getattr(value, field.name))
