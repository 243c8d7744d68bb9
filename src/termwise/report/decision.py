"""The verdict: from a few figures and the limits set beforehand to one of four answers, with its reason.

The rules, in order; the first that applies decides. docs/verdict.md says why.

    accuracy    the far end of the interval of the loss rise must lie within the limit
    checks      every check of `verify` must have passed
    rival       the untrained slots-only plan of equal bytes must be beaten, beyond noise, or nothing is recommended
    gain        memory or latency at the user's context must be better beyond noise
    deployment  "adopt" only with a soak and timings from the machine where it will run

A missing figure is never read as zero: it is named, and the answer cannot be better than its absence allows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Answer(Enum):
    """What a manager may hear."""

    ADOPT = "adopt"
    CONDITIONS = "adopt with conditions"
    REJECT = "do not adopt"
    UNKNOWN = "cannot say yet"


@dataclass(frozen=True)
class Figure:
    """A measured value with its interval; `value` None: not measured, and `reason` says why if a record does.

    A value without an interval (one run, one text) has low = high = None: it can reject, it cannot prove.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        if self.value is None and (self.low is not None or self.high is not None):
            raise ValueError("Figure: an interval without a value; leave low and high None")
        if (self.low is None) != (self.high is None):
            raise ValueError(f"Figure: low={self.low!r} and high={self.high!r}; an interval has both ends")

    @property
    def is_measured(self) -> bool:
        return self.value is not None

    def is_below(self, limit: float) -> bool:
        """Beyond noise: the whole interval lies below the limit."""
        return self.high is not None and self.high < limit

    def is_within(self, limit: float) -> bool:
        """Beyond noise: no point of the interval lies above the limit."""
        return self.high is not None and self.high <= limit

    def is_above(self, limit: float) -> bool:
        """Beyond noise, or without any interval as it stands."""
        near = self.value if self.low is None else self.low
        return near is not None and near > limit


MISSING = Figure()


@dataclass(frozen=True)
class Limits:
    """What was fixed before the results. `is_default`: nobody chose them. `stamp`: when they were written down (UTC)."""

    max_loss_rise: float = 0.05  # nats/token
    max_memory_ratio: float = 1.0
    max_latency_ratio: float = 1.0
    is_default: bool = True
    stamp: str = ""

    def __post_init__(self) -> None:
        for name in ("max_loss_rise", "max_memory_ratio", "max_latency_ratio"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise ValueError(f"limits: {name}={value!r}; allowed are numbers from 0")


@dataclass(frozen=True)
class Evidence:
    """What the records hold of one candidate against what runs today.

    `loss_rise` candidate minus today, nats/token. `memory` and `latency` candidate over today, at the user's context.
    `rival` candidate minus the untrained slots-only plan of equal bytes, nats/token; `has_rival` False where none can
    exist (a comparison of models trained from scratch). `checks_failed` names failed checks; `checks_passed` None:
    verify has not run. `soak` and `target`: deployment data.
    """

    loss_rise: Figure = MISSING
    memory: Figure = MISSING
    latency: Figure = MISSING
    rival: Figure = MISSING
    has_rival: bool = True
    checks_passed: int | None = None
    checks_failed: tuple[str, ...] = ()
    is_soaked: bool = False
    is_timed_on_target: bool = False


@dataclass(frozen=True)
class Decision:
    """The answer, the rule that gave it, what is still missing and what must hold.

    `rule`, `missing` and `conditions` are keys of the catalogue of messages, so that each language words them itself.
    """

    answer: Answer
    rule: str
    missing: tuple[str, ...] = ()
    conditions: tuple[str, ...] = field(default=())


def decide(evidence: Evidence, limits: Limits) -> Decision:
    """The verdict on one candidate.

    >>> good = Figure(0.01, 0.005, 0.02)
    >>> decide(Evidence(loss_rise=good), Limits()).missing
    ('memory', 'latency', 'rival', 'checks', 'soak', 'target')
    """
    missing = _missing(evidence)
    rejected = _rejected(evidence, limits)
    if rejected:
        return Decision(Answer.REJECT, rejected, missing)
    unknown = _unknown(evidence, limits, missing)
    if unknown:
        return Decision(Answer.UNKNOWN, unknown, missing)
    conditions = _conditions(evidence, limits)
    if conditions:
        return Decision(Answer.CONDITIONS, "proven_but", missing, conditions)
    return Decision(Answer.ADOPT, "all_hold", missing)


def _missing(evidence: Evidence) -> tuple[str, ...]:
    figures = {"loss_rise": evidence.loss_rise, "memory": evidence.memory, "latency": evidence.latency}
    names = [name for name, figure in figures.items() if not figure.is_measured]
    if evidence.has_rival and not evidence.rival.is_measured:
        names.append("rival")
    if evidence.checks_passed is None:
        names.append("checks")
    names += [
        name
        for name, is_there in (("soak", evidence.is_soaked), ("target", evidence.is_timed_on_target))
        if not is_there
    ]
    return tuple(names)


def _rejected(evidence: Evidence, limits: Limits) -> str:
    """The rule that says no, whatever else is missing; empty where none does."""
    if evidence.checks_failed:
        return "checks_failed"
    if evidence.loss_rise.is_above(limits.max_loss_rise):
        return "loss_too_high"
    # Equal is not better: whoever does as well without a new kernel is the simpler choice.
    if evidence.has_rival and evidence.rival.value is not None and evidence.rival.value >= 0:
        return "rival_is_as_good"
    gains = (evidence.memory, evidence.latency)
    if all(gain.is_measured for gain in gains) and not _gains(evidence, limits):
        return "no_gain"
    return ""


def _unknown(evidence: Evidence, limits: Limits, missing: tuple[str, ...]) -> str:
    """The rule that cannot be judged; empty where all can."""
    if "loss_rise" in missing:
        return "loss_missing"
    if not evidence.loss_rise.is_within(limits.max_loss_rise):
        return "loss_undecided"
    if "rival" in missing:
        return "rival_missing"
    if not _gains(evidence, limits):
        return "gain_missing"
    return ""


def _gains(evidence: Evidence, limits: Limits) -> tuple[str, ...]:
    """What is better beyond noise. A ratio without an interval proves nothing, except of bytes, which are counted."""
    memory, latency = evidence.memory, evidence.latency
    found = []
    if memory.is_below(limits.max_memory_ratio):
        found.append("memory")
    if latency.is_below(limits.max_latency_ratio):
        found.append("latency")
    return tuple(found)


def _conditions(evidence: Evidence, limits: Limits) -> tuple[str, ...]:
    """What must still hold before it is adopted without reserve."""
    found = []
    if evidence.checks_passed is None:
        found.append("verify")
    if not evidence.is_soaked:
        found.append("soak")
    if not evidence.is_timed_on_target:
        found.append("target")
    if evidence.has_rival and not evidence.rival.is_below(0.0):
        found.append("rival_undecided")
    for name, figure, limit in (
        ("latency", evidence.latency, limits.max_latency_ratio),
        ("memory", evidence.memory, limits.max_memory_ratio),
    ):
        if not figure.is_measured:
            found.append(f"measure_{name}")
        elif figure.is_above(limit):
            found.append(f"worse_{name}")
    if limits.is_default:
        found.append("choose_limits")
    return tuple(found)
