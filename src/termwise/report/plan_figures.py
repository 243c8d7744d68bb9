"""The figures of a plan: the front with its baselines, what every head keeps, predicted against measured."""

from __future__ import annotations

import math
from typing import Any

from termwise.report import drawing
from termwise.report.blocks import Figure
from termwise.report.placing import spread
from termwise.report.plan_view import KINDS, METHODS, Head, PlanView
from termwise.report.words import Words

WIDTH, HEIGHT = 460, 300
MAP_WIDTH, ROW = 860, 26
COLORS = dict(zip(METHODS, (drawing.LOWER, drawing.HIGHER, drawing.INK), strict=True))
KIND_COLORS = dict(zip(KINDS, (drawing.INK, drawing.HIGHER, drawing.SERIES[2], drawing.LOWER), strict=True))


def figures(view: PlanView, say: Words) -> list[Figure]:
    """The front and the check of the proxies."""
    return [figure for figure in (front(view, say), predicted(view, say)) if figure is not None]


def front(view: PlanView, say: Words) -> Figure | None:
    """Rise in loss against the share of the cache's bytes, one line a method, with intervals."""
    rows: list[dict[str, Any]] = [
        {
            "line": say(f"plan.method.{method}"), "color": COLORS[method], "x": point.taken, "y": point.rise.value,
            "tip": drawing.tip(f"{say(f'plan.method.{method}')}, {say.share(point.taken)}: {say.signed(point.rise.value, 4)}"),
            "low": point.rise.value if point.rise.low is None else point.rise.low,
            "high": point.rise.value if point.rise.high is None else point.rise.high,
        }
        for method in METHODS
        for point in view.of(method)
        if point.rise is not None and point.rise.value is not None
    ]  # fmt: skip
    if not rows:
        return None
    title = say("plan.figure.front")
    told = [(f"{row['line']} {say.share(row['x'])}", say.signed(row["y"])) for row in rows]
    return Figure(
        "plan-front", title, say("plan.caption.front"), drawing.described(title, told, say), _front(rows, say), True
    )


