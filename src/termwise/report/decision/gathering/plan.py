"""A plan: every point of its front against the exact model and the slots-only plan of equal bytes."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from termwise.report.decision.figures import LEAST, Figure, Pair, as_evidence, exactly, missing
from termwise.report.decision.gathering.claim import (
    NATS,
    Claim,
    Keys,
    about,
    folder_places,
    model_keys,
    weights_key,
    whole,
)
from termwise.report.decision.gathering.complexity import kernels_of
from termwise.report.decision.gathering.component import Component
from termwise.report.decision.limits import Limits
from termwise.report.plan_view import PlanView, Point, plan_view
from termwise.report.read import Reading
from termwise.results import Record, config_hash

SLOTS, UNIFORM, EXACT = "slots", "uniform", "exact"


def from_plan(reading: Reading, limits: Limits) -> list[Claim]:
    """A claim for every termwise point; the one that plan.json holds is marked."""
    shown = plan_view(reading)
    own = _about_model(reading)
    points = [point for point in shown.points if point.method == "termwise"]
    return [_claim(point, shown, limits, own) for point in sorted(points, key=lambda point: point.share)]


def components(reading: Reading, limits: Limits) -> list[Component]:
    """What the chosen plan has over its rivals of equal bytes: sums over the far keys, and a choice for each head."""
    shown = plan_view(reading)
    chosen = shown.chosen
    if chosen is None:
        return []
    rivals = {"sums": SLOTS, "choice": UNIFORM}
    others = {kind: rival for kind, rival in rivals.items() if not shown.is_rival_itself(chosen.share, rival)}
    gains = {kind: shown.gains.get((chosen.share, rival)) for kind, rival in others.items()}
    return [_part(kind, chosen, gain, str(reading.folder.path)) for kind, gain in gains.items() if gain is not None]


def _part(kind: str, chosen: Point, gain: Record, source: str) -> Component:
    """The rival in its place, which takes as many bytes: keep it where the rival loses more beyond noise, cut it where less."""
    found = of_record(gain, source, "decision.why.no_slots_plan")
    value, low, high = (None if end is None else -end for end in (found.value, found.high, found.low))
    loss = dataclasses.replace(found, value=value, low=low, high=high)
    sure = low is not None and high is not None
    told = "keep" if sure and low > 0 else "cut" if sure and high < 0 else "open"  # type: ignore[operator]
    known = told if value is not None else "not_measured"
    return Component(f"{100 * chosen.share:.4g}%", kind, loss, exactly(0.0, "share", source), known, source)


def _claim(point: Point, shown: PlanView, limits: Limits, own: dict[str, Any]) -> Claim:
    reading = shown.reading
    source, planned = str(reading.folder.path), whole(shown.setting("context"))
    context, percent = limits.context or planned, f"{100 * point.share:.4g}%"
    losses = _losses(reading.records, source)
    return Claim(
        **about(reading),
        **own,
        names=(f"plan:{percent}", f"{reading.folder.path.name}:{percent}"),
        identity=plan_identity(reading) if point.is_chosen else frozenset(),
        is_chosen=point.is_chosen,
        context=context,
        accuracy_context=whole(shown.setting("length")) or planned,
        accuracy=Pair(
            losses.get((EXACT, 1.0), _no_loss(source)),
            losses.get((point.method, point.share), _no_loss(source)),
            of_record(point.rise, source, "decision.why.not_evaluated"),
        ),
        memory=_memory(point, shown, context, planned),
        slots=of_record(shown.gains.get((point.share, _rival(point, shown))), source, "decision.why.no_slots_plan"),
        needs_slots=True,
        kernels=kernels_of([head.variant for head in shown.heads]) if point.is_chosen and shown.heads else None,
        tuning_hours=0.0,
        dtype=str(shown.setting("cache_dtype", "")),
    )


def _rival(point: Point, shown: PlanView) -> str:
    """The best plan of exact slots alone; what is that plan itself has to beat a plain window of equal bytes."""
    return UNIFORM if shown.is_rival_itself(point.share, SLOTS) else SLOTS


def _about_model(reading: Reading) -> dict[str, Any]:
    """Which model it is a plan for."""
    told, source = reading.setting("about"), reading.setting("source")
    name, weights = told.get("name") if isinstance(told, dict) else None, weights_key(reading.setting("weights"))
    return {
        "today": str(name or source or ""), "today_keys": model_keys(source) | weights, "lacks_weights": not weights,
    }  # fmt: skip


def plan_identity(reading: Reading) -> Keys:
    """What a conversion knows the chosen plan by: what its heads keep, else the place of the file."""
    try:
        layers = json.loads((reading.folder.path / "plan.json").read_text(encoding="utf-8"))["layers"]
        return frozenset({f"plan:{config_hash(layers)}"})
    except (OSError, ValueError, KeyError, TypeError):
        return frozenset(key.replace("model:", "plan-at:", 1) for key in model_keys(*folder_places(reading)))


def of_record(record: Record | None, source: str, why: str) -> Figure:
    """The figure of a record; without one it is missing, and why."""
    if record is None or record.value is None:
        return missing((record.reason if record else None) or why, source)
    has_interval = record.low is not None and record.high is not None
    told = "" if has_interval else "decision.why.no_interval"
    found = Figure(record.value, record.low, record.high, record.level, record.n, record.unit, source, told)
    return as_evidence(found, least_of(record))


def least_of(record: Record) -> int:
    """Of how many values an interval of this method is evidence; a bootstrap draws whole documents or texts, and needs more."""
    from termwise.statistics.intervals import MIN_DOCUMENTS

    return MIN_DOCUMENTS if "bootstrap" in (record.method or "") else LEAST


def _no_loss(source: str) -> Figure:
    return missing("decision.why.not_evaluated", source)


def _losses(records: Iterable[Record], source: str) -> dict[tuple[str, float], Figure]:
    """Mean loss of each plan over the texts that report."""
    found: dict[tuple[str, float], dict[Any, float]] = defaultdict(dict)
    for record in records:
        if record.metric == "held_out_nats" and record.subject.get("role") == "reporting" and record.value is not None:
            method, share = record.subject.get("method"), record.subject.get("share")
            if isinstance(method, str) and isinstance(share, int | float):
                found[method, float(share)][str(record.subject.get("text"))] = record.value
    return {
        key: Figure(sum(by_text.values()) / len(by_text), n=len(by_text), unit=NATS, source=source)
        for key, by_text in found.items()
    }


def _memory(point: Point, shown: PlanView, context: int | None, planned: int | None) -> Pair:
    """Its share of the bytes of the cache as it is served, and of the chosen plan the bytes themselves."""
    source = str(shown.reading.folder.path)
    if planned is None or context != planned:
        return Pair(change=missing("decision.why.other_context", source, measured=planned, context=context))
    if point.state is None or point.state.value is None:
        return Pair(change=of_record(point.state, source, "decision.why.not_evaluated"))
    change = exactly(point.state.value, "1", source)
    kept = [r for r in shown.reading.records if r.metric == "kept_bytes" and r.value is not None]
    latest = {(r.subject["layer"], r.subject["kv_head"]): r for r in kept}
    about = shown.setting("about", {})
    sizes = [whole(about.get(name)) for name in ("num_layers", "num_kv_heads")] if isinstance(about, dict) else []
    # Without the record of a head a sum would be of the others alone.
    if not point.is_chosen or not latest or (all(sizes) and len(latest) != math.prod(n or 1 for n in sizes)):
        return Pair(change=change)
    today, mine = sum(r.subject["whole"] for r in latest.values()), sum(r.value or 0 for r in latest.values())
    return Pair(exactly(today, "B", source), exactly(mine, "B", source), change)
