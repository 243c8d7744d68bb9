"""Variants of one study that differ in exactly one part: what that part is worth, paired by seed and document."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from termwise.report.decision.figures import Figure, as_evidence, exactly, missing
from termwise.report.decision.gathering.claim import NATS
from termwise.report.decision.gathering.component import Component, recommended
from termwise.report.decision.gathering.pairing import documents_of
from termwise.report.decision.limits import Limits
from termwise.report.read import Reading
from termwise.report.view import View, view

# Fields of a spec by the part they belong to; everything else of the kernel is its kind.
KINDS = {
    "normalizer": "denominator", "input_gate": "gate", "output_gate": "gate", "log_decay": "decay", "local": "window",
    "kernel.orders": "order", "kernel.center": "center", "kernel.centers": "center", "kernel": "kernel",
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """Two variants, the first with a part that the second lacks or has replaced."""

    with_it: str
    without: str
    kind: str


def components(reading: Reading, limits: Limits) -> list[Component]:
    """One for every pair, their intervals Holm-corrected over all pairs of the study."""
    shown = view(reading)
    steps = list(steps_of(reading.setting("variants")))
    losses = _losses(shown, steps)
    context = limits.context or max((n for held in shown.state_by_length.values() for n in held), default=None)
    return [_component(step, loss, shown, limits, context) for step, loss in zip(steps, losses, strict=True)]


def _component(step: Step, loss: Figure, shown: View, limits: Limits, context: int | None) -> Component:
    source = str(shown.reading.folder.path)
    name = f"{step.with_it} \N{RIGHTWARDS ARROW} {step.without}"
    saved = _saved(step, shown, context)
    return Component(name, step.kind, loss, saved, recommended(loss, saved, limits.accuracy), source)


def steps_of(entries: Any) -> Iterator[Step]:
    """Pairs of the entries of run.json that differ in one part; of nested orders only the next ones."""
    known = [e for e in entries if _is_described(e)] if isinstance(entries, list) else []
    parts = {str(entry["name"]): parts_of(entry) for entry in known}
    for one, other in itertools.combinations(parts, 2):
        kind = _difference(parts[one], parts[other])
        if kind and not (kind == "order" and _has_between(parts[one], parts[other], parts.values())):
            is_first = _comes_first(parts[one], parts[other], kind)
            yield Step(one, other, kind) if is_first else Step(other, one, kind)


def _is_described(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and bool(entry.get("name"))
        and not entry.get("control_of")
        and isinstance(entry.get("spec"), dict)
        and isinstance(entry["spec"].get("kernel"), dict)
    )


def parts_of(entry: dict[str, Any]) -> dict[str, Any]:
    """A variant as flat parts: kernel, orders, centers, denominator, gates, decay, window, and each layer option."""
    spec = entry["spec"]
    kernel = dict(spec["kernel"])
    found = {f"kernel.{name}": kernel.pop(name) for name in ("orders", "center", "centers") if name in kernel}
    if "kernel.orders" in found:
        # Whether a row may turn negative follows from the orders.
        kernel.pop("allow_negative", None)
        found.setdefault("kernel.centers", 1)
    found |= {"kernel": kernel} | {name: spec.get(name) for name in KINDS if "." not in name and name != "kernel"}
    layer = entry.get("layer")
    return found | {f"layer.{name}": value for name, value in (layer.items() if isinstance(layer, dict) else ())}


def _difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    """The kind of the only part in which they differ; empty for none or several, and for orders that are not nested."""
    if one.keys() != other.keys():
        return ""
    parts = [name for name in one if one[name] != other[name]]
    if len(parts) != 1 or parts[0] == "kernel":
        return ""
    if parts[0] == "kernel.orders" and not (_orders(one) < _orders(other) or _orders(other) < _orders(one)):
        return ""
    return KINDS.get(parts[0], "option")


def _orders(parts: dict[str, Any]) -> frozenset[Any]:
    found = parts.get("kernel.orders")
    return frozenset(found) if isinstance(found, list) else frozenset()


def _has_between(one: dict[str, Any], other: dict[str, Any], every: Any) -> bool:
    """Whether a third variant, equal otherwise, has orders between those of both."""
    small, large = sorted((_orders(one), _orders(other)), key=len)
    rest = {name: value for name, value in one.items() if name != "kernel.orders"}
    return any(
        small < _orders(third) < large and rest == {k: v for k, v in third.items() if k != "kernel.orders"}
        for third in every
    )


def _comes_first(one: dict[str, Any], other: dict[str, Any], kind: str) -> bool:
    """Whether the first has what the second lacks: more orders, a gate, decay, a window, the mean; of denominators the row sum."""
    if kind == "order":
        return _orders(one) > _orders(other)
    (name,) = (name for name in one if one[name] != other[name])
    if kind == "denominator":
        plain = other[name].get("type") if isinstance(other[name], dict) else None
        return plain != "RowSum"
    if kind == "center":
        return other[name] in ("zero", 1)
    return not other[name] if bool(one[name]) != bool(other[name]) else str(one[name]) <= str(other[name])


def _losses(shown: View, steps: Sequence[Step]) -> list[Figure]:
    """The rise from each variant to the one without: the wider of the intervals over seeds and documents, Holm over all."""
    from termwise.statistics.paired import Pairs, compared, pair

    source = str(shown.reading.folder.path)
    scores = {name: _scores(shown, name) for step in steps for name in (step.with_it, step.without)}
    pairs: dict[tuple[str, str], Pairs] = {}
    try:
        for step in steps:
            if scores[step.with_it] and scores[step.without]:
                pairs[step.without, step.with_it] = pair(scores[step.without], scores[step.with_it])
        found = {(one.variant, one.baseline): one for one in compared(pairs)}
    except ValueError:
        found = {}
    return [_figure(found.get((step.without, step.with_it)), source) for step in steps]


def _figure(one: Any, source: str) -> Figure:
    if one is None or one.difference is None:
        return missing("decision.why.other_documents", source)
    if one.wider is None:
        why = f"decision.why.{one.verdict.replace(' ', '_')}"
        return Figure(one.difference, n=len(one.by_seed), unit=NATS, source=source, why=why)
    return as_evidence(Figure(one.difference, one.wider.low, one.wider.high, one.level, len(one.by_seed), NATS, source))


def _scores(shown: View, name: str) -> dict[int, dict[str, tuple[float, int]]]:
    found = {seed: documents_of(shown.reading, name, seed) for seed in shown.seeds}
    return {seed: documents for seed, documents in found.items() if documents}


def _saved(step: Step, shown: View, context: int | None) -> Figure:
    """Bytes of state that the part takes, as a share of the baseline's."""
    source = str(shown.reading.folder.path)
    held = [shown.state_by_length.get(name, {}) for name in (step.with_it, step.without, shown.baseline)]
    if context is None or not all(by_length.get(context) for by_length in held):
        lengths = tuple(sorted(set.intersection(*(set(by_length) for by_length in held))))
        return missing("decision.why.lengths", source, context=context, lengths=lengths)
    with_it, without, baseline = (by_length[context] for by_length in held)
    return exactly((with_it - without) / baseline, "share", source)
