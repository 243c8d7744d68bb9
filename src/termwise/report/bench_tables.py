"""The tables of a benchmark. A missing figure is the words "not measured" or "failed", never an empty cell."""

from __future__ import annotations

from termwise.report.bench_view import BASELINE, MEASURES, WHOLE_MODELS, BenchView, Series
from termwise.report.blocks import Cell, Column, Table
from termwise.report.words import Words
from termwise.results import Record

GOOD = 0.1  # a pick is good up to so much over the best form's time


def measures(view: BenchView, say: Words) -> list[Table]:
    """A table a measure: subjects down, lengths across."""
    made = [measure_table(measure, view, say) for measure in MEASURES if _series(view, measure)]
    memory = training_memory(view, say)
    return [*made, memory] if memory else made


def brief(view: BenchView, say: Words) -> list[Table]:
    """The same for the terminal: a cell holds the median and the ratio."""
    judged = picks(view, say)
    made = [judged] if judged else []
    for measure in MEASURES:
        series = _series(view, measure)
        if not series:
            continue
        lengths = _lengths(series)
        columns = (Column(say(f"bench.measure.{measure}")), *(Column(say.length(n), is_number=True) for n in lengths))
        rows = tuple((Cell(name(one, say)), *(_brief_cell(one, n, say) for n in lengths)) for one in series)
        made.append(Table("", columns, rows, _strong(series)))
    return made


def measure_table(measure: str, view: BenchView, say: Words) -> Table:
    """One measure."""
    series = _series(view, measure)
    lengths = _lengths(series)
    columns = (
        Column(say("bench.column.subject")),
        *(Column(say("bench.column.length", n=say.length(n)), is_number=True) for n in lengths),
    )
    rows = tuple(
        (Cell(name(one, say), say.recorded(view.formulas.get(one.variant, ""))), *(_cell(one, n, say) for n in lengths))
        for one in series
    )
    return Table(say(f"bench.table.{measure}", n=128), columns, rows, _strong(series))


def training_memory(view: BenchView, say: Words) -> Table | None:
    """Peak memory of a training step."""
    series = view.of("training")
    lengths = _lengths(series)
    if not lengths:
        return None
    columns = (Column(say("bench.column.subject")), *(Column(say.length(n), is_number=True) for n in lengths))
    rows = [
        (
            Cell(name(one, say)),
            *(_bytes(view.figure("training_memory", one.label, "training", n), None, say) for n in lengths),
        )
        for one in series
    ]
    return Table(say("bench.table.training_memory"), columns, tuple(rows), _strong(series))


def _series(view: BenchView, measure: str) -> list[Series]:
    return [one for one in view.series if one.measure == measure]


def _lengths(series: list[Series]) -> list[int]:
    return sorted({length for one in series for length in one.main})


def _strong(series: list[Series]) -> frozenset[int]:
    return frozenset(place for place, one in enumerate(series) if one.variant == BASELINE)


def name(series: Series, say: Words) -> str:
    """What a series is called."""
    if series.variant == BASELINE:
        return say("bench.llama" if series.measure in WHOLE_MODELS else "bench.sdpa")
    return say.row((series.variant, form_name(series.form, say))) if series.form else series.variant


def form_name(form: str | None, say: Words) -> str:
    """A form in words."""
    return say.known(f"form.{form}", form or "")


def _cell(series: Series, length: int, say: Words) -> Cell:
    record, ratio = series.main.get(length), series.ratio.get(length)
    if record is None or record.value is None:
        return _missing(record, say)
    notes = []
    if record.low is not None and record.high is not None:
        notes.append(f"[{say.figure(record.low, record.unit)}, {say.figure(record.high, record.unit)}]")
    if ratio is not None and ratio.value is not None:
        notes.append(say("bench.times", value=say.digits(ratio.value)))
    tone = "" if ratio is None or ratio.value is None else "lower" if ratio.value > 1 else ""
    return Cell(say.figure(record.value, record.unit), " ".join(notes), tone)  # type: ignore[arg-type]


def _brief_cell(series: Series, length: int, say: Words) -> Cell:
    record, ratio = series.main.get(length), series.ratio.get(length)
    if record is None or record.value is None:
        return _missing(record, say)
    times = "" if ratio is None or ratio.value is None else f" ({say('bench.times', value=say.digits(ratio.value))})"
    is_ahead = ratio is not None and (ratio.value or 0) > 1
    return Cell(say.figure(record.value, record.unit) + times, tone="lower" if is_ahead else "")


def _missing(record: Record | None, say: Words) -> Cell:
    status = "not_measured" if record is None else record.status
    return Cell(say(f"status.{status}"), tone="flag" if status == "failed" else "missing")


def state(view: BenchView, say: Words) -> Table | None:
    """Live bytes beside the formula, subjects down, lengths across; the cache above them."""
    found = {
        (metric, name, length): record
        for metric in ("state", "state_formula", "cache")
        for name in view.names
        for length in view.lengths
        if (record := _of_either(view, metric, name, length)) is not None
    }
    lengths = sorted({length for _, _, length in found})
    if not lengths:
        return None
    columns = (Column(say("bench.column.subject")), *(Column(say.length(n), is_number=True) for n in lengths))
    caches = [next((r for (m, _, at), r in found.items() if m == "cache" and at == n), None) for n in lengths]
    rows = [(Cell(say("bench.cache")), *(_bytes(cache, None, say) for cache in caches))]
    for name in view.names:
        if any(of == name for _, of, _ in found):
            pairs = [(found.get(("state", name, n)), found.get(("state_formula", name, n))) for n in lengths]
            rows.append((Cell(name), *(_bytes(live, formula, say) for live, formula in pairs)))
    return Table(say("bench.table.state"), columns, tuple(rows), frozenset({0}))


