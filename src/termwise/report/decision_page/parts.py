"""Keep or cut: what each part is worth and what cutting it saves."""

from __future__ import annotations

from termwise.report.blocks import Cell, Column, Table
from termwise.report.decision.case import Case, Component
from termwise.report.decision_page import wording
from termwise.report.words import Words

MOST_PARTS = 5


def few_parts(case: Case, say: Words) -> Table | None:
    """The parts that matter most; None where no run took anything apart."""
    chosen = few(case.components)
    return parts_table(chosen, say("decision.head.parts"), say) if chosen else None


def few(components: tuple[Component, ...]) -> list[Component]:
    """What costs most if cut, and what saves most; both are shown where both are there."""
    keep = [one for one in components if one.recommendation == "keep"]
    cut = [
        one for one in components if one.recommendation == "cut" and (one.saved.value is None or one.saved.value > 0)
    ]
    keep.sort(key=lambda one: -(one.loss.value or 0.0))
    cut.sort(key=lambda one: (-(one.saved.value or 0.0), one.loss.value or 0.0))
    most_cut = max(MOST_PARTS // 2, MOST_PARTS - len(keep))
    chosen = keep[: MOST_PARTS - min(len(cut), MOST_PARTS // 2)] + cut[:most_cut]
    rest = [one for one in components if one.recommendation not in ("keep", "cut")]
    return (chosen + rest)[:MOST_PARTS]


def parts_table(components: list[Component], caption: str, say: Words) -> Table:
    """Component, accuracy if cut, cost saved, recommendation."""
    names = ("component", "if_cut", "saved", "recommendation")
    units = {"if_cut": say("unit.nats"), "saved": say("decision.unit.saved")}
    columns = tuple(Column(say(f"decision.column.{name}"), units.get(name, ""), name in units) for name in names)
    return Table(caption, columns, tuple(_part(one, say) for one in components))


def _part(one: Component, say: Words) -> tuple[Cell, ...]:
    known = one.recommendation != "not_measured"
    return (
        Cell(wording.component_name(one, say)),
        wording.change_cell(one.loss, "accuracy", say),
        wording.saved(one.saved, say),
        Cell(say(f"decision.recommend.{one.recommendation}"), tone="" if known else "missing"),
    )
