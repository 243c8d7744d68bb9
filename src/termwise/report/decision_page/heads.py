"""Layer by layer and head by head: everything the runs of one model say of a kv head, in one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from termwise.report.blocks import Cell, Column, Table
from termwise.report.inspect_view import InspectView, Place, inspect_view
from termwise.report.plan_view import plan_view
from termwise.report.read import Reading
from termwise.report.words import Words

SCORES = ("score_mean", "score_spread", "first_token_weight")


@dataclass(frozen=True)
class Chooser:
    """The heads of one model. `places` are (layer, kv head) of each row of the table."""

    model: str
    table: Table
    places: tuple[Place, ...]

    @property
    def layers(self) -> list[int]:
        """Layers that have a row."""
        return sorted({layer for layer, _ in self.places})

    @property
    def heads(self) -> list[int]:
        """kv heads that have a row in any layer."""
        return sorted({head for _, head in self.places})


def choosers(readings: Sequence[Reading], say: Words) -> list[Chooser]:
    """One chooser a model that was inspected or planned for."""
    found: dict[str, dict[str, dict[Place, Cell]]] = {}
    for reading, model in zip(readings, models_of(readings), strict=True):
        columns = _columns(reading, say)
        if columns:
            found.setdefault(model, {}).update(columns)
    return [_chooser(model, columns, say) for model, columns in found.items()]


def models_of(readings: Sequence[Reading]) -> list[str]:
    """The model that each run is about, with its weights where several of one name have others; empty where a run does not say."""
    names = [_name(reading) for reading in readings]
    weights = [str(reading.setting("weights") or "") for reading in readings]
    kinds = {name: {w for other, w in zip(names, weights, strict=True) if other == name and w} for name in names}
    return [f"{n} ({w})" if w and len(kinds[n]) > 1 else n for n, w in zip(names, weights, strict=True)]


def _name(reading: Reading) -> str:
    """By its own name where the run looked into the model, else by the folder that the run was given."""
    about = reading.setting("about")
    name = about.get("name") if isinstance(about, dict) else reading.setting("model")
    return Path(str(name or "")).name


def _columns(reading: Reading, say: Words) -> dict[str, dict[Place, Cell]]:
    if reading.run["command"] == "inspect":
        made = _inspected(inspect_view(reading), say)
    elif reading.run["command"] == "plan":
        made = _planned(reading, say)
    else:
        made = {}
    return {name: cells for name, cells in made.items() if cells}


def _inspected(view: InspectView, say: Words) -> dict[str, dict[Place, Cell]]:
    """Statistics of the scores, then what the head is worth."""
    found = {
        name: {place: Cell(say.number(value, 2), value=value) for place, value in view.maps.get((name,), {}).items()}
        for name in SCORES
    }
    far, rise, fisher = {}, {}, {}
    for head in view.heads:
        place = head.layer, head.kv_head
        if head.far is not None:
            far[place] = Cell(say.share(head.far), value=head.far)
        if head.fisher is not None:
            fisher[place] = Cell(say.number(head.fisher, 4), value=head.fisher)
        if head.rise is not None and head.rise.value is not None:
            interval = say.interval(head.rise.low, head.rise.high, is_signed=True, digits=4)
            rise[place] = Cell(say.signed(head.rise.value, 4), interval, value=head.rise.value)
    return {**found, "far_weight": far, "rise": rise, "fisher": fisher}


def _planned(reading: Reading, say: Words) -> dict[str, dict[Place, Cell]]:
    """What the plan keeps of a head, and its bytes beside the whole cache."""
    heads = plan_view(reading).heads
    return {
        "keeps": {(one.layer, one.kv_head): Cell(one.variant, say(f"plan.kind.{one.keeps}")) for one in heads},
        "share": {(one.layer, one.kv_head): Cell(say.share(one.share), value=one.share) for one in heads},
    }


def _chooser(model: str, columns: dict[str, dict[Place, Cell]], say: Words) -> Chooser:
    places = sorted({place for cells in columns.values() for place in cells})
    missing = Cell(say("not_measured"), tone="missing")
    head = [Column(say("decision.heads.place"))]
    head += [Column(say(f"decision.heads.{name}"), is_number=name != "keeps") for name in columns]
    rows = tuple(
        (
            Cell(say("inspect.place", layer=place[0], head=place[1])),
            *(cells.get(place, missing) for cells in columns.values()),
        )
        for place in places
    )
    return Chooser(model, Table(say("decision.heads.caption", n=len(places)), tuple(head), rows), tuple(places))