def _bytes(live: Record | None, formula: Record | None, say: Words) -> Cell:
    if live is None or live.value is None:
        return _missing(live, say)
    if formula is None or not formula.value:
        return Cell(say.size(live.value))
    if live.value == formula.value:
        return Cell(say.size(live.value), say("bench.equal"))
    return Cell(say.size(live.value), say("bench.apart", formula=say.size(formula.value)), "flag")


def _of_either(view: BenchView, metric: str, variant: str, length: int) -> Record | None:
    found = (view.figure(metric, variant, measure, length) for measure in ("prefill", "decode"))
    return next((record for record in found if record is not None), None)


def limits(view: BenchView, say: Words) -> Table | None:
    """Prefill beside the product peak, decode beside one read of the state."""
    peak = view.machine.get("product_peak")
    columns = (
        Column(say("bench.column.subject")),
        Column(say("bench.column.at"), is_number=True),
        *(Column(say(f"bench.machine.{key}"), is_number=True) for key in ("share", "over_read", "single")),
    )
    rows = []
    for variant in view.names:
        for length in view.lengths:
            speed = view.figure("prefill_operations", variant, "prefill", length)
            read = view.figure("decode_over_read", variant, "decode", length)
            single = view.figure("decode_single", variant, "decode", length)
            if speed is None and read is None and single is None:
                continue
            share = speed.value / peak.value if speed and speed.value and peak and peak.value else None
            told = [
                None if share is None else say.share(share),
                None if read is None or read.value is None else say("bench.times", value=say.digits(read.value)),
                None if single is None or single.value is None else _with_bounds(single, say),
            ]
            cells = (Cell(text) if text else Cell(say("not_measured"), tone="missing") for text in told)
            rows.append((Cell(variant), Cell(say.length(length)), *cells))
    return Table(say("bench.machine.caption"), columns, tuple(rows)) if rows else None


def _with_bounds(record: Record, say: Words) -> str:
    low, middle, high = (say.figure(v or 0.0, record.unit) for v in (record.low, record.value, record.high))
    return f"{middle} [{low}, {high}]"


def forms(view: BenchView, say: Words) -> Table | None:
    """The forms of every subject and measure, with the reason of the choice at the longest length of each."""
    columns = tuple(Column(say(f"bench.column.{key}")) for key in ("subject", "measure", "at", "form", "why"))
    rows = []
    for one in view.series:
        by_form: dict[str, list[Record]] = {}
        for _, record in sorted(one.main.items()):
            if one.variant != BASELINE and record.form and record.status == "ok" and record.reason:
                by_form.setdefault(record.form, []).append(record)
        for form, records in by_form.items():
            lengths = say.listing([say.length(record.subject["length"]) for record in records], 12)
            texts = (
                one.variant,
                say(f"bench.measure.{one.measure}"),
                lengths,
                form_name(form, say),
                say.recorded(records[-1].reason or ""),
            )
            rows.append(tuple(Cell(text) for text in texts))
    return Table(say("bench.form.caption"), columns, tuple(rows)) if rows else None


def problems(view: BenchView, say: Words) -> Table | None:
    """Rows without a figure."""
    columns = tuple(Column(say(f"bench.column.{key}")) for key in ("subject", "measure", "at", "reason"))
    rows = tuple(
        (
            Cell(missing.variant),
            Cell(say(f"bench.measure.{missing.measure}")),
            Cell(say.length(missing.length)),
            Cell(
                say.recorded(missing.reason),
                say(f"status.{missing.status}"),
                "flag" if missing.status == "failed" else "missing",
            ),
        )
        for missing in view.problems
    )
    return Table(say("bench.problems.caption"), columns, rows) if rows else None


def picks(view: BenchView, say: Words) -> Table | None:
    """What the calibrated choice takes on shapes that were not used to fit it."""
    keys = ("subject", "at", "heads", "widths", "parallel", "chunked", "form", "over")
    columns = tuple(Column(say(f"bench.column.{key}"), is_number=key not in ("subject", "form")) for key in keys)
    rows = []
    for parallel, chunked, pick in view.picks:
        shape = pick.subject
        over = (pick.value or 1.0) - 1.0
        rows.append(
            (
                Cell(str(shape["variant"])),
                Cell(say.length(shape["length"])),
                Cell(f"{shape['batch']} x {shape['heads']}/{shape['kv_heads']}"),
                Cell(f"{shape['key_width']}/{shape['value_width']}"),
                *(Cell(say.duration(record.value or 0.0)) for record in (parallel, chunked)),
                Cell(form_name(pick.form, say)),
                Cell(say.share(over), tone="flag" if over > GOOD else ""),
            )
        )
    return Table(say("bench.picks.caption"), columns, tuple(rows)) if rows else None
