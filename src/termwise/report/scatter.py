"""The figure of what a state buys: held-out loss against measured bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from termwise.report import drawing
from termwise.report.blocks import Figure
from termwise.report.placing import Label, beside
from termwise.report.view import View
from termwise.report.words import Words

WIDTH, HEIGHT = 440, 300


@dataclass(frozen=True)
class Point:
    """One variant: bytes of its state and its held-out loss."""

    variant: str
    size: float
    loss: float
    color: str

    @property
    def row(self) -> dict[str, Any]:
        """The point as data of the chart."""
        return {"name": drawing.short(self.variant), "x": self.size, "y": self.loss, "color": self.color}


def state(view: View, say: Words) -> Figure | None:
    """Held-out loss against measured state at the context; variants that no other beats on both are joined."""
    palette = drawing.colors(view)
    points = [
        Point(v.name, v.state.value, v.loss.value, palette[v.name])
        for v in view.compared
        if v.state.value and v.loss.value is not None
    ]
    if not points or view.context is None:
        return None
    title, context = say("figure.state"), say.integer(view.context)
    missing = [v for v in view.compared if v.name not in {point.variant for point in points}]
    told = [(p.variant, say.row((say.bytes(p.size), say.number(p.loss)))) for p in points]
    tips = {name: drawing.tip(f"{name}: {text}") for name, text in told}
    note = say("figure.state.caption", context=context)
    if drawing.is_crowded(len(points)):
        note = say.sentences((note, say("figure.state.caption.crowded")))
    return Figure(
        "state",
        title,
        drawing.caption(note, missing, say),
        drawing.described(title, told, say),
        _chart(points, view.baseline, say("axis.state", context=context), say("axis.held_out"), tips),
    )


def unbeaten(points: list[Point]) -> list[Point]:
    """The points that no other beats in loss without a larger state, by size (the Pareto front).

    >>> [p.variant for p in unbeaten([Point("a", 8, 2.0, ""), Point("b", 4, 3.0, ""), Point("c", 9, 2.5, "")])]
    ['b', 'a']
    """
    front: list[Point] = []
    for point in sorted(points, key=lambda p: (p.size, p.loss)):
        if not front or point.loss < front[-1].loss:
            front.append(point)
    return front


def _chart(points: list[Point], baseline: str, x_title: str, y_title: str, tips: dict[str, str]) -> dict[str, Any]:
    import altair as alt

    front = unbeaten(points)
    is_crowded = drawing.is_crowded(len(points))
    named = [*front, *(p for p in points if p not in front and (not is_crowded or p.variant == baseline))]
    x_frame = [10**end for end in drawing.padded([math.log10(p.size) for p in points], 0.12)]
    y_frame = drawing.padded([p.loss for p in points], 0.12)
    axis = alt.Axis(values=drawing.decades(*x_frame), format="~s", grid=False)
    x = alt.X("x:Q", scale=alt.Scale(type="log", domain=x_frame, nice=False), title=x_title, axis=axis)
    y = alt.Y("y:Q", scale=alt.Scale(domain=y_frame, nice=False, zero=False), title=y_title, axis=alt.Axis(tickCount=5))
    joined = drawing.chart("front").mark_line(color=drawing.FAINT, strokeWidth=1.5)
    rows = [p.row | {"tip": tips[p.variant]} | ({} if p in named else {"color": drawing.FAINT}) for p in points]
    dots = drawing.chart("rows").mark_point(filled=True, size=75, opacity=1)
    layers = [
        joined.encode(x=x, y=y, order="x:Q"),
        dots.encode(x=x, y=y, color=drawing.as_given(), description=drawing.tips()),
    ]
    datasets = {"front": [p.row for p in front], "rows": rows}
    for place, (point, label) in enumerate(zip(named, _labels(named, points, x_frame, y_frame), strict=True)):
        if label is not None:
            datasets[f"label{place}"] = [point.row]
            text = drawing.chart(f"label{place}").mark_text(dx=label.dx, dy=label.dy, align=label.align)
            layers.append(text.encode(x=x, y=y, text="name:N", color=drawing.as_given()))
    return drawing.specification(alt.layer(*layers), datasets, width=WIDTH, height=HEIGHT)


def _labels(named: list[Point], points: list[Point], x_frame: list[float], y_frame: list[float]) -> list[Label | None]:
    """Where the names go, the most important first."""
    width = math.log(x_frame[1] / x_frame[0])
    every = [*named, *(point for point in points if point not in named)]
    pixels = [
        (WIDTH * math.log(p.size / x_frame[0]) / width, HEIGHT * (y_frame[1] - p.loss) / (y_frame[1] - y_frame[0]))
        for p in every
    ]
    lengths = [drawing.LETTER * len(drawing.short(point.variant)) for point in named]
    return beside(pixels, lengths, (WIDTH, HEIGHT))
