"""From run folders to a case: every candidate with its evidence and verdict, and what each part is worth."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from termwise.report.decision.evidence import Evidence
from termwise.report.decision.gathering import ablations, bench, evaluate, inspect, plan, verify
from termwise.report.decision.gathering.claim import Claim
from termwise.report.decision.gathering.component import Component
from termwise.report.decision.gathering.convert import from_convert
from termwise.report.decision.gathering.merging import alike, evidence_of, grouped, one_candidate, told_apart
from termwise.report.decision.gathering.study import from_study
from termwise.report.decision.limits import Limits
from termwise.report.decision.rules import Answer, Decision, decide
from termwise.report.read import Reading, read

__all__ = ["Case", "Component", "Refused", "Verdict", "gather"]

# Runs that put candidates up; runs that know something of a candidate; runs that take attention apart.
MAKERS: dict[str, Callable[[Reading, Limits], list[Claim]]] = {
    "study": from_study, "plan": plan.from_plan, "convert": from_convert,
}  # fmt: skip
KNOWING: dict[str, Any] = {"bench": bench, "evaluate": evaluate, "inspect": inspect, "verify": verify}
PARTS: dict[str, Callable[[Reading, Limits], list[Component]]] = {
    "inspect": inspect.components, "study": ablations.components, "plan": plan.components,
}  # fmt: skip
KINDS = (
    "sums",
    "choice",
    "order",
    "center",
    "window",
    "denominator",
    "gate",
    "decay",
    "option",
    "variant",
    "layer",
    "head",
)


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
    """All that a report rests on. `verdicts`: best first; the first stands on the manager's page.

    `unused`: runs that were read and say nothing of any candidate.
    """

    readings: tuple[Reading, ...]
    refused: tuple[Refused, ...]
    limits: Limits
    limits_path: str
    verdicts: tuple[Verdict, ...]
    components: tuple[Component, ...]
    unused: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """One folder and what it says. `subjects` are put up for decision only where no run puts up more."""

    reading: Reading
    claims: tuple[Claim, ...]
    subjects: tuple[Claim, ...]
    components: tuple[Component, ...]

    @property
    def path(self) -> str:
        """Its folder."""
        return str(self.reading.folder.path)


def gather(folders: Sequence[Path | str], limits: Limits, limits_path: str = "") -> Case:
    """Read run folders and weigh every candidate in them.

    The order of the folders changes nothing but the order of `readings`. A folder that cannot be read is left out with the
    reason. ValueError where none can be, where nothing in them can be decided on, and for a `limits.candidate` that is none.
    """
    refused: list[Refused] = []
    once = {os.path.realpath(folder): str(folder) for folder in reversed(folders)}
    found = (_run(folder, limits, refused) for folder in reversed(once.values()))
    runs = [run for run in found if run is not None]
    groups = grouped([claim for run in runs for claim in run.claims])
    groups = groups or alike([claim for run in runs for claim in run.subjects])
    leads = told_apart([one_candidate(group, limits) for group in groups])
    runs, unused = _add_what_is_known(runs, leads, groups, refused)
    if not runs:
        raise ValueError("; ".join(one.why for one in refused) or "no run folder was given")
    if not leads:
        raise ValueError(f"nothing to decide on: no variant, plan or model in {', '.join(run.path for run in runs)}")
    verdicts = [_verdict(lead, group, limits) for lead, group in zip(leads, groups, strict=True)]
    first = _chosen(limits.candidate, leads, verdicts)
    verdicts.sort(key=lambda one: (one is not first, *_rank(one)))
    parts = sorted((part for run in runs for part in run.components), key=_place)
    readings = tuple(run.reading for run in runs)
    return Case(readings, tuple(refused), limits, limits_path, tuple(verdicts), tuple(parts), tuple(unused))


def _run(folder: str, limits: Limits, refused: list[Refused]) -> Run | None:
    """What a folder says; None, and the reason among the refused, where it cannot be read."""
    try:
        reading = read(folder)
        command = reading.run.get("command")
        if not isinstance(command, str) or command not in {*MAKERS, *KNOWING}:
            known = ", ".join(sorted({*MAKERS, *KNOWING}))
            raise ValueError(f"{folder}: made by termwise {command!r}; a report reads the runs of {known}")
        return Run(
            reading,
            claims=tuple(MAKERS[command](reading, limits)) if command in MAKERS else (),
            subjects=tuple(KNOWING[command].subjects(reading)) if command in KNOWING else (),
            components=tuple(PARTS[command](reading, limits)) if command in PARTS else (),
        )
    except (ValueError, OSError) as error:
        refused.append(Refused(folder, str(error)))
    # Hand-made records can be wrong in any way, and one run must not take the report of the others with it.
    except Exception as error:
        refused.append(Refused(folder, _odd(folder, error)))
    return None


def _odd(folder: str, error: Exception) -> str:
    return f"{folder}: its records do not fit together ({type(error).__name__}: {error})"


def _add_what_is_known(
    runs: Sequence[Run], leads: Sequence[Claim], groups: Sequence[list[Claim]], refused: list[Refused]
) -> tuple[list[Run], list[str]]:
    """Add to the claims on each candidate what benchmarks and checks know of it: the runs that could be read, and those unused."""
    kept, unused = [], []
    for run in runs:
        is_used = bool(run.claims or run.components)
        if (module := KNOWING.get(run.reading.run["command"])) is not None:
            try:
                found = module.figures(run.reading, leads)
            except Exception as error:
                refused.append(Refused(run.path, _odd(run.path, error)))
                continue
            for group, claim in zip(groups, found, strict=True):
                group += [claim] if claim is not None else []
            is_used = is_used or any(claim is not None for claim in found)
        kept.append(run)
        unused += [] if is_used else [run.path]
    return kept, unused


def _verdict(lead: Claim, group: Sequence[Claim], limits: Limits) -> Verdict:
    evidence = evidence_of(lead, group, limits)
    return Verdict(evidence, decide(evidence, limits))


def _chosen(name: str | None, leads: Sequence[Claim], verdicts: Sequence[Verdict]) -> Verdict | None:
    """The verdict on the candidate that was asked for, by any of its names; the best where several have it."""
    if name is None:
        return None
    named = [one for lead, one in zip(leads, verdicts, strict=True) if name in lead.names]
    if not named:
        known = [lead.name for lead in leads]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"no candidate {name!r}{hint}; candidates are {', '.join(sorted(known))}")
    return min(named, key=lambda one: (one.evidence.candidate != name, *_rank(one)))


def _rank(verdict: Verdict) -> tuple[Any, ...]:
    """Best answer first. Of those that may be adopted the least change in accuracy, of the others a plan's own choice before it."""
    evidence, answer = verdict.evidence, verdict.decision.answer
    change = evidence.accuracy.change.value
    is_passed_over = not evidence.is_chosen and answer in (Answer.OPEN, Answer.REJECT)
    return list(Answer).index(answer), is_passed_over, change is None, change or 0.0, evidence.candidate


def _place(part: Component) -> tuple[Any, ...]:
    """Components by kind, run and name, numbers in their order."""
    numbers = [int(one) for one in re.findall(r"\d+", part.name)]
    kind = KINDS.index(part.kind) if part.kind in KINDS else len(KINDS)
    return kind, part.source, numbers if part.kind in ("head", "layer") else [], part.name
