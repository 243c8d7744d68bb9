"""Keep or cut: what each part is worth and what cutting it saves."""

from __future__ import annotations

from termwise.report.blocks import Cell, Column, Table
from termwise.report.decision.case import Case, Component
from termwise.report.decision_page import wording
from termwise.report.decision_page.heads import models_of
from termwise.report.words import Words

MOST_PARTS = 5


def few_parts(case: Case, say: Words) -> Table | None:
    """The parts that matter most, of runs about the candidate; None where none of them took anything apart."""
    about = _runs_about(case)
    chosen = few(tuple(one for one in case.components if one.source in about))
    return parts_table(chosen, say("decision.head.parts"), say) if chosen else None


def _runs_about(case: Case) -> set[str]:
    """The runs that the candidate comes from, and others of the same model: what another model's heads are worth says nothing here."""
    sources = case.verdicts[0].evidence.sources
    named_by = zip(case.readings, models_of(case.readings), strict=True)
    models = {str(one.folder.path): model for one, model in named_by}
    named = {models[source] for source in sources if source in models} - {""}
    return {*sources, *(path for path, model in models.items() if model in named)}


def few(components: tuple[Component, ...]) -> list[Component]:
    """What costs most if cut, and what saves most; both are shown where both are there.

    A part that alone takes more than the whole cache of today is no part of a cheaper model; the full table has it.
    """
    components = tuple(one for one in components if (one.saved.value or 0.0) <= 1)
    keep = [one for one in components if one.recommendation == "keep"]
    cut = [one for one in components if one.recommendation == "cut"]
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