def _front(rows: list[dict[str, Any]], say: Words) -> dict[str, Any]:
    import altair as alt

    shares = sorted({row["x"] for row in rows})
    x_frame = drawing.padded([row["x"] for row in rows], 0.08)
    y_frame = drawing.padded([*(end for row in rows for end in (row["low"], row["high"])), 0.0], 0.05)
    axis = alt.Axis(values=shares, format=".3~p", labelOverlap="greedy")
    x = alt.X("x:Q", title=say("plan.axis.share"), scale=alt.Scale(domain=x_frame, nice=False), axis=axis)
    scale = alt.Scale(domain=y_frame, nice=False)
    y = alt.Y("y:Q", title=say("plan.axis.rise"), scale=scale)
    color = drawing.as_given()
    chart = drawing.chart("rows")
    joined = chart.mark_line(strokeWidth=2).encode(x=x, y=y, color=color, detail="line:N")
    dots = chart.mark_point(filled=True, size=50, opacity=1)
    dots = dots.encode(x=x, y=y, color=color, description=drawing.tips())
    strokes = chart.mark_rule(strokeWidth=1.2).encode(x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q", color=color)
    zero = drawing.chart("zero").mark_rule(color=drawing.MUTED, strokeDash=[3, 3])
    zero = zero.encode(y=alt.Y("y:Q", scale=scale))
    last = list({row["line"]: row for row in rows}.values())
    wanted = [HEIGHT * (y_frame[1] - row["y"]) / (y_frame[1] - y_frame[0]) for row in last]
    placed = spread(wanted, gap=15, low=0, high=HEIGHT)
    layers = alt.layer(zero, strokes, joined, dots)
    labels = [row | {"place": place} for row, place in zip(last, placed, strict=True)]
    names = drawing.chart("labels").mark_text(align="left", dx=9).encode(
        x=x, y=alt.Y("place:Q", scale=None, axis=None), text="line:N", color=color
    )  # fmt: skip
    drawn = alt.layer(layers, names).resolve_scale(y="independent", x="shared")
    datasets = {"rows": rows, "zero": [{"y": 0.0}], "labels": labels}
    room = drawing.room_for(row["line"] for row in last)
    return drawing.specification(drawn, datasets, room, width=WIDTH, height=HEIGHT)


def heads(view: PlanView, say: Words) -> Figure | None:
    """Layer x kv head: how it keeps its keys (colour) and how much of the cache (depth of the colour)."""
    if not view.heads:
        return None
    layers, rows = 1 + max(head.layer for head in view.heads), sorted({head.kv_head for head in view.heads})
    names = [say("plan.head", n=row) for row in rows]
    cells = [
        {
            "x": head.layer, "end": head.layer + 1, "row": say("plan.head", n=head.kv_head), "color": KIND_COLORS[head.keeps],
            "size": math.sqrt(head.share), "text": say.integer(100 * head.share), "tip": _tip(head, say),
        }
        for head in view.heads
    ]  # fmt: skip
    counts = [(say(f"plan.kind.{kind}"), str(sum(head.keeps == kind for head in view.heads))) for kind in KINDS]
    title = say("plan.figure.heads")
    return Figure(
        "plan-heads",
        title,
        say("plan.caption.heads"),
        drawing.described(title, counts, say),
        _map(cells, names, layers, say),
        True,
    )


def _tip(head: Head, say: Words) -> str:
    place = say("inspect.place", layer=head.layer, head=head.kv_head)
    return drawing.tip(f"{place}: {head.variant}, {say.share(head.share)}", (head.layer, head.kv_head))


def _map(cells: list[dict[str, Any]], names: list[str], layers: int, say: Words) -> dict[str, Any]:
    import altair as alt

    ticks = alt.Axis(values=[n + 0.5 for n in range(layers)], labelExpr="floor(datum.value)", ticks=False, domain=False)
    scale = alt.Scale(domain=[0, layers], nice=False)
    y = alt.Y("row:N", sort=names, title=None, axis=alt.Axis(ticks=False, domain=False))
    squares = drawing.chart("cells").mark_rect(stroke=drawing.GRID, strokeWidth=0.6).encode(
        x=alt.X("x:Q", title=say("plan.axis.layer"), scale=scale, axis=ticks), x2="end:Q", y=y, color=drawing.as_given(),
        fillOpacity=alt.FillOpacity("size:Q", scale=alt.Scale(domain=[0, 1], range=[0.08, 1.0]), legend=None),
        description=drawing.tips(),
    )  # fmt: skip
    width = min(MAP_WIDTH, max(260, 28 * layers))
    drawn = squares
    if width / layers >= 20:
        middle = [
            cell | {"middle": cell["x"] + 0.5, "ink": "white" if cell["size"] > 0.7 else drawing.INK} for cell in cells
        ]
        text = drawing.chart("texts").mark_text(fontSize=10).encode(
            x=alt.X("middle:Q", scale=scale, axis=ticks, title=say("plan.axis.layer")), y=y, text="text:N",
            color=drawing.as_given("ink"),
        )  # fmt: skip
        drawn = alt.layer(squares, text)
        return drawing.specification(drawn, {"cells": cells, "texts": middle}, width=width, height=ROW * len(names))
    return drawing.specification(drawn, {"cells": cells}, width=width, height=ROW * len(names))


def predicted(view: PlanView, say: Words) -> Figure | None:
    """What the proxies said against true rises: single heads, and whole plans."""
    rows = [
        {"x": one.subject["proxy"], "y": one.value, "color": drawing.MUTED, "what": say("plan.what.head")}
        for one in view.anchors
        if one.value is not None
    ]
    rows += [
        {"x": p.proxy.value, "y": p.planning.value, "color": COLORS[p.method], "what": say(f"plan.method.{p.method}")}
        for p in view.points
        if p.proxy is not None and p.planning is not None
    ]
    # both axes are logarithmic: a rise of nothing or less has no place
    shown = [row for row in rows if row["x"] and row["y"] and row["x"] > 0 and row["y"] > 0]
    if len(shown) < 2:
        return None
    title = say("plan.figure.predicted")
    told = [(row["what"], f"{say.digits(row['x'])} / {say.digits(row['y'])}") for row in shown]
    note = say("plan.caption.predicted", n=len(rows) - len(shown))
    return Figure("plan-predicted", title, note, drawing.described(title, told, say), _predicted(shown, say), True)


def _predicted(rows: list[dict[str, Any]], say: Words) -> dict[str, Any]:
    import altair as alt

    ends = [value for row in rows for value in (row["x"], row["y"])]
    frame = [min(ends) / 1.5, max(ends) * 1.5]
    scale = alt.Scale(type="log", domain=frame, nice=False)
    ticks = alt.Axis(values=drawing.decades(*frame), format=".1~g", grid=False)
    x = alt.X("x:Q", title=say("plan.axis.proxy"), scale=scale, axis=ticks)
    y = alt.Y("y:Q", title=say("plan.axis.true"), scale=scale, axis=ticks)
    dots = (
        drawing.chart("rows").mark_point(filled=True, size=60, opacity=0.9).encode(x=x, y=y, color=drawing.as_given())
    )
    equal = drawing.chart("equal").mark_line(color=drawing.FAINT, strokeDash=[3, 3]).encode(x=x, y=y)
    line = [{"x": end, "y": end} for end in frame]
    return drawing.specification(alt.layer(equal, dots), {"rows": rows, "equal": line}, width=360, height=300)
