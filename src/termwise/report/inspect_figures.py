"""The figures of an inspection: the ladder of loss against order, and maps of order x layer x head."""

from __future__ import annotations

import math
from typing import Any

from termwise.report import drawing
from termwise.report.blocks import Figure
from termwise.report.inspect_view import InspectView, Place
from termwise.report.words import Words

WIDTH, HEIGHT = 420, 320
MAP_WIDTH, ROW = 980, 20


def figures(view: InspectView, say: Words) -> list[Figure]:
    """The ladder, and every map that has figures."""
    return [figure for figure in (ladder(view, say), importance(view, say)) if figure is not None]


def ladder(view: InspectView, say: Words) -> Figure | None:
    """Loss of the whole model by the highest order kept, a line a center, with and without slots."""
    exact = view.exact.value if view.exact else None
    if exact is None or not view.rungs:
        return None
    base = exact if view.has_loss else 0.0
    rows, told = [], []
    for (center, slots), by_order in sorted(view.rungs.items(), key=str):
        name = _line_name(center, slots, say)
        color = drawing.LOWER if center == "mean" else drawing.HIGHER
        even = {order: record for order, record in by_order.items() if order % 2 == 0}
        for order, record in even.items():
            assert record.value is not None
            low, high = (end if end is not None else record.value for end in (record.low, record.high))
            ends = {"low": max(base + low, 0.0), "high": base + high}
            tip = drawing.tip(f"{name}, 0..{order}: {say.number(base + record.value)}")
            at = {"x": order, "y": base + record.value, "tip": tip}
            rows.append({"line": name, "color": color, "dash": slots or "", **at, **ends})
        told += [(f"{name}, 0..{order}", say.number(base + (record.value or 0.0))) for order, record in even.items()]
    if not rows:
        return None
    lines = [{"y": base, "text": say("inspect.line.exact"), "dy": 11}]
    if view.slots_alone is not None and view.slots_alone.value is not None:
        lines.append(
            {"y": base + view.slots_alone.value, "text": say("inspect.line.slots", slots=view.slots), "dy": -6}
        )
    title = say("inspect.figure.ladder" if view.has_loss else "inspect.figure.ladder.encoder")
    drawn = _ladder_chart(rows, lines, say("inspect.axis.loss" if view.has_loss else "inspect.axis.change"), say)
    return Figure(
        "inspect-ladder", title, say("inspect.caption.ladder"), drawing.described(title, told, say), drawn, is_wide=True
    )


def _line_name(center: str, slots: str | None, say: Words) -> str:
    name = say(f"inspect.center.{center}")
    return name if slots is None else say("inspect.center.slots", center=name, slots=slots)


def _around(center: str, slots: str | None, say: Words) -> str:
    """The same inside a sentence."""
    name = say(f"inspect.around.{center}")
    return name if slots is None else say("inspect.center.slots", center=name, slots=slots)


