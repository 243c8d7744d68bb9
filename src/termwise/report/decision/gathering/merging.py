"""From claims to evidence: what several runs say about one candidate, each figure from one of them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from termwise.report.decision.evidence import Checks, Complexity, Evidence
from termwise.report.decision.figures import MISSING, Figure, Pair, missing
from termwise.report.decision.gathering.claim import Claim, Keys, is_same, weights_of
from termwise.report.decision.gathering.complexity import ENGINES, new_dependencies
from termwise.report.decision.limits import Limits
from termwise.report.decision.rules import Outcome, is_target, judge_slots

# Where two runs know the same figure equally well, the earlier of these is taken: what runs before what was planned.
COMMANDS = ("convert", "study", "plan", "bench", "evaluate", "inspect", "verify")


def grouped(claims: Iterable[Claim]) -> list[list[Claim]]:
    """Claims about the same candidate together: those that share an identity, and no two of one command."""
    groups: list[list[Claim]] = []
    for claim in sorted(claims, key=_order):
        home = next((group for group in groups if _belongs(claim, group)), None)
        if home is None:
            groups.append([claim])
        else:
            home.append(claim)
    return groups


def _belongs(claim: Claim, group: Sequence[Claim]) -> bool:
    is_new = all(claim.command != other.command for other in group)
    return is_new and any(claim.identity & other.identity for other in group) and not _replaces_another(claim, group)


def _replaces_another(claim: Claim, group: Sequence[Claim]) -> bool:
    """Whether its original has other weights than theirs, or is called otherwise: two models can be given the same plan."""
    return any(not _has_same_original(claim, other) for other in group if claim.today_keys and other.today_keys)


def _has_same_original(claim: Claim, other: Claim) -> bool:
    mine, theirs = weights_of(claim.today_keys), weights_of(other.today_keys)
    return not (mine.isdisjoint(theirs) if mine and theirs else _originals(claim).isdisjoint(_originals(other)))


def _originals(claim: Claim) -> set[str]:
    places = claim.today_keys - weights_of(claim.today_keys)
    names = {Path(key.removeprefix("model:")).name for key in places}
    return names | {Path(claim.today).name} if names else names


def alike(claims: Iterable[Claim]) -> list[list[Claim]]:
    """Subjects of several runs that are known by the same key together; never two of other weights."""
    groups: list[list[Claim]] = []
    for claim in sorted(claims, key=_order):
        mine = weights_of(claim.keys)
        homes = [group for group in groups if any(is_same(claim.keys, other.keys) for other in group)]
        homes = [group for group in homes if not mine or _weights(group) <= mine]
        homes = homes[:1] if len(frozenset().union(*map(_weights, homes))) > 1 else homes
        groups = [group for group in groups if group not in homes] + [[one for home in homes for one in home] + [claim]]
    return groups


def _weights(group: Sequence[Claim]) -> Keys:
    """The fingerprints that a group is known by."""
    return frozenset().union(*(weights_of(claim.keys) for claim in group))


def told_apart(leads: Sequence[Claim]) -> list[Claim]:
    """Candidates under names that no other has: where several runs call theirs the same, the run stands before it."""
    for name_of in (
        _own_name,
        lambda claim: f"{Path(claim.source).name}:{claim.name}",
        lambda c: f"{c.source}:{c.name}",
    ):
        names = [name_of(lead) for lead in leads]
        if len(set(names)) == len(names):
            break
    counts = Counter(lead.name for lead in leads)
    return [
        dataclasses.replace(lead, names=(name if counts[lead.name] > 1 else lead.name, *lead.names))
        for lead, name in zip(leads, names, strict=True)
    ]


def _own_name(claim: Claim) -> str:
    return claim.name


def _order(claim: Claim) -> tuple[int, str, str]:
    place = COMMANDS.index(claim.command) if claim.command in COMMANDS else len(COMMANDS)
    return place, claim.source, claim.name


def one_candidate(group: Sequence[Claim], limits: Limits) -> Claim:
    """What the runs that put a candidate up know of its name and its keys, at the user's context or the first that a run has."""
    lead = next((claim for claim in group if claim.command == "plan"), group[0])
    contexts = (limits.context, lead.context, *(claim.context for claim in group))
    return dataclasses.replace(
        lead,
        names=tuple(dict.fromkeys(name for claim in (lead, *group) for name in claim.names)),
        keys=frozenset().union(*(claim.keys for claim in group)),
        today_keys=frozenset().union(*(claim.today_keys for claim in group)),
        context=next((context for context in contexts if context is not None), None),
    )


