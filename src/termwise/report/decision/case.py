"""From run folders to a case: every candidate with its evidence and verdict, and what each part is worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from termwise.report.decision.evidence import Checks, Complexity, Evidence
from termwise.report.decision.figures import Figure
from termwise.report.decision.gathering.claim import Claim
from termwise.report.decision.gathering.study import from_study
from termwise.report.decision.limits import Limits
from termwise.report.decision.rules import Answer, Decision, decide
from termwise.report.read import Reading, read

GATHERERS: dict[str, Callable[[Reading, Limits], list[Claim]]] = {"study": from_study}


@dataclass(frozen=True)
class Component:
    """A part of attention and what it is worth.

    `loss` is what the held-out loss rises by if it is cut; `saved` what cutting saves, in bytes or as a share (its unit says
    which). `kind`: order, head, layer, variant, window, denominator, gate, decay. `recommendation`: keep, cut, open or
    not_measured.
    """

    name: str
    kind: str
    loss: Figure
    saved: Figure
    recommendation: str
    source: str


@dataclass(frozen=True)
class Refused:
    """A folder that was left out, and why."""

    path: str
    why: str


@dataclass(frozen=True)
class Verdict:
    """One candidate: what is known of it, and what follows."""

    evidence: Evidence
    decision: Decision


@dataclass(frozen=True)
class Case:
    """All that a report rests on. `verdicts`: best first; the first stands on the manager's page."""

    readings: tuple[Reading, ...]
    refused: tuple[Refused, ...]
    limits: Limits
    limits_path: str
    verdicts: tuple[Verdict, ...]
    components: tuple[Component, ...]


def gather(folders: Sequence[Path], limits: Limits, limits_path: str = "") -> Case:
    """Read run folders and weigh every candidate in them. ValueError where none can be read, or nothing in them is a candidate."""
    readings: list[Reading] = []
    refused: list[Refused] = []
    for folder in folders:
        try:
            readings.append(read(folder))
        except (ValueError, OSError) as error:
            refused.append(Refused(str(folder), str(error)))
    claims = [
        claim
        for one in readings
        if one.run["command"] in GATHERERS
        for claim in GATHERERS[one.run["command"]](one, limits)
    ]
    verdicts = [Verdict(one, decide(one, limits)) for one in map(_evidence, claims)]
    if not verdicts:
        raise ValueError("; ".join(one.why for one in refused) or "the folders hold no candidate to decide on")
    verdicts.sort(key=_rank)
    return Case(tuple(readings), tuple(refused), limits, limits_path, tuple(verdicts), ())


def _evidence(claim: Claim) -> Evidence:
    return Evidence(
        candidate=claim.name, today=claim.today, context=claim.context, accuracy=claim.accuracy, memory=claim.memory,
        latency=claim.latency, slots=claim.slots, needs_slots=claim.needs_slots, checks=claim.checks or Checks(),
        complexity=claim.complexity or Complexity(), machine=claim.machine, is_demonstration=claim.is_demonstration,
    )  # fmt: skip


def _rank(verdict: Verdict) -> tuple[int, bool, float, str]:
    """Best answer first, then the least change in accuracy."""
    change = verdict.evidence.accuracy.change.value
    place = list(Answer).index(verdict.decision.answer)
    return place, change is None, change or 0.0, verdict.evidence.candidate
