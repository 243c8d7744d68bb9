"""An inspection as its readers see it: the ladder, heads and layers, maps; every figure measured or missing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from termwise.report.read import Reading
from termwise.results import Record

CENTERS = ("mean", "zero")
FAR_SHARE = 0.1
Place = tuple[int, int]


@dataclass(frozen=True)
class Head:
    """One kv head: its rise in loss where it was measured, its proxies, where its weight goes."""

    layer: int
    kv_head: int
    rise: Record | None
    fisher: float | None
    projected_error: float | None
    first: float | None
    far: float | None

    @property
    def is_retrieval(self) -> bool:
        """Beyond noise and far-sighted: the rise's interval lies above 0, and a tenth of the weight lies beyond the window."""
        return self.is_beyond_noise and self.far is not None and self.far >= FAR_SHARE

    @property
    def is_beyond_noise(self) -> bool:
        """Whether the interval of the rise lies above 0."""
        return self.rise is not None and self.rise.low is not None and self.rise.low > 0


@dataclass(frozen=True)
class InspectView:
    """A whole inspection. `rungs[center, slots]` maps an order to its rise; `maps[name]` maps (layer, kv head) to a figure."""

    reading: Reading
    metric: str
    unit: str
    exact: Record | None
    expected: Record | None
    slots: str | None
    slots_alone: Record | None
    rungs: dict[tuple[str, str | None], dict[int, Record]]
    heads: tuple[Head, ...]
    layers: dict[int, Record]
    maps: dict[tuple[Any, ...], dict[Place, float]]
    sentence: dict[str, Any] | None
    num_unmeasured: int
    is_demonstration: bool = False

    @property
    def about(self) -> dict[str, Any]:
        """What run.json says of the model."""
        return self.reading.setting("about", {})

    @property
    def has_loss(self) -> bool:
        """Whether the measure is a loss; of an encoder it is the change of the final hidden state."""
        return self.metric == "loss"


def inspect_view(reading: Reading) -> InspectView:
    """Sort the records of an inspection; of two on one thing the later counts."""
    latest = _latest(reading.records)
    losses = [r for r in latest if r.kind == "loss" and "text" not in r.subject]
    rises = [r for r in losses if r.metric == "rise" and r.value is not None]
    maps = _maps(latest)
    window = reading.setting("window", 0)
    exact = next((r for r in losses if r.subject.get("variant") == "exact" and r.metric != "expected_loss"), None)
    importance = [r for r in latest if r.kind == "importance" and r.metric == "rise"]
    return InspectView(
        reading=reading,
        metric=exact.metric if exact else "loss",
        unit=exact.unit if exact else "nats/token",
        exact=exact,
        expected=next((r for r in losses if r.metric == "expected_loss"), None),
        slots=next((r.subject["slots"] for r in rises if r.subject.get("slots")), None),
        slots_alone=next((r for r in rises if r.subject.get("order") is None), None),
        rungs=_rungs(rises),
        heads=_heads(importance, maps, window),
        layers={r.subject["layer"]: r for r in importance if "kv_head" not in r.subject and r.value is not None},
        maps=maps,
        sentence=_sentence(reading),
        num_unmeasured=sum(r.value is None for r in importance),
    )


def _latest(records: Iterable[Record]) -> list[Record]:
    found = {}
    for record in records:
        found[record.kind, record.metric, json.dumps(record.subject, sort_keys=True)] = record
    return list(found.values())


def _rungs(rises: list[Record]) -> dict[tuple[str, str | None], dict[int, Record]]:
    """By center and slots; order 0 without slots is measured once and is the same around both centers."""
    found: dict[tuple[str, str | None], dict[int, Record]] = {}
    for record in rises:
        order, center, slots = (record.subject.get(name) for name in ("order", "center", "slots"))
        if order is None or center is None:
            continue
        both = CENTERS if order == 0 and slots is None else (center,)
        for one in both:
            found.setdefault((one, slots), {})[order] = record
    return {key: dict(sorted(by_order.items())) for key, by_order in found.items()}


def _maps(records: list[Record]) -> dict[tuple[Any, ...], dict[Place, float]]:
    """(metric,) for scores and proxies, (metric, order, center, slots) for terms, ("distance_weight", low) for distances."""
    found: dict[tuple[Any, ...], dict[Place, float]] = {}
    for r in records:
        if r.kind not in ("score", "term", "importance") or r.value is None or "kv_head" not in r.subject:
            continue
        key: tuple[Any, ...] = (r.metric,)
        if r.kind == "term":
            key = (r.metric, r.subject["order"], r.subject["center"], r.subject.get("slots"))
        elif r.metric == "distance_weight":
            key = (r.metric, r.subject["distance_low"])
        found.setdefault(key, {})[r.subject["layer"], r.subject["kv_head"]] = r.value
    return found


def _heads(importance: list[Record], maps: dict[tuple[Any, ...], dict[Place, float]], window: int) -> tuple[Head, ...]:
    rises = {(r.subject["layer"], r.subject["kv_head"]): r for r in importance if "kv_head" in r.subject}
    far = [by_place for key, by_place in maps.items() if key[0] == "distance_weight" and key[1] >= window]
    first = maps.get(("first_token_weight",), {})
    heads = []
    for place in sorted(maps.get(("score_mean",), {})):
        record = rises.get(place)
        heads.append(
            Head(
                *place,
                rise=record if record is not None and record.value is not None else None,
                fisher=maps.get(("fisher",), {}).get(place),
                projected_error=maps.get(("projected_error",), {}).get(place),
                first=first.get(place),
                far=sum(by_place.get(place, 0.0) for by_place in far) if far else None,
            )
        )
    return tuple(heads)


def _sentence(reading: Reading) -> dict[str, Any] | None:
    """sentence.json of the folder; None where it is missing or no longer what the run wrote."""
    path = reading.folder.path / "sentence.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        width = len(found["tokens"])
        is_whole = all(len(head) == width for layer in found["scores"] for head in layer)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if is_whole and width else None


def rank_correlation(pairs: list[tuple[float, float]]) -> float | None:
    """Spearman's: how far two figures put the same things in the same order; None below three or where one is constant.

    >>> rank_correlation([(1, 10), (2, 20), (3, 15)])
    0.5
    """
    if len(pairs) < 3:
        return None
    first, second = (_ranks([pair[side] for pair in pairs]) for side in (0, 1))
    middle = (len(pairs) - 1) / 2
    together = sum((a - middle) * (b - middle) for a, b in zip(first, second, strict=True))
    spreads = [sum((a - middle) ** 2 for a in ranks) for ranks in (first, second)]
    return together / (spreads[0] * spreads[1]) ** 0.5 if all(spreads) else None


def _ranks(values: list[float]) -> list[float]:
    """Places in order, the mean place among equals."""
    order = sorted(values)
    first: dict[float, int] = {}
    count: dict[float, int] = {}
    for place, value in enumerate(order):
        first.setdefault(value, place)
        count[value] = count.get(value, 0) + 1
    return [first[value] + (count[value] - 1) / 2 for value in values]
