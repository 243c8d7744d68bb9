"""Line figures: training loss, loss by position. Names stand at the ends of lines; many variants get a panel each."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from termwise.report import drawing
from termwise.report.blocks import Figure
from termwise.report.placing import spread
from termwise.report.view import View
from termwise.report.words import Words

WIDTH, HEIGHT = 380, 300
PANEL_WIDTH, PANEL_HEIGHT, PANELS = 190, 96, 5
MOST_POINTS = 80
_HALF = drawing.LONGEST_NAME // 2
_FITTED = (
    f"length(datum.label) <= {drawing.LONGEST_NAME} ? datum.label"
    f" : slice(datum.label, 0, {_HALF}) + '…' + slice(datum.label, -{_HALF})"
)
_POWERS = [4**power for power in range(12)]


@dataclass(frozen=True)
class Line:
    """One line of a variant; y is None where the line has a gap."""

    variant: str
    seed: int
    x: tuple[float, ...]
    y: tuple[float | None, ...]

    @property
    def finite(self) -> tuple[float, ...]:
        """The y that are there."""
        return tuple(y for y in self.y if y is not None)


@dataclass(frozen=True)
class Frame:
    """Axes of a line figure: titles, the range of y, and whether x is logarithmic."""

    x_title: str
    y_title: str
    range: list[float]
    is_log: bool

    def x(self) -> Any:
        """The x channel."""
        import altair as alt

        scale = alt.Scale(type="log", nice=False) if self.is_log else alt.Scale(nice=False)
        ticks = alt.Axis(values=_POWERS, format=",d") if self.is_log else alt.Axis(tickCount=5, format="~s")
        return alt.X("x:Q", scale=scale, title=self.x_title, axis=ticks)

    def y(self, is_small: bool = False) -> Any:
        """The y channel; a small panel has fewer ticks, and its caption says what they are."""
        import altair as alt

        scale = alt.Scale(domain=self.range, nice=False, zero=False)
        title, ticks = (None, 3) if is_small else (self.y_title, 5)
        return alt.Y("y:Q", scale=scale, title=title, axis=alt.Axis(tickCount=ticks))


def curves(view: View, say: Words) -> Figure | None:
    """Training loss against steps, a line a seed, with gaps where a step had no finite loss."""
    logged = view.curves()
    most = MOST_POINTS // 2 if drawing.is_crowded(len(view.variants)) else MOST_POINTS
    width = max(1, math.ceil(max((len(curve.steps) for curve in logged), default=0) / most))
    lines = [Line(curve.variant, curve.seed, *thinned(curve.steps, curve.losses, width)) for curve in logged]
    lines = [line for line in lines if line.finite]
    if not lines:
        return None
    late = [y for line in lines for y in line.finite[len(line.finite) // 6 :]]
    frame = Frame(say("axis.step"), say("axis.loss"), drawing.padded(late, 0.04), is_log=False)
    note = say("figure.curves.caption", width=width) if width > 1 else say("figure.curves.caption.single")
    if any(y > frame.range[1] for line in lines for y in line.finite):
        note = say.sentences((note, say("figure.curves.above")))
    return _figure("curves", note, lines, frame, view, say)


def positions(view: View, say: Words) -> Figure | None:
    """Held-out loss by position in the context, mean over seeds."""
    lines = [
        Line(
            name,
            0,
            tuple(math.sqrt((low + 1) * max(high, low + 1)) for low, high, _ in bins),
            tuple(y for *_, y in bins),
        )
        for name, bins in view.by_position.items()
        if bins
    ]
    if not lines:
        return None
    every = [y for line in lines for y in line.finite]
    frame = Frame(say("axis.position"), say("axis.loss"), drawing.padded(every, 0.05), is_log=True)
    return _figure("positions", say("figure.positions.caption"), lines, frame, view, say)


def thinned(
    steps: Sequence[int], losses: Sequence[float | None], width: int
) -> tuple[tuple[float, ...], tuple[float | None, ...]]:
    """Means of `width` neighbouring steps; one missing loss leaves its whole group missing, so that a gap is seen.

    >>> thinned([1, 2, 3, 4], [4.0, 2.0, None, 1.0], 2)
    ((1.5, 3.5), (3.0, None))
    """
    xs: list[float] = []
    ys: list[float | None] = []
    for start in range(0, len(steps), width):
        there = [loss for loss in losses[start : start + width] if loss is not None]
        group = steps[start : start + width]
        xs.append(sum(group) / len(group))
        ys.append(sum(there) / len(there) if len(there) == len(group) else None)
    return tuple(xs), tuple(ys)


def _figure(key: str, note: str, lines: list[Line], frame: Frame, view: View, say: Words) -> Figure:
    drawn = {line.variant for line in lines}
    missing = [v for v in view.variants if v.name not in drawn]
    title = say(f"figure.{key}")
    ends = {name: _end(lines, name) for name in (v.name for v in view.variants) if name in drawn}
    if drawing.is_crowded(len(drawn)):
        note = say.sentences((note, say("figure.panels", baseline=view.baseline))) if view.baseline in drawn else note
        chart = _panels(lines, frame, view, list(ends))
    else:
        chart = _together(lines, frame, drawing.colors(view), ends)
    about = drawing.described(title, [(name, say.number(end)) for name, end in ends.items()], say)
    return Figure(key, title, drawing.caption(note, missing, say), about, chart, drawing.is_crowded(len(drawn)))


def _end(lines: list[Line], variant: str) -> float:
    """Where the lines of a variant end, mean over seeds."""
    ends = [line.finite[-1] for line in lines if line.variant == variant]
    return sum(ends) / len(ends)


def _together(lines: list[Line], frame: Frame, palette: dict[str, str], ends: dict[str, float]) -> dict[str, Any]:
    import altair as alt

    rows = [row | {"color": palette[row["variant"]]} for row in _rows(lines)]
    single = len(lines) == len(ends)
    marks = drawing.chart("rows").mark_line(clip=True, strokeWidth=2 if single else 1.4)
    marks = marks.encode(
        x=frame.x(), y=frame.y(), color=drawing.as_given(), detail="line:N", description=drawing.tips()
    )
    low, high = frame.range
    wanted = [min(max((high - y) * HEIGHT / (high - low), 0.0), HEIGHT) for y in ends.values()]
    placed = spread(wanted, gap=15, low=0, high=HEIGHT)
    labels = [
        {"name": drawing.short(name), "color": palette[name], "from": start, "to": end}
        for name, start, end in zip(ends, wanted, placed, strict=True)
    ]
    at = {end: alt.Y(f"{end}:Q", scale=None, axis=None) for end in ("from", "to")}
    base = drawing.chart("labels").encode(color=drawing.as_given())
    leads = base.mark_rule(opacity=0.5).encode(x=alt.value(WIDTH + 2), x2=alt.value(WIDTH + 13), y=at["from"], y2="to")
    names = base.mark_text(align="left").encode(x=alt.value(WIDTH + 17), y=at["to"], text="name:N")
    layers = alt.layer(marks, leads, names).resolve_scale(y="independent")
    return drawing.specification(
        layers, {"rows": rows, "labels": labels}, drawing.room_for(map(drawing.short, ends)), width=WIDTH, height=HEIGHT
    )


def _panels(lines: list[Line], frame: Frame, view: View, order: list[str]) -> dict[str, Any]:
    """A panel a variant, in the order of the table, the baseline behind each."""
    import altair as alt

    of_variant: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        of_variant[line.variant].append(line)
    rows = []
    for name in order:
        behind = [] if name == view.baseline else of_variant[view.baseline]
        rows += [row | {"panel": name, "color": drawing.FAINT} for row in _rows(behind)]
        color = drawing.INK if name == view.baseline else drawing.LOWER
        rows += [row | {"panel": name, "color": color} for row in _rows(of_variant[name])]
    marks = drawing.chart("rows").mark_line(clip=True, strokeWidth=1.4)
    y = frame.y(is_small=True)
    marks = marks.encode(x=frame.x(), y=y, color=drawing.as_given(), detail="line:N")
    header = alt.Header(labelExpr=_FITTED, labelLimit=PANEL_WIDTH, labelAnchor="start")
    facet = alt.Facet("panel:N", sort=order, title=None, header=header)
    grid = marks.properties(width=PANEL_WIDTH, height=PANEL_HEIGHT).facet(facet=facet, columns=PANELS, spacing=14)
    return drawing.specification(grid, {"rows": rows})


def _rows(lines: Sequence[Line]) -> list[dict[str, Any]]:
    return [
        {
            "variant": line.variant,
            "line": f"{line.variant} {line.seed}",
            "x": x,
            "y": y,
            "tip": drawing.tip(line.variant),
        }
        for line in lines
        for x, y in zip(line.x, line.y, strict=True)
    ]
