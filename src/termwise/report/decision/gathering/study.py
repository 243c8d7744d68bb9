"""A study: every variant against its baseline, over seeds and documents."""

from __future__ import annotations

from termwise.report.decision.figures import Figure, Pair, exactly, missing
from termwise.report.decision.gathering.claim import Claim
from termwise.report.decision.limits import Limits
from termwise.report.read import Reading
from termwise.report.view import Measured, Variant, View, view

NATS = "nats/token"


def from_study(reading: Reading, limits: Limits) -> list[Claim]:
    """A claim for every variant that is neither the baseline nor its control."""
    shown = view(reading)
    baseline = next((v for v in shown.variants if v.is_baseline), None)
    return [_claim(v, baseline, shown, limits) for v in shown.compared if not v.is_baseline]


def _claim(variant: Variant, baseline: Variant | None, shown: View, limits: Limits) -> Claim:
    source = str(shown.reading.folder.path)
    return Claim(
        names=tuple(dict.fromkeys(name for name in (variant.name, variant.short_name, *variant.equal_names) if name)),
        source=source,
        command="study",
        today=shown.baseline,
        is_candidate=True,
        context=limits.context or shown.context,
        accuracy=Pair(
            _loss(baseline.loss if baseline else Measured(), source),
            _loss(variant.loss, source),
            _change(variant, source),
        ),
        memory=_memory(variant, baseline, shown, limits, source),
        is_demonstration=shown.is_demonstration,
    )


def _loss(measured: Measured, source: str) -> Figure:
    return Figure(measured.value, n=measured.n or None, unit=NATS, source=source, why=measured.reason)


def _change(variant: Variant, source: str) -> Figure:
    """The recorded difference with the interval that its verdict rests on; without a verdict there is no interval."""
    record = variant.verdict
    if record is None or record.value is None:
        return missing((record.reason if record else None) or "decision.why.no_verdict", source)
    why = record.reason if record.low is None else ""
    return Figure(record.value, record.low, record.high, record.level, record.n, NATS, source, why or "")


def _memory(variant: Variant, baseline: Variant | None, shown: View, limits: Limits, source: str) -> Pair:
    """Measured bytes of state of one sequence, at the user's context or else the longest length both have."""
    mine = shown.state_by_length.get(variant.name, {})
    theirs = shown.state_by_length.get(baseline.name, {}) if baseline else {}
    both = mine.keys() & theirs.keys()
    length = limits.context or max(both, default=None)
    if length is None or length not in both or not theirs[length]:
        lengths = tuple(sorted(both))
        return Pair(change=missing("decision.why.state_lengths", source, context=length, lengths=lengths))
    today, candidate = (exactly(bytes_[length], "B", source) for bytes_ in (theirs, mine))
    return Pair(today, candidate, exactly(mine[length] / theirs[length], "1", source))
