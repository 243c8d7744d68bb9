"""What is to be measured, in which order, and what the budget buys."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from termwise.analysis.reducing import truncation
from termwise.attention.kernels import Drop
from termwise.attention.spec import AttentionSpec, Local
from termwise.inspection.config import TOP_ORDER


@dataclass(frozen=True)
class Rung:
    """One model of the ladder: every head of every layer by `spec`. `order` None: the exact slots alone, the rest dropped."""

    spec: AttentionSpec
    order: int | None
    center: str | None
    local: Local | None

    @property
    def subject(self) -> dict[str, object]:
        """What its records are about."""
        slots = f"w{self.local.window}s{self.local.sinks}" if self.local else None
        return {"variant": self.spec.short_name, "order": self.order, "center": self.center, "slots": slots}


def ladder(local: Local | None) -> tuple[list[Rung], list[Rung]]:
    """The rungs that are always measured (even orders, and the slots alone) and those that the budget may leave out.

    Order 0 is the same around both centers without slots, and is measured once, around the mean.
    """
    first = [Rung(AttentionSpec(Drop(), local=local), None, None, local)] if local else []
    rungs = [
        Rung(truncation(order, center, slots), order, center, slots)
        for order in range(TOP_ORDER + 1)
        for slots in ([local, None] if local else [None])
        for center in ("mean", "zero")
        if order or slots or center == "mean"
    ]
    even = [rung for rung in rungs if rung.order is not None and rung.order % 2 == 0]
    return [*first, *even], [rung for rung in rungs if rung not in even]


@dataclass(frozen=True)
class Place:
    """What runs reduced while everything else stays exact: one kv head, or with None a whole layer."""

    layer: int
    kv_head: int | None

    @property
    def subject(self) -> dict[str, int]:
        """What its records are about."""
        return {"layer": self.layer} | ({} if self.kv_head is None else {"kv_head": self.kv_head})


@dataclass
class Cost:
    """Seconds of each kind of work: from a few timed parts at first, corrected by what the work then takes.

    `forward`: one text through the model; `head`: its end alone; `reduced`, `exact`: attention of one layer by a spec and fused;
    `terms`: the terms of one layer.
    """

    num_layers: int
    num_texts: int
    forward: float
    head: float
    reduced: float
    terms: float
    _spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _foreseen: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def text(self) -> float:
        """The terms of one text with one sweep backwards."""
        return self._corrected("text", self._text)

    def rung(self) -> float:
        """One rung on all texts."""
        return self._corrected("rung", self._rung)

    def rise(self, place: Place) -> float:
        """One place on all texts."""
        return self._corrected("rise", self._rise(place))

    def learn(self, kind: str, foreseen: float, seconds: float) -> None:
        """What a piece of work took beside what was foreseen before any correction."""
        self._spent[kind] += seconds
        self._foreseen[kind] += foreseen

    def plain(self, kind: str, place: Place | None = None) -> float:
        """The estimate without correction, for `learn`."""
        return self._rise(place) if place is not None else self._text if kind == "text" else self._rung

    @property
    def _text(self) -> float:
        return 4 * self.forward + self.num_layers * (self.terms + self.reduced)

    @property
    def _rung(self) -> float:
        return self.num_texts * (self.forward + self.num_layers * self.reduced)

    def _rise(self, place: Place) -> float:
        layers = (self.num_layers - place.layer) / self.num_layers
        return self.num_texts * (self.head + layers * max(0.0, self.forward - self.head) + self.reduced)

    def _corrected(self, kind: str, seconds: float) -> float:
        foreseen = self._foreseen[kind]
        return seconds * self._spent[kind] / foreseen if foreseen else seconds


def ranked(proxies: Sequence[Sequence[float]]) -> list[Place]:
    """Every kv head, the largest proxy (layers x kv heads) first: the order in which they get true evaluations.

    >>> [(place.layer, place.kv_head) for place in ranked([[0.1, 0.3], [0.2, 0.0]])]
    [(0, 1), (1, 0), (0, 0), (1, 1)]
    """
    places = [Place(layer, head) for layer, row in enumerate(proxies) for head in range(len(row))]
    return sorted(places, key=lambda place: -proxies[place.layer][place.kv_head or 0])


@dataclass
class Remaining:
    """What is still to be measured: texts and rungs in any case, places and further rungs as far as the budget goes."""

    texts: int
    rungs: int
    places: list[Place]
    later: int

    def always(self, cost: Cost) -> float:
        """Seconds of what no budget leaves out."""
        return self.texts * cost.text() + self.rungs * cost.rung()

    def seconds(self, cost: Cost, budget: float) -> float:
        """Seconds until the end, when `budget` is what is left of it: all of it is spent only where there is enough to do."""
        always = self.always(cost)
        optional = sum(cost.rise(place) for place in self.places) + self.later * cost.rung()
        return always + max(0.0, min(optional, budget - always))


def affordable(places: Sequence[Place], cost: Cost, seconds: float) -> int:
    """How many of the places, in order, fit into the seconds."""
    for number, place in enumerate(places):
        seconds -= cost.rise(place)
        if seconds < 0:
            return number
    return len(places)
