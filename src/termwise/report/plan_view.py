"""A plan as its readers see it: the front with its baselines, what every head keeps, what was predicted and what was measured."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from termwise.report.read import Reading
from termwise.results import Record

METHODS = ("termwise", "slots", "uniform")
KINDS = ("exact", "slots", "mean", "centers")


@dataclass(frozen=True)
class Point:
    """One plan of the front: where it aims, what it keeps, what it takes, what it loses, and what was foreseen."""

    method: str
    share: float
    is_chosen: bool
    digest: str | None  # of what every head keeps; None where no record says
    state: Record | None
    rise: Record | None
    planning: Record | None
    proxy: Record | None

    @property
    def taken(self) -> float:
        """Its share of the cache's bytes as counted, else as aimed at."""
        return self.state.value if self.state is not None and self.state.value is not None else self.share


@dataclass(frozen=True)
class Head:
    """What one kv head keeps."""

    layer: int
    kv_head: int
    keeps: str
    variant: str
    share: float


@dataclass(frozen=True)
class PlanView:
    """A whole plan. `gains`: (share, baseline) -> the difference from it, below 0 where the plan loses less."""

    reading: Reading
    points: tuple[Point, ...]
    gains: dict[tuple[float, str], Record]
    heads: tuple[Head, ...]
    anchors: tuple[Record, ...]
    ranks: dict[str, Record]
    shares: dict[str, Record]
    live: Record | None
    longer: Record | None
    num_reported: int
    is_demonstration: bool = False

    @property
    def chosen(self) -> Point | None:
        """The plan that plan.json holds."""
        return next((point for point in self.points if point.is_chosen), None)

    def of(self, method: str) -> list[Point]:
        """The points of a method that have a rise, by share."""
        return sorted((p for p in self.points if p.method == method and p.rise is not None), key=lambda p: p.taken)

    def is_rival_itself(self, share: float, rival: str) -> bool:
        """Whether the plan of a share is the very plan that it is compared with: no sums won their bytes."""
        kept = {point.method: point.digest for point in self.points if point.share == share}
        return kept.get(rival) is not None and kept.get("termwise") == kept[rival]

    def setting(self, name: str, default: Any = None) -> Any:
        """A setting as it was resolved."""
        return self.reading.setting(name, default)


def plan_view(reading: Reading) -> PlanView:
    """What the records say; of two about one thing the later counts."""
    latest: dict[tuple[str, str], Record] = {}
    for record in reading.records:
        about = {k: v for k, v in record.subject.items() if k != "plan"} | {"baseline": record.baseline}
        latest[record.metric, json.dumps(about, sort_keys=True)] = record
    records = list(latest.values())
    found: dict[tuple[str, float], dict[str, Record]] = {}
    for record in records:
        if record.metric in ("state_share", "loss_rise", "planning_rise", "proxy_rise"):
            found.setdefault((record.subject["method"], record.subject["share"]), {})[record.metric] = record
    points = [_point(method, share, by_metric) for (method, share), by_metric in found.items()]
    rises = [point.rise for point in points if point.rise is not None]
    return PlanView(
        reading=reading,
        points=tuple(points),
        gains={(r.subject["share"], str(r.baseline)): r for r in records if r.metric == "gain"},
        heads=tuple(_heads(records)),
        anchors=tuple(r for r in records if r.metric == "anchor_rise" and r.value is not None),
        ranks={r.metric: r for r in records if r.metric.startswith("rank_of_")},
        shares={r.subject["cache_dtype"]: r for r in records if r.metric == "chosen_share"},
        live=next((r for r in records if r.metric == "live_bytes"), None),
        longer=next((r for r in records if r.metric == "longer_rise"), None),
        num_reported=max((rise.n or 0 for rise in rises), default=0),
    )


def _point(method: str, share: float, records: dict[str, Record]) -> Point:
    any_record = next(iter(records.values()))
    names = ("state_share", "loss_rise", "planning_rise", "proxy_rise")
    subject = any_record.subject
    return Point(
        method, share, bool(subject.get("is_chosen")), subject.get("plan"), *(records.get(name) for name in names)
    )


def _heads(records: Iterable[Record]) -> Iterable[Head]:
    kept = [record for record in records if record.metric == "kept_bytes" and record.value is not None]
    for record in kept:
        subject = record.subject
        yield Head(
            subject["layer"],
            subject["kv_head"],
            subject["keeps"],
            subject["variant"],
            (record.value or 0) / subject["whole"],
        )
