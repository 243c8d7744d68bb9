"""A study: every variant against its baseline, over seeds and documents."""

from __future__ import annotations

from termwise.report.decision.figures import Figure, Pair, as_evidence, exactly, missing
from termwise.report.decision.gathering.claim import NATS, Claim, about, folder_places, model_keys, variant_keys, whole
from termwise.report.decision.gathering.complexity import kernels_of
from termwise.report.decision.limits import Limits
from termwise.report.read import Reading
from termwise.report.view import Measured, Variant, View, view
from termwise.results import file_name


def from_study(reading: Reading, limits: Limits) -> list[Claim]:
    """A claim for every variant that is neither the baseline nor its control."""
    shown = view(reading)
    baseline = next((v for v in shown.variants if v.is_baseline), None)
    return [_claim(v, baseline, shown, limits) for v in shown.compared if not v.is_baseline]


def _claim(variant: Variant, baseline: Variant | None, shown: View, limits: Limits) -> Claim:
    source = str(shown.reading.folder.path)
    context = _context(variant, baseline, shown, limits)
    today = _loss(baseline.loss if baseline else Measured(), source)
    return Claim(
        **about(shown.reading),
        names=tuple(dict.fromkeys(name for name in (variant.name, variant.short_name, *variant.equal_names) if name)),
        keys=_keys(variant, shown),
        today=shown.baseline,
        today_keys=_keys(baseline, shown) if baseline else frozenset(),
        context=context,
        accuracy_context=whole(shown.context),
        accuracy=Pair(today, _loss(variant.loss, source), _change(variant, source)),
        memory=_memory(variant, baseline, shown, context),
        kernels=kernels_of([variant.short_name]) if variant.short_name else None,
        dtype="float32",
    )


def _keys(variant: Variant, shown: View) -> frozenset[str]:
    """Names of the attention, and the folders of the models that were trained with it."""
    seeds = shown.seeds
    places = [place for place in folder_places(shown.reading) if place]
    models = (f"{place}/runs/{file_name(variant.name)}/{seed}" for place in places for seed in seeds)
    return variant_keys((variant.name, variant.short_name, *variant.equal_names)) | model_keys(*models)


def _loss(measured: Measured, source: str) -> Figure:
    return Figure(measured.value, n=measured.n or None, unit=NATS, source=source, why=measured.reason)


def _change(variant: Variant, source: str) -> Figure:
    """The recorded difference with the interval that its verdict rests on; too few seeds or documents have none."""
    record = variant.verdict
    if record is None or record.value is None:
        return missing((record.reason if record else None) or "decision.why.no_verdict", source)
    has_interval = record.low is not None and record.high is not None
    why = "" if has_interval else f"decision.why.{(record.reason or 'no interval').replace(' ', '_')}"
    return as_evidence(Figure(record.value, record.low, record.high, record.level, record.n, NATS, source, why))


def _lengths(variant: Variant, baseline: Variant | None, shown: View) -> tuple[int, ...]:
    """Where bytes of state were measured of both."""
    theirs = shown.state_by_length.get(baseline.name, {}) if baseline else {}
    return tuple(sorted(length for length in shown.state_by_length.get(variant.name, {}) if theirs.get(length)))


def _context(variant: Variant, baseline: Variant | None, shown: View, limits: Limits) -> int | None:
    """The user's, else the longest length at which bytes were measured, else that of the training."""
    return limits.context or max(_lengths(variant, baseline, shown), default=whole(shown.context))


def _memory(variant: Variant, baseline: Variant | None, shown: View, context: int | None) -> Pair:
    """Measured bytes of state of one sequence."""
    source, lengths = str(shown.reading.folder.path), _lengths(variant, baseline, shown)
    if baseline is None or context is None or context not in lengths:
        return Pair(change=missing("decision.why.lengths", source, context=context, lengths=lengths))
    today, mine = (shown.state_by_length[one.name][context] for one in (baseline, variant))
    return Pair(exactly(today, "B", source), exactly(mine, "B", source), exactly(mine / today, "1", source))