def evidence_of(candidate: Claim, claims: Sequence[Claim], limits: Limits) -> Evidence:
    """Everything known of a candidate. Each figure is taken whole from one run; nothing is averaged over runs."""
    ordered = sorted(claims, key=_order)
    loss = _best_loss(ordered, candidate.context)
    memory, latency = _best(ordered, "memory", limits), _best(ordered, "latency", limits)
    return Evidence(
        candidate=candidate.name,
        today=candidate.today or next((claim.today for claim in ordered if claim.today), ""),
        context=candidate.context,
        accuracy_context=loss.accuracy_context if loss else None,
        accuracy=_above_zero(loss.accuracy) if loss else Pair(change=missing("decision.why.no_loss")),
        memory=_with_precision(memory, ordered, "memory"),
        latency=_with_precision(latency, ordered, "latency"),
        crossing=latency.crossing if latency else MISSING,
        slots=_hardest_slots(ordered),
        needs_slots=any(claim.needs_slots for claim in ordered),
        checks=_checks(ordered),
        complexity=_complexity(ordered),
        machine=latency.machine if latency and latency.latency.change.is_there else "",
        is_demonstration=any(claim.is_demonstration for claim in ordered),
        is_chosen=any(claim.is_chosen for claim in ordered),
        sources=tuple(dict.fromkeys(claim.source for claim in ordered)),
        unidentified=_unidentified(ordered),
        flaws=tuple(dict.fromkeys(flaw for claim in ordered for flaw in claim.flaws)),
    )


def _unidentified(claims: Sequence[Claim]) -> tuple[str, ...]:
    """Runs without their weights among several of one candidate: that all are of the same is taken from a place or a name."""
    sources = tuple(dict.fromkeys(claim.source for claim in claims if claim.lacks_weights))
    return sources if len({claim.source for claim in claims}) > 1 else ()


def _best_loss(claims: Sequence[Claim], context: int | None) -> Claim | None:
    """A change with an interval before one without, on texts as long as the context before shorter ones."""

    def worth(claim: Claim) -> tuple[bool, bool, bool]:
        change, length = claim.accuracy.change, claim.accuracy_context
        return change.has_interval, change.is_there, length is None or context is None or length >= context

    return max((c for c in claims if c.accuracy != Pair()), key=worth, default=None)


def _hardest_slots(claims: Sequence[Claim]) -> Figure:
    """Against a rival of equal bytes that loses less, whoever found it; else the rival of a plan, which is its best one, before a
    conversion's plain window; else why there is none."""
    measured = sorted((c for c in claims if c.slots.is_there), key=lambda claim: claim.command != "plan")
    beaten = (claim for claim in measured if judge_slots(claim.slots) is Outcome.BROKEN)
    others = (claim for claim in claims if claim.needs_slots)
    taken = next(beaten, None) or next(iter(measured), None) or next(others, None)
    return taken.slots if taken else MISSING


def _above_zero(pair: Pair) -> Pair:
    """A change by which the loss would fall below zero is none."""
    today, change = pair.today.value, pair.change.value
    if today is None or change is None or today + change >= 0:
        return pair
    return dataclasses.replace(pair, change=missing("decision.why.below_zero", pair.change.source))


def _best(claims: Sequence[Claim], measure: str, limits: Limits) -> Claim | None:
    """A change that is there before one that is not; on the machine asked for before others; the newest of several benchmarks."""

    def worth(claim: Claim) -> tuple[bool, bool, str]:
        change = getattr(claim, measure).change
        is_asked = is_target(limits.machine, claim.machine)
        return change.is_there, is_asked, claim.created if claim.command == "bench" and measure == "latency" else ""

    return max((claim for claim in claims if getattr(claim, measure) != Pair()), key=worth, default=None)


def _with_precision(taken: Claim | None, claims: Sequence[Claim], measure: str) -> Pair:
    """The figure of one run; where another put the candidate up in another precision, its change says so."""
    if taken is None:
        return Pair(change=missing(f"decision.why.no_{measure}"))
    pair: Pair = getattr(taken, measure)
    others = sorted({c.dtype for c in claims if c.dtype and c.dtype != taken.dtype and _is_sized(c, measure)})
    if not others or not taken.dtype or not pair.change.is_there or pair.change.why:
        return pair
    fields = (("taken", taken.dtype), ("other", ", ".join(others)))
    return dataclasses.replace(
        pair, change=dataclasses.replace(pair.change, why="decision.why.precision", fields=fields)
    )


def _is_sized(claim: Claim, measure: str) -> bool:
    """Whether a run measured bytes (of the same measure) in its precision."""
    figure: Figure = getattr(claim, measure).change if measure == "memory" else claim.memory.change
    return figure.is_there


def _checks(claims: Sequence[Claim]) -> Checks:
    """A verification that failed before any that passed, a whole one before a broken off one, with a soak before without."""

    def worth(checks: Checks) -> tuple[bool, bool, bool, int]:
        return checks.num_failed > 0, checks.is_whole, checks.has_soak, checks.num_passed

    return max((claim.checks for claim in claims if claim.checks is not None), key=worth, default=Checks())


def _complexity(claims: Sequence[Claim]) -> Complexity:
    kernels = next((claim.kernels for claim in claims if claim.kernels is not None), None)
    hours = next((claim.tuning_hours for claim in claims if claim.tuning_hours is not None), None)
    platforms = sorted({claim.platform for claim in claims if claim.platform})
    count = None if kernels is None else len(kernels)
    return Complexity(new_dependencies(), count, ENGINES, tuple(platforms), tuning_hours=hours)
