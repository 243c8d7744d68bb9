"""The tables of a study. A missing figure is the words "not measured", never zero and never an empty cell."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from termwise.report.blocks import Cell, Column, Table
from termwise.report.index import LEVEL, Measured
from termwise.report.verdict import difference
from termwise.report.view import Problem, Variant, View
from termwise.report.words import Words
from termwise.results import Record


def result(view: View, say: Words) -> Table:
    """Held-out loss, paired differences, both intervals, verdicts."""
    versus = {"baseline": view.baseline}
    columns = [
        Column(say("column.variant")),
        Column(say("column.loss"), say("unit.nats"), True),
        Column(say("column.bits"), say("unit.bits"), True),
    ]
    is_repeated = any(v.loss.n > 1 for v in view.variants)
    caption = say("result.caption", level=say.level(LEVEL)) if is_repeated else say("result.caption.one")
    if view.baseline:
        columns += [
            Column(say("column.difference", **versus), say("unit.nats"), True),
            Column(say("column.over_seeds"), say("unit.nats"), True),
            Column(say("column.over_documents"), say("unit.nats"), True),
            Column(say("column.verdict")),
        ]
        caption = say.sentences((caption, _about_differences(view, say)))
    rows = tuple(_result_row(v, view, say) for v in view.variants)
    return Table(caption, tuple(columns), rows, _strong(view))


def _about_differences(view: View, say: Words) -> str:
    levels = _levels(view.compared, say)
    compared = sum(v.verdict is not None for v in view.compared) or len(view.compared) - 1
    told = [say.plural("result.caption.difference", compared, baseline=view.baseline, levels=levels)] if levels else []
    if view.control and (level := _levels([view.control], say)):
        told.append(say("result.caption.control", control=view.control.name, baseline=view.baseline, level=level))
    return say.sentences(told)


def _levels(variants: Iterable[Variant], say: Words) -> str:
    """The levels at which the intervals of these variants stand, in words; empty where none has an interval."""
    records = (r for v in variants for r in (v.over_seeds, v.over_documents) if r is not None)
    levels = sorted({record.level for record in records if record.level is not None})
    return say.listing([say.level(level) for level in levels], at_most=4)


def _result_row(variant: Variant, view: View, say: Words) -> tuple[Cell, ...]:
    cells = [_name(variant), _with_interval(variant.loss, say), _with_interval(variant.bits, say)]
    if not view.baseline:
        return tuple(cells)
    if variant.is_baseline:
        return (*cells, *(Cell("") for _ in range(3)), Cell(say("baseline")))
    return (
        *cells,
        _difference(variant, say),
        _interval(variant.over_seeds, say),
        _interval(variant.over_documents, say),
        _answer(variant, say),
    )


def _name(variant: Variant) -> Cell:
    return Cell(variant.name, variant.formula)


def _with_interval(measured: Measured, say: Words) -> Cell:
    if measured.value is None:
        return _missing(say)
    if measured.n < 2:
        return Cell(say.number(measured.value), say("one_seed"))
    return Cell(say.number(measured.value), say.interval(measured.low, measured.high))


def _difference(variant: Variant, say: Words) -> Cell:
    value = difference(variant)
    return _missing(say) if value is None else Cell(say.signed(value))


def _interval(record: Record | None, say: Words) -> Cell:
    if record is None or record.low is None or record.high is None:
        return Cell(say("no_interval"), tone="missing")
    return Cell(say.interval(record.low, record.high, is_signed=True))


def _answer(variant: Variant, say: Words) -> Cell:
    answer = variant.verdict.reason if variant.verdict else None
    if not answer:
        return _missing(say)
    text = say.known(f"answer.{answer}", answer)
    return Cell(text, tone="lower" if answer == "lower" else "higher" if answer == "higher" else "")


def _missing(say: Words) -> Cell:
    return Cell(say("not_measured"), tone="missing")


def _strong(view: View) -> frozenset[int]:
    return frozenset(index for index, v in enumerate(view.variants) if v.is_baseline)


def cost(view: View, say: Words) -> Table:
    """Parameters, state, speed, recall, bad rows and how many runs are done."""
    at_context = say("unit.bytes_at", context=say.integer(view.context)) if view.context else say("unit.bytes")
    columns = (
        Column(say("column.variant")),
        Column(say("column.parameters"), say("unit.count"), True),
        Column(say("column.state"), at_context, True),
        Column(say("column.state_formula"), at_context, True),
        Column(say("column.speed"), say("unit.speed"), True),
        Column(say("column.recall"), say("unit.share"), True),
        Column(say("column.steps_to_recall"), say("unit.steps"), True),
        Column(say("column.vanishing_rows"), say("unit.largest_share"), True),
        Column(say("column.negative_rows"), say("unit.largest_share"), True),
        Column(say("column.status")),
    )
    rows = tuple(_cost_row(v, view, say) for v in view.variants)
    return Table(say("cost.caption"), columns, rows, _strong(view))


def distances(view: View, say: Words) -> Table | None:
    """Recall by how far back the key was last seen; None where no run looked."""
    ends = sorted({pair for found in view.by_distance.values() for pair in found})
    if not ends:
        return None
    spans = [say("distance.span", low=low, high=high - 1) for low, high in ends]
    columns = (Column(say("column.variant")), *(Column(span, say("unit.share"), True) for span in spans))
    rows = tuple(
        (Cell(v.name), *(_at_distance(view.by_distance[v.name].get(pair), say) for pair in ends)) for v in view.variants
    )
    return Table(say("distance.caption"), columns, rows, _strong(view))


def _at_distance(measured: Measured | None, say: Words) -> Cell:
    return _missing(say) if measured is None else _plain(measured, lambda value: say.number(value, 2), say)


def _cost_row(v: Variant, view: View, say: Words) -> tuple[Cell, ...]:
    return (
        Cell(v.name),
        _plain(v.parameters, say.integer, say),
        _plain(v.state, say.integer, say),
        _plain(v.state_formula, say.integer, say),
        _plain(v.speed, say.integer, say),
        _recall(v, say),
        _reached(v, say),
        _bad_rows(v.vanishing_rows, say),
        _bad_rows(v.negative_rows, say),
        _runs(v, view, say),
    )


def _plain(measured: Measured, form: Callable[[float], str], say: Words) -> Cell:
    return _missing(say) if measured.value is None else Cell(form(measured.value))


def _recall(variant: Variant, say: Words) -> Cell:
    return _plain(variant.recall, lambda value: say.number(value, 2), say)


def _reached(variant: Variant, say: Words) -> Cell:
    """Steps until recall was there; "not reached" where the record says that it never was."""
    steps = variant.steps_to_recall
    if steps.value is None:
        return Cell(say("not_reached"), tone="flag") if _is_limit(steps.reason) else _missing(say)
    num_seeds = max(steps.n, variant.recall.n)
    return Cell(say.integer(steps.value), say("reached.part", done=steps.n, n=num_seeds) if steps.n < num_seeds else "")


def _bad_rows(measured: Measured, say: Words) -> Cell:
    if measured.value is None:
        return _missing(say)
    if measured.value == 0:
        return Cell(say.share(0))
    where = say.row(say(f"place.{key}", n=place) for key, place in measured.where)
    return Cell(say.share(measured.value), where, "flag")


def _runs(variant: Variant, view: View, say: Words) -> Cell:
    done = say("runs.done", done=len(variant.finished), planned=len(view.seeds))
    if variant.failed:
        return Cell(done, say("runs.failed", n=len(variant.failed)), "flag")
    return Cell(done, tone="" if len(variant.finished) == len(view.seeds) else "missing")


def brief(view: View, say: Words) -> Table:
    """What fits into a terminal: loss, difference, verdict, state and recall."""
    columns = [Column(say("column.variant")), Column(say("terminal.loss"), is_number=True)]
    if view.baseline:
        columns += [Column(say("terminal.difference"), is_number=True), Column(say("terminal.verdict"))]
    columns += [Column(say(f"terminal.{key}"), is_number=True) for key in ("state", "recall")]
    rows = tuple(_brief_row(v, view, say) for v in view.variants)
    caption = say("terminal.units", context=say.integer(view.context)) if view.context else ""
    return Table(caption, tuple(columns), rows, _strong(view))


def _brief_row(v: Variant, view: View, say: Words) -> tuple[Cell, ...]:
    compared = (_difference(v, say), _answer(v, say)) if view.baseline else ()
    if v.is_baseline:
        compared = (Cell(""), Cell(say("baseline")))
    state, recall = _plain(v.state, say.integer, say), _recall(v, say)
    return (Cell(v.name), _plain(v.loss, say.number, say), *compared, state, recall)


def lengths(view: View, say: Words) -> Table | None:
    """Measured state at every length; None when only one length was measured."""
    found = sorted({length for sizes in view.state_by_length.values() for length in sizes})
    if len(found) < 2:
        return None
    columns = [Column(say("column.variant"))]
    columns += [Column(say("column.length", n=say.integer(length)), say("unit.bytes"), True) for length in found]
    rows = []
    for v in view.variants:
        sizes = view.state_by_length[v.name]
        rows.append((Cell(v.name), *(Cell(say.integer(sizes[n])) if n in sizes else _missing(say) for n in found)))
    return Table(say("lengths.caption"), tuple(columns), tuple(rows), _strong(view))


def variants(view: View, say: Words) -> Table:
    """What each variant is: formula, names of equal values, parts that cancel."""
    columns = tuple(Column(say(f"column.{key}")) for key in ("variant", "formula", "short_name", "equal", "cancels"))
    rows = tuple(
        (
            Cell(v.name),
            Cell(v.formula or say("none_given"), say.recorded(v.note)),
            Cell(v.short_name or say("none_given")),
            Cell(say.row(v.equal_names) or say("none")),
            Cell(say.groups(map(say.recorded, v.parts_that_cancel)) or say("none")),
        )
        for v in sorted(view.variants, key=lambda v: v.order)
    )
    return Table(say("variants.caption"), columns, rows)


def problems(view: View, say: Words) -> Table | None:
    """What failed, was excluded or not measured, with the reason; None when there is nothing to tell."""
    if not view.problems:
        return None
    columns = tuple(Column(say(f"column.{key}")) for key in ("variant", "seeds", "what", "state_of", "reason"))
    return Table(say("problems.caption"), columns, tuple(_problem_row(problem, say) for problem in view.problems))


def _problem_row(problem: Problem, say: Words) -> tuple[Cell, ...]:
    return (
        Cell(say.row(problem.variants)),
        Cell(say.row(problem.seeds) or say("all_seeds")),
        Cell(say.known(f"metric.{problem.metric}", problem.metric)),
        Cell(problem_state(problem, say), tone="flag" if problem.status == "failed" else ""),
        Cell(say.recorded(problem.reason) or say("problems.no_record")),
    )


def problem_state(problem: Problem, say: Words) -> str:
    """Failed, excluded, not measured; "not reached" where something was measured and never came."""
    return say("not_reached") if _is_limit(problem.reason) else say(f"status.{problem.status}")


def _is_limit(reason: str) -> bool:
    """Whether a missing number of steps is itself the finding: the study's reason is "not reached within N steps"."""
    return reason.startswith("not reached")
