"""Figures with one row a variant: paired differences, recall. They read the same with two variants and with forty."""

from __future__ import annotations

from typing import Any

from termwise.report import drawing
from termwise.report.blocks import Figure
from termwise.report.verdict import difference
from termwise.report.view import Variant, View
from termwise.report.words import Words

WIDTH, WIDE, ROW = 300, 620, 23
_ANSWER_COLORS = {"lower": drawing.LOWER, "higher": drawing.HIGHER}


def differences(view: View, say: Words) -> Figure | None:
    """Paired differences from the baseline with both intervals."""
    shown = sorted((v for v in view.variants if difference(v) is not None), key=lambda v: difference(v) or 0.0)
    if not shown:
        return None
    rows = [_difference_row(v, say) for v in shown]
    is_wide = drawing.is_crowded(len(shown))
    title = say("figure.differences", baseline=view.baseline)
    missing = [v for v in view.variants if not v.is_baseline and difference(v) is None]
    return Figure(
        "differences",
        title,
        drawing.caption(_about_differences(shown, view.baseline, say), missing, say),
        drawing.described(title, [(row["variant"], row["text"]) for row in rows], say),
        _difference_chart(rows, WIDE if is_wide else WIDTH, say),
        is_wide,
    )


def _about_differences(shown: list[Variant], baseline: str, say: Words) -> str:
    """The caption, naming the intervals that are drawn."""
    has_seeds = any(v.over_seeds for v in shown)
    parts = [say("figure.differences.caption" if has_seeds else "figure.differences.caption.one", baseline=baseline)]
    parts += [say("figure.differences.seeds")] if has_seeds else []
    parts += [say("figure.differences.documents")] if any(v.over_documents for v in shown) else []
    return say.sentences(parts)


def _difference_chart(rows: list[dict[str, Any]], width: int, say: Words) -> dict[str, Any]:
    import altair as alt

    x: dict[str, Any] = {"scale": alt.Scale(domain=_frame(rows), nice=False), "title": say("axis.difference")}
    base = drawing.chart("rows").encode(y=_variants([row["variant"] for row in rows]))
    intervals = [
        base.transform_filter(f"isValid(datum.{over}_low)")
        .mark_rule(clip=True, strokeWidth=stroke, opacity=opacity)
        .encode(x=alt.X(f"{over}_low:Q", **x), x2=f"{over}_high:Q", color=drawing.as_given())
        for over, stroke, opacity in (("seeds", 8, 0.3), ("documents", 2, 1.0))
    ]
    zero = drawing.chart("zero").mark_rule(color=drawing.MUTED, strokeDash=[3, 3])
    dots = base.mark_point(filled=True, size=60, opacity=1)
    dots = dots.encode(x=alt.X("value:Q", **x), color=drawing.as_given(), description=drawing.tips())
    numbers = base.mark_text(align="right", color=drawing.INK).encode(x=alt.value(width + 52), text="text:N")
    layers = alt.layer(zero.encode(x=alt.X("x:Q", **x)), *intervals, dots, numbers)
    return drawing.specification(
        layers, {"rows": rows, "zero": [{"x": 0}]}, _room(rows), width=width, height=alt.Step(ROW)
    )


def _variants(names: list[str]) -> Any:
    import altair as alt

    axis = alt.Axis(labelLimit=360, labelColor=drawing.INK, labelFontSize=drawing.FONT_SIZE, grid=True)
    return alt.Y("variant:N", sort=names, title=None, axis=axis)


def _room(rows: list[dict[str, Any]]) -> dict[str, float]:
    return drawing.room_for((row["variant"] for row in rows), "left")


def _difference_row(variant: Variant, say: Words) -> dict[str, Any]:
    value, verdict = difference(variant), variant.verdict
    color = _ANSWER_COLORS.get((verdict.reason or "") if verdict else "", drawing.MUTED)
    row: dict[str, Any] = {"variant": variant.name, "value": value, "text": say.signed(value), "color": color}
    row["tip"] = drawing.tip(f"{variant.name}: {row['text']} {_interval(variant, say)}".rstrip())
    for name, record in (("seeds", variant.over_seeds), ("documents", variant.over_documents)):
        row |= {f"{name}_low": record.low if record else None, f"{name}_high": record.high if record else None}
    return row


def _interval(variant: Variant, say: Words) -> str:
    """The interval that its verdict rests on; empty where there is none."""
    record = variant.verdict
    if record is None or record.low is None or record.high is None:
        return ""
    return say.interval(record.low, record.high, is_signed=True)


def _frame(rows: list[dict[str, Any]]) -> list[float]:
    """All dots and document intervals around 0; of the intervals over few seeds at most as much again at each end."""
    near = [*_numbers(rows, "value", "documents_low", "documents_high"), 0.0]
    far = [*near, *_numbers(rows, "seeds_low", "seeds_high")]
    span = (max(near) - min(near)) or 1e-3
    return drawing.padded([max(min(far), min(near) - span), min(max(far), max(near) + span)], 0.03)


def _numbers(rows: list[dict[str, Any]], *keys: str) -> list[float]:
    return [row[key] for row in rows for key in keys if row[key] is not None]


def recall(view: View, say: Words) -> Figure | None:
    """Recall, one mark a seed."""
    shown = sorted((v for v in view.variants if v.recall.value is not None), key=lambda v: -(v.recall.value or 0.0))
    if not shown:
        return None
    is_wide = drawing.is_crowded(len(shown))
    title = say("figure.recall")
    return Figure(
        "recall",
        title,
        drawing.caption(say("figure.recall.caption"), [v for v in view.variants if v not in shown], say),
        drawing.described(title, [(v.name, say.number(v.recall.value, 2)) for v in shown], say),
        _recall_chart(shown, _recall_colors(view, is_wide), WIDE if is_wide else WIDTH, say),
        is_wide,
    )


def _recall_colors(view: View, is_crowded: bool) -> dict[str, str]:
    """One colour for all where colours would repeat: the rows have names."""
    alike = {v.name: drawing.INK if v.is_baseline else drawing.LOWER for v in view.variants}
    return alike if is_crowded else drawing.colors(view)


def _recall_chart(shown: list[Variant], palette: dict[str, str], width: int, say: Words) -> dict[str, Any]:
    import altair as alt

    rows = [
        {"variant": v.name, "value": x, "color": palette[v.name], "tip": drawing.tip(f"{v.name}: {say.number(x, 2)}")}
        for v in shown
        for x in v.recall.values
    ]
    means = [{"variant": v.name, "text": say.number(v.recall.value, 2)} for v in shown]
    y = _variants([v.name for v in shown])
    axis = alt.Axis(format=".1f", tickCount=5)
    x = alt.X("value:Q", scale=alt.Scale(domain=[0, 1]), title=say("axis.recall"), axis=axis)
    marks = drawing.chart("rows").mark_point(filled=True, size=70, opacity=0.7)
    numbers = drawing.chart("means").mark_text(align="right", color=drawing.INK)
    layers = alt.layer(
        marks.encode(x=x, y=y, color=drawing.as_given(), description=drawing.tips()),
        numbers.encode(y=y, x=alt.value(width + 38), text="text:N"),
    )
    return drawing.specification(
        layers, {"rows": rows, "means": means}, _room(means), width=width, height=alt.Step(ROW)
    )
