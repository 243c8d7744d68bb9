"""An evaluation: held-out losses of models on one text. Without documents a difference has no interval."""

from __future__ import annotations

from collections.abc import Sequence

from termwise.report.decision.figures import Figure, Pair, missing
from termwise.report.decision.gathering.claim import NATS, Claim, Keys, about, is_same, model_keys, weights_key, whole
from termwise.report.read import Reading
from termwise.report.view import Variant, view


def subjects(reading: Reading) -> list[Claim]:
    """Every model, for a report that has nothing else to decide on."""
    return [Claim(**about(reading), names=(v.name,), keys=_keys(v)) for v in view(reading).variants]


def _keys(variant: Variant) -> Keys:
    return model_keys(variant.name) | weights_key(variant.weights)


def figures(reading: Reading, candidates: Sequence[Claim]) -> list[Claim | None]:
    """The loss of each candidate's own folder, and of what is used today where that was scored as well."""
    variants = view(reading).variants
    return [_figures(reading, variants, candidate) for candidate in candidates]


def _figures(reading: Reading, variants: tuple[Variant, ...], candidate: Claim) -> Claim | None:
    mine = _of(candidate.keys, variants)
    if mine is None:
        return None
    today, source = _of(candidate.today_keys, variants), str(reading.folder.path)
    first, second = _loss(today, source), _loss(mine, source)
    change = missing("decision.why.no_baseline", source)
    if first.value is not None and second.value is not None:
        value = second.value - first.value
        change = Figure(value, n=second.n, unit=NATS, source=source, why="decision.why.no_interval")
    return Claim(
        **about(reading),
        names=candidate.names,
        context=candidate.context,
        accuracy_context=whole(reading.setting("context")),
        accuracy=Pair(first, second, change),
        lacks_weights=not mine.weights,
    )


def _of(keys: Keys, variants: tuple[Variant, ...]) -> Variant | None:
    """The model that is known so. A variant's name alone was scored with random weights, so only folders count."""
    return next((v for v in variants if is_same(_keys(v), keys)), None)


def _loss(variant: Variant | None, source: str) -> Figure:
    if variant is None or variant.loss.value is None:
        return missing((variant.loss.reason if variant else "") or "decision.why.not_scored", source)
    return Figure(variant.loss.value, n=variant.loss.n or None, unit=NATS, source=source)
