"""The figures of a benchmark: a measure against context, both axes logarithmic, the crossing marked with its length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from termwise.report import drawing
from termwise.report.bench_tables import name
from termwise.report.bench_view import BASELINE, MEASURES, BenchView, Series
from termwise.report.blocks import Figure
from termwise.report.placing import spread
from termwise.report.words import Words

WIDTH, HEIGHT = 400, 300
# Ticks as people read times, sizes and lengths.
_TIME = (
    "datum.value < 1e-3 ? format(datum.value * 1e6, '~g') + ' µs' : datum.value < 1 ? "
    "format(datum.value * 1e3, '~g') + ' ms' : format(datum.value, '~g') + ' s'"
)
_SIZE = (
    "datum.value < 1024 ? datum.value + ' B' : datum.value < 1048576 ? format(datum.value / 1024, '~g') + ' KiB' : "
    "datum.value < 1073741824 ? format(datum.value / 1048576, '~g') + ' MiB' : format(datum.value / 1073741824, '~g') + ' GiB'"
)
_LENGTH = "datum.value >= 1024 ? format(datum.value / 1024, '.2~f') + 'k' : format(datum.value, '~g')"


@dataclass(frozen=True)
class Point:
    """One figure of a line, with the ends of its stroke."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """What is drawn in one colour; `crossing` is where it passes the baseline."""

    label: str
    color: str
    points: tuple[Point, ...]
    crossing: float | None = None


def figures(view: BenchView, say: Words) -> list[Figure]:
    """Every figure that has two points to join."""
    palette = colors(view)
    made = [_measure(measure, view, palette, say) for measure in MEASURES]
    made.insert(2, _state(view, palette, say))
    made.insert(5, _training_memory(view, palette, say))
    return [figure for figure in made if figure is not None]


def colors(view: BenchView) -> dict[str, str]:
    """A colour a line, by its place in run.json; the baseline is ink."""
    found = {BASELINE: drawing.INK}
    for one in view.series:
        if one.variant != BASELINE and one.label not in found:
            found[one.label] = drawing.SERIES[(len(found) - 1) % len(drawing.SERIES)]
    return found


def _measure(measure: str, view: BenchView, palette: dict[str, str], say: Words) -> Figure | None:
    lines = [_line(one, palette, say) for one in view.of(measure)]
    is_size = measure == "memory"
    return _figure(measure, lines, say("bench.caption.bytes" if is_size else "bench.caption.time"), is_size, say)


def _line(series: Series, palette: dict[str, str], say: Words) -> Line:
    points = [
        Point(length, record.value, record.low or record.value, record.high or record.value)
        for length, record in sorted(series.main.items())
        if record.value
    ]
    color = palette[BASELINE if series.variant == BASELINE else series.label]
    crossing = series.crossing.value if series.crossing and is_inside(series) else None
    return Line(name(series, say), color, tuple(points), crossing)


def is_inside(series: Series) -> bool:
    """Whether the crossing lies between measured lengths, and not at or below the first of them."""
    record = series.crossing
    return record is not None and record.value is not None and record.value > min(series.ratio, default=0) * 1.0001


def _state(view: BenchView, palette: dict[str, str], say: Words) -> Figure | None:
    lines, caches = [], {}
    for variant in view.names:
        points: list[Point] = []
        for length in view.lengths:
            for measure in ("prefill", "decode"):
                found = [view.figure(metric, variant, measure, length) for metric in ("state", "cache")]
                if found[0] is not None and found[0].value and (not points or points[-1].x != length):
                    points.append(Point(length, *3 * [found[0].value]))
                if found[1] is not None and found[1].value:
                    caches[length] = found[1].value
        if points:
            lines.append(Line(variant, palette.get(variant, drawing.MUTED), tuple(points)))
    cache = tuple(Point(length, *3 * [value]) for length, value in sorted(caches.items()))
    every = [Line(say("bench.cache"), drawing.INK, cache), *lines] if lines else []
    return _figure("state", every, say("bench.caption.state"), True, say)


def _training_memory(view: BenchView, palette: dict[str, str], say: Words) -> Figure | None:
    lines = []
    for one in view.of("training"):
        found = [(n, view.figure("training_memory", one.label, "training", n)) for n in view.lengths]
        points = tuple(Point(n, *3 * [record.value]) for n, record in found if record is not None and record.value)
        lines.append(Line(name(one, say), palette[BASELINE if one.variant == BASELINE else one.label], points))
    return _figure("training_memory", lines, say("bench.caption.training_memory"), True, say)


def _figure(key: str, lines: list[Line], caption: str, is_size: bool, say: Words) -> Figure | None:
    lines = [line for line in lines if line.points]
    if len({point.x for line in lines for point in line.points}) < 2:
        return None
    title = say(f"bench.figure.{key}")
    form = say.size if is_size else say.duration
    told = [(line.label, form(line.points[-1].y)) for line in lines]
    return Figure(f"bench-{key}", title, caption, drawing.described(title, told, say), _chart(lines, is_size, say))


def _chart(lines: list[Line], is_size: bool, say: Words) -> dict[str, Any]:
    import altair as alt

    xs = sorted({point.x for line in lines for point in line.points})
    ends = [value for line in lines for point in line.points for value in (point.low, point.high)]
    x_frame, y_frame = [xs[0] / 1.12, xs[-1] * 1.12], _logarithmic(ends)
    axis = alt.Axis(values=_ticks(xs), labelExpr=_LENGTH, grid=False, labelOverlap="greedy")
    x = alt.X("x:Q", scale=alt.Scale(type="log", domain=x_frame, nice=False), title=say("bench.axis.length"), axis=axis)
    y_axis = alt.Axis(values=_decades(y_frame, 2 if is_size else 10), labelExpr=_SIZE if is_size else _TIME)
    y_title = say("bench.axis.bytes" if is_size else "bench.axis.time")
    scale = alt.Scale(type="log", domain=y_frame, nice=False)
    y = alt.Y("y:Q", scale=scale, title=y_title, axis=y_axis)
    color = drawing.as_given()
    rows = drawing.chart("rows")
    joined = rows.mark_line(strokeWidth=2).encode(x=x, y=y, color=color, detail="line:N")
    dots = rows.mark_point(filled=True, size=34, opacity=1)
    dots = dots.encode(x=x, y=y, color=color, description=drawing.tips())
    strokes = rows.mark_rule(strokeWidth=1.2).encode(x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q", color=color)
    crossings = drawing.chart("crossings")
    down = crossings.mark_rule(strokeDash=[2, 3], strokeWidth=1.4).encode(x=x, color=color)
    at = crossings.mark_text(align="left", dx=4, fontSize=11).encode(
        x=x, y=alt.Y("place:Q", scale=None, axis=None), text="text:N", color=color
    )
    layers, labels = _labels(lines, y_frame)
    inner = alt.layer(joined, strokes, dots, down)
    datasets = {"rows": _rows(lines, is_size, say), "crossings": _crossings(lines, say), "labels": labels}
    return drawing.specification(
        alt.layer(inner, at, *layers).resolve_scale(y="independent"),
        datasets,
        drawing.room_for([drawing.short(line.label) for line in lines]),
        width=WIDTH,
        height=HEIGHT,
    )


def _rows(lines: list[Line], is_size: bool, say: Words) -> list[dict[str, Any]]:
    form = say.size if is_size else say.duration
    return [
        {"line": line.label, "color": line.color, "x": p.x, "y": p.y, "low": p.low, "high": p.high,
         "tip": drawing.tip(f"{line.label}, {say.length(p.x)}: {form(p.y)}")}
        for line in lines
        for p in line.points
    ]  # fmt: skip


def _crossings(lines: list[Line], say: Words) -> list[dict[str, Any]]:
    """Where lines pass the baseline; the lengths stand below each other, so that none covers another."""
    crossed = [line for line in lines if line.crossing]
    return [
        {"x": line.crossing, "color": line.color, "text": say.length(round(line.crossing)), "place": 8 + 14 * number}  # type: ignore[arg-type]
        for number, line in enumerate(crossed)
    ]


def _labels(lines: list[Line], y_frame: list[float]) -> tuple[list[Any], list[dict[str, Any]]]:
    """Names at the ends of the lines, moved apart, with leads."""
    import altair as alt

    height = math.log(y_frame[1] / y_frame[0])
    wanted = [HEIGHT * math.log(y_frame[1] / line.points[-1].y) / height for line in lines]
    placed = spread(wanted, gap=15, low=0, high=HEIGHT)
    rows = [
        {"name": drawing.short(line.label), "color": line.color, "from": start, "to": end}
        for line, start, end in zip(lines, wanted, placed, strict=True)
    ]
    at = {end: alt.Y(f"{end}:Q", scale=None, axis=None) for end in ("from", "to")}
    base = drawing.chart("labels").encode(color=drawing.as_given())
    leads = base.mark_rule(opacity=0.5).encode(x=alt.value(WIDTH + 2), x2=alt.value(WIDTH + 13), y=at["from"], y2="to")
    names = base.mark_text(align="left").encode(x=alt.value(WIDTH + 17), y=at["to"], text="name:N")
    return [leads, names], rows


def _logarithmic(values: list[float]) -> list[float]:
    """A frame around positive numbers, wider by a tenth of its logarithm at both ends."""
    low, high = math.log(min(values)), math.log(max(values))
    margin = 0.08 * ((high - low) or 1.0)
    return [math.exp(low - margin), math.exp(high + margin)]


def _ticks(xs: list[float]) -> list[float]:
    """The measured lengths; of many, the powers of two among them."""
    powers = [x for x in xs if math.log2(x).is_integer()]
    return xs if len(xs) <= 8 or len(powers) < 3 else powers


def _decades(frame: list[float], base: int) -> list[float]:
    """Ticks of the vertical axis: powers of ten, or of two for sizes, at most seven."""
    low, high = frame
    first, last = math.ceil(math.log(low, base)), math.floor(math.log(high, base))
    if base == 10 and last - first < 2:
        return drawing.decades(low, high)
    step = max(1, math.ceil((last - first + 1) / 7))
    return [float(base) ** power for power in range(first, last + 1, step)]