def _ladder_chart(rows: list[dict[str, Any]], lines: list[dict[str, Any]], y_title: str, say: Words) -> dict[str, Any]:
    import altair as alt

    orders = sorted({row["x"] for row in rows})
    highest = max(row["y"] for row in rows)
    lowest = min(row["y"] for row in [*rows, *lines])
    scale = alt.Scale(domain=[lowest - 0.06 * (highest - lowest), highest * 1.02], nice=False, zero=False, clamp=True)
    x = alt.X("x:Q", title=say("inspect.axis.order"), axis=alt.Axis(values=orders, format="d"))
    y = alt.Y("y:Q", title=y_title, scale=scale)
    color = drawing.as_given()
    chart = drawing.chart("rows")
    dash = alt.StrokeDash("dash:N", legend=None, scale=alt.Scale(range=[[1, 0], [5, 3]]))
    joined = chart.mark_line(strokeWidth=2).encode(x=x, y=y, color=color, detail="line:N", strokeDash=dash)
    dots = chart.mark_point(filled=True, size=36, opacity=1)
    dots = dots.encode(x=x, y=y, color=color, description=drawing.tips())
    strokes = chart.mark_rule(strokeWidth=1.2).encode(x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q", color=color)
    rules = drawing.chart("lines")
    across = rules.mark_rule(color=drawing.INK, strokeDash=[2, 3]).encode(y=y)
    names = [
        drawing.chart(f"name{n}")
        .mark_text(align="right", dx=-4, dy=line["dy"], color=drawing.MUTED)
        .encode(x=alt.value(WIDTH), y=y, text="text:N")
        for n, line in enumerate(lines)
    ]
    ends = _ends(rows)
    labels = drawing.chart("ends").mark_text(align="left", dx=8).encode(x=x, y=y, text="line:N", color=color)
    datasets = {"rows": rows, "lines": lines, "ends": ends} | {f"name{n}": [line] for n, line in enumerate(lines)}
    longest = [end["line"] for end in ends]
    padding = {
        "left": 4.0,
        "top": 4.0,
        "bottom": 4.0,
        "right": 20.0 + drawing.LETTER * max(map(drawing.letters, longest)),
    }
    return drawing.specification(
        alt.layer(across, joined, strokes, dots, labels, *names), datasets, padding, width=WIDTH, height=HEIGHT
    )


def _ends(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last point of each line, moved apart where names would lie over each other."""
    last = {}
    for row in rows:
        last[row["line"]] = row
    span = max(row["y"] for row in rows) - min(row["y"] for row in rows) or 1.0
    ends, below = [], -math.inf
    for row in sorted(last.values(), key=lambda row: row["y"]):
        below = max(row["y"], below + 0.055 * span)
        ends.append(row | {"y": below})
    return ends


def importance(view: InspectView, say: Words) -> Figure | None:
    """Rise in loss of each kv head and each whole layer."""
    cells = {(h.layer, h.kv_head): h.rise.value for h in view.heads if h.rise is not None and h.rise.value is not None}
    if not cells:
        return None
    num_heads = 1 + max(head for _, head in cells)
    rows = [_head_cell(place, value, say.signed(value, 4), say) for place, value in cells.items()]
    whole = say("inspect.layer.whole")
    rows += [
        _cell(layer, whole, record.value or 0.0, drawing.tip(f"{layer}, {whole}: {say.signed(record.value, 4)}"))
        for layer, record in view.layers.items()
    ]
    order = [say("inspect.head", n=head) for head in range(num_heads)] + [say("inspect.layer.whole")]
    title = say("inspect.figure.importance" if view.has_loss else "inspect.figure.importance.encoder")
    most = sorted(cells.items(), key=lambda one: -one[1])[:5]
    told = [(say("inspect.place", layer=layer, head=head), say.signed(value, 4)) for (layer, head), value in most]
    return _drawn(
        "inspect-importance", title, say("inspect.caption.importance"), told, rows, order, say, is_signed=True
    )


def _cell(layer: float, row: str, value: float, tip: str) -> dict[str, Any]:
    return {"layer": layer, "row": row, "value": value, "tip": tip}


def _head_cell(place: Place, value: float, text: str, say: Words) -> dict[str, Any]:
    """One kv head of a map that has a row a head."""
    return _cell(place[0], say("inspect.head", n=place[1]), value, _tip(place, text, say))


def _tip(place: Place, text: str, say: Words) -> str:
    return drawing.tip(f"{say('inspect.place', layer=place[0], head=place[1])}: {text}", place)


def head_maps(view: InspectView, say: Words) -> list[Figure]:
    """Where the weight goes: the first token, far keys, the spread of scores."""
    made = []
    for name in ("first_token_weight", "score_spread", "score_mean", "far_weight"):
        cells = view.maps.get((name,), {})
        if name == "far_weight":
            cells = {(h.layer, h.kv_head): h.far for h in view.heads if h.far is not None}
        if cells:
            rows = [_head_cell(place, value, say.number(value), say) for place, value in cells.items()]
            order = [say("inspect.head", n=head) for head in range(1 + max(head for _, head in cells))]
            title = say(f"inspect.map.{name}")
            told = [
                (say("inspect.least"), say.number(min(cells.values()), 2)),
                (say("inspect.most"), say.number(max(cells.values()), 2)),
            ]
            caption = say(f"inspect.caption.{name}")
            made.append(
                _drawn(f"inspect-{name}", title, caption, told, rows, order, say, is_signed=name == "score_mean")
            )
    return made


def order_maps(view: InspectView, say: Words) -> list[Figure]:
    """Order x layer x head: what each order adds around either center, and how far orders 0..P are off."""
    wanted: list[tuple[str, str, str | None]] = [
        ("magnitude", "mean", None),
        ("magnitude", "zero", None),
        ("output_error", "mean", None),
        ("output_error", "zero", None),
    ]
    if view.slots:
        wanted.append(("output_error", "mean", view.slots))
    return [
        made for metric, center, slots in wanted if (made := _order_map(view, metric, center, slots, say)) is not None
    ]


def _order_map(view: InspectView, metric: str, center: str, slots: str | None, say: Words) -> Figure | None:
    by_order: dict[int, dict[Place, float]] = {
        key[1]: cells
        for key, cells in view.maps.items()
        if key[0] == metric and key[2:] == (center, slots) and (metric == "magnitude" or key[1] % 2 == 0)
    }
    if not by_order:
        return None
    heads = 1 + max(head for cells in by_order.values() for _, head in cells)
    rows = []
    for order, cells in by_order.items():
        name = say("inspect.order" if metric == "magnitude" else "inspect.orders", order=order)
        rows += [
            _cell(place[0] + place[1] / heads, name, value, _tip(place, f"{value:.2g}", say))
            for place, value in cells.items()
        ]
    order_names = [
        say("inspect.order" if metric == "magnitude" else "inspect.orders", order=n) for n in sorted(by_order)
    ]
    title = say(f"inspect.map.{metric}", around=_around(center, slots, say))
    told = [
        (say("inspect.orders", order=n), say.number(_median(list(by_order[n].values())), 3)) for n in sorted(by_order)
    ]
    key = f"inspect-{metric}-{center}-{slots or 'bare'}"
    caption = say(f"inspect.caption.{metric}")
    return _drawn(key, title, caption, told, rows, order_names, say, is_log=True, heads=heads)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _drawn(
    key: str,
    title: str,
    caption: str,
    told: list[tuple[str, str]],
    rows: list[dict[str, Any]],
    order: list[str],
    say: Words,
    **how: Any,
) -> Figure:
    """A map with its scale said under it: the more, the less transparent, so that light and dark pages both read."""
    sizes = sorted(abs(row["value"]) for row in rows)
    # one outlier must not make the rest of a map blank
    full = sizes[min(len(sizes) - 1, int(0.99 * len(sizes)))] or sizes[-1] or 1.0
    is_log = how.pop("is_log", False)
    low = max(sizes[len(sizes) // 100], full * 1e-6) if is_log else 0.0
    scale = say("inspect.scale.log" if is_log else "inspect.scale", low=say.digits(low), full=say.digits(full))
    drawn = _map(rows, order, low=low, full=full, is_log=is_log, **how)
    return Figure(key, title, say.sentences((caption, scale)), drawing.described(title, told, say), drawn, is_wide=True)


def _map(
    rows: list[dict[str, Any]],
    order: list[str],
    *,
    low: float,
    full: float,
    is_log: bool,
    is_signed: bool = False,
    heads: int = 1,
) -> dict[str, Any]:
    """Squares by layer (x) and row (y)."""
    import altair as alt

    layers = 1 + max(int(row["layer"]) for row in rows)
    width = min(MAP_WIDTH, max(240, 28 * layers)) if heads == 1 else MAP_WIDTH
    domain = [low, full if full > low else 2 * low + 1e-9]
    scale = alt.Scale(type="log" if is_log else "linear", domain=domain, range=[0.04, 1.0], clamp=True)
    made = [
        row | {"end": row["layer"] + 1 / heads, "size": max(abs(row["value"]), low),
               "color": drawing.HIGHER if is_signed and row["value"] < 0 else drawing.LOWER}
        for row in rows
    ]  # fmt: skip
    x_scale = alt.Scale(domain=[0, layers], nice=False)
    ticks = alt.Axis(
        values=[n + 0.5 for n in range(layers)], labelExpr="floor(datum.value)", ticks=False, grid=False, domain=False
    )
    squares = drawing.chart("cells").mark_rect(stroke=None).encode(
        x=alt.X("layer:Q", title=None, scale=x_scale, axis=ticks), x2="end:Q",
        y=alt.Y("row:N", sort=order, title=None, axis=alt.Axis(ticks=False, domain=False)),
        color=drawing.as_given(), fillOpacity=alt.FillOpacity("size:Q", scale=scale, legend=None),
        description=drawing.tips(),
    )  # fmt: skip
    return drawing.specification(squares, {"cells": made}, width=width, height=ROW * len(order))
