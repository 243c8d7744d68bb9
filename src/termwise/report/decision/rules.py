"""The verdict: evidence and limits to one of four answers. Nothing else decides; docs/verdict.md says it in prose.

In this order, and the first that holds is the reason:

    cannot say yet       a demonstration: its numbers say nothing, for or against
    do not adopt         a check failed; the loss rises beyond the limit even at the near end of its interval; memory or time
                         is beyond its limit in the same sense; the slots-only baseline of equal bytes loses less; memory and
                         time were measured and neither leaves room for a gain worth having
    cannot say yet       a run that it rests on is incomplete, unfinished or holds values that cannot be; the loss, or what a
                         limit asks for, is missing or its interval reaches across the limit; no record shows the loss on
                         texts as long as the context; no gain is shown yet; it is not shown that it beats the slots-only
                         baseline
    adopt with conditions   all of that holds, but something a deployment needs is missing or has to be accepted
    adopt                nothing is missing
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from termwise.report.decision.evidence import Evidence
from termwise.report.decision.figures import Figure
from termwise.report.decision.limits import Limits

LEAST_GAIN = (
    0.05  # of bytes or seconds: what is not shown to be better may still be, where its interval reaches further down
)


class Answer(StrEnum):
    """The four answers; better ones first."""

    ADOPT = "adopt"
    CONDITIONS = "conditions"
    OPEN = "open"
    REJECT = "reject"


class Outcome(StrEnum):
    """What one measure says. BETTER and WORSE are beyond its interval, WITHIN is neither and keeps its limit."""

    BETTER = "better"
    WITHIN = "within"
    WORSE = "worse"
    BROKEN = "broken"
    OPEN = "open"
    MISSING = "missing"


@dataclass(frozen=True)
class Decision:
    """One answer. `reason`, `conditions`, `missing` and `next_stage` are keys of the words.

    `outcomes` holds accuracy, memory, latency and slots; `missing` every figure that the verdict had to do without.
    """

    answer: Answer
    reason: str
    outcomes: dict[str, Outcome]
    conditions: tuple[str, ...]
    missing: tuple[str, ...]
    next_stage: str


def decide(evidence: Evidence, limits: Limits) -> Decision:
    """The verdict on one candidate."""
    outcomes = {
        "accuracy": judge_loss(evidence.accuracy.change, limits.accuracy),
        "memory": judge_ratio(evidence.memory.change, limits.memory),
        "latency": judge_ratio(evidence.latency.change, limits.latency),
    }
    if evidence.needs_slots:
        outcomes["slots"] = judge_slots(evidence.slots)
    conditions = _conditions(evidence, limits, outcomes)
    missing = _missing(evidence, outcomes)
    rejected = _why_not(evidence, outcomes)
    if rejected:
        return Decision(Answer.REJECT, rejected, outcomes, (), missing, "stop")
    unsaid = _why_open(evidence, limits, outcomes)
    if unsaid:
        return Decision(Answer.OPEN, unsaid, outcomes, conditions, missing, unsaid)
    if conditions:
        return Decision(Answer.CONDITIONS, conditions[0], outcomes, conditions, missing, conditions[0])
    return Decision(Answer.ADOPT, "all_hold", outcomes, (), missing, "roll_out")


def judge_loss(rise: Figure, allowed: float) -> Outcome:
    """A rise in loss against what is allowed: by the far end of its interval to pass, by the near end to fail."""
    if rise.value is None:
        return Outcome.MISSING
    if rise.low is None or rise.high is None:
        return Outcome.OPEN
    if rise.high <= allowed:
        return Outcome.BETTER if rise.high < 0 else Outcome.WITHIN
    return Outcome.BROKEN if rise.low > allowed else Outcome.OPEN


def judge_ratio(ratio: Figure, allowed: float | None) -> Outcome:
    """Candidate / today of bytes or seconds: better and worse beyond its interval, within or beyond a limit."""
    if ratio.value is None:
        return Outcome.MISSING
    if ratio.low is None or ratio.high is None:
        return Outcome.OPEN
    if allowed is not None and ratio.high > allowed:
        return Outcome.BROKEN if ratio.low > allowed else Outcome.OPEN
    if ratio.high < 1:
        return Outcome.BETTER
    return Outcome.WORSE if ratio.low > 1 else Outcome.WITHIN


def judge_slots(difference: Figure) -> Outcome:
    """Candidate - slots-only baseline of equal bytes: only an interval wholly below 0 shows that the rest is worth its bytes."""
    if difference.value is None:
        return Outcome.MISSING
    if difference.low is None or difference.high is None:
        return Outcome.OPEN
    if difference.high < 0:
        return Outcome.BETTER
    return Outcome.BROKEN if difference.low > 0 else Outcome.OPEN


def _why_not(evidence: Evidence, outcomes: dict[str, Outcome]) -> str:
    """Why it must not be adopted; empty where nothing speaks against it."""
    if evidence.is_demonstration:
        return ""
    if evidence.checks.num_failed:
        return "checks_failed"
    for name in ("accuracy", "memory", "latency", "slots"):
        if outcomes.get(name) is Outcome.BROKEN:
            return f"{name}_broken"
    if Outcome.BETTER in (outcomes["memory"], outcomes["latency"]):
        return ""
    costs = (evidence.memory.change, evidence.latency.change)
    return "no_gain" if all(cost.low is not None and cost.low > 1 - LEAST_GAIN for cost in costs) else ""


def _why_open(evidence: Evidence, limits: Limits, outcomes: dict[str, Outcome]) -> str:
    """What has to be known first; empty where all of it is."""
    if evidence.is_demonstration:
        return "demonstration"
    if evidence.flaws:
        return evidence.flaws[0].why
    asked = ["accuracy"] + [name for name in ("memory", "latency") if getattr(limits, name) is not None]
    for name in asked:
        if outcomes[name] in (Outcome.MISSING, Outcome.OPEN):
            return f"{name}_{outcomes[name].value}"
    if _is_short(evidence):
        return "accuracy_context"
    if Outcome.BETTER not in (outcomes["memory"], outcomes["latency"]):
        return "gain_open"
    slots = outcomes.get("slots")
    return f"slots_{slots.value}" if slots in (Outcome.MISSING, Outcome.OPEN) else ""


def _is_short(evidence: Evidence) -> bool:
    """Whether the loss is not known to say anything of the context: what was cut shows only on texts that long."""
    measured, asked = evidence.accuracy_context, evidence.context
    return asked is not None and (measured is None or measured < asked)


def is_target(named: str | None, machine: str) -> bool:
    """Whether a benchmark's machine, "processor" or "processor, device", is the one that the limits name. A device has to be named too.

    >>> is_target("EPYC", "AMD EPYC 9654"), is_target("EPYC", "AMD EPYC 9654, cuda"), is_target("EPYC, cuda", "AMD EPYC 9654, cuda")
    (True, False, True)
    """
    if named is None:
        return False
    asked, found = ([part.strip().casefold() for part in text.split(",")] for text in (named, machine))
    return len(asked) == len(found) and all(part in held for part, held in zip(asked, found, strict=True))


def _conditions(evidence: Evidence, limits: Limits, outcomes: dict[str, Outcome]) -> tuple[str, ...]:
    """What a deployment still needs, or has to accept, the heaviest first."""
    found = []
    if not evidence.checks.were_run:
        found.append("verify")
    elif not evidence.checks.has_soak:
        found.append("soak")
    if outcomes["latency"] in (Outcome.MISSING, Outcome.OPEN):
        found.append("bench")
    elif not is_target(limits.machine, evidence.machine):
        found.append("bench_on_target")
    if outcomes["memory"] in (Outcome.MISSING, Outcome.OPEN):
        found.append("memory")
    found += [f"accept_{name}" for name in ("memory", "latency") if outcomes[name] is Outcome.WORSE]
    engines = {engine.casefold() for engine in evidence.complexity.engines}
    if any(engine.casefold() not in engines for engine in limits.engines):
        found.append("engine")
    return tuple(found)


def _missing(evidence: Evidence, outcomes: dict[str, Outcome]) -> tuple[str, ...]:
    """Every figure that was not measured, by name."""
    found = [name for name, outcome in outcomes.items() if outcome is Outcome.MISSING]
    if not evidence.checks.were_run:
        found.append("checks")
    elif not evidence.checks.has_soak:
        found.append("soak")
    if not evidence.machine:
        found.append("machine")
    return tuple(found)
