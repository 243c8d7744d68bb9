"""Loss against time of decoding, memory as size; against memory where no time was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from termwise.report import drawing
from termwise.report.blocks import Figure
from termwise.report.decision.case import Case, Verdict
from termwise.report.decision.rules import Answer
from termwise.report.placing import beside
from termwise.report.words import Words

WIDTH, HEIGHT = 620, 320
USUAL_AREA = 90.0  # of a dot, in square pixels
COLORS = {
    Answer.ADOPT: drawing.SERIES[2], Answer.CONDITIONS: drawing.LOWER, Answer.OPEN: drawing.MUTED,
    Answer.REJECT: drawing.HIGHER,
}  # fmt: skip
_TIME = "datum.value < 1e-3 ? format(datum.value * 1e6, '.3~r') + ' µs' : format(datum.value * 1e3, '.3~r') + ' ms'"
_SIZES = {
    True: "format(datum.value / 1048576, '.3~r') + ' MiB'",
    False: "format(datum.value / 1024, '.3~r') + ' KiB'",
}


@dataclass(frozen=True)
class Spot:
    """One candidate, or what it is compared with: where it stands, its size and the interval of its rise."""

    name: str
    x: float
    rise: float
    low: float | None
    high: float | None
    memory: float | None
    color: str


def pareto(case: Case, say: Words) -> Figure | None:
    """The figure; None where fewer than two spots have both measures. Candidates without them are named below it."""
    is_timed = any(_x(verdict, True) is not None for verdict in case.verdicts)
    shown = [one for one in case.verdicts if _x(one, is_timed) is not None and one.evidence.accuracy.change.is_there]
    spots = list(dict.fromkeys([*_todays(shown, is_timed), *(_spot(one, is_timed) for one in shown)]))
    if len(spots) < 2:
        return None
    kind = "decode" if is_timed else "memory"
    left_out = [one.evidence.candidate for one in case.verdicts if one not in shown]
    caption = say(f"decision.caption.pareto.{kind}")
    if left_out:
        caption = say.sentences((caption, say("figure.missing", names=say.listing(left_out))))
    contexts = {one.evidence.context for one in shown if one.evidence.context is not None}
    context = say.listing([say.integer(n) for n in sorted(contexts)])
    title = say(f"decision.figure.pareto.{kind}")
    told = [(spot.name, _said(spot, is_timed, say)) for spot in spots]
    drawn = _chart(spots, say(f"decision.axis.{kind}", context=context), is_timed, say)
    return Figure("pareto", title, caption, drawing.described(title, told, say), drawn, is_wide=True)


def _x(verdict: Verdict, is_timed: bool) -> float | None:
    pair = verdict.evidence.latency if is_timed else verdict.evidence.memory
    return pair.candidate.value or None


def _spot(verdict: Verdict, is_timed: bool) -> Spot:
    evidence, rise = verdict.evidence, verdict.evidence.accuracy.change
    color = COLORS[verdict.decision.answer]
    memory = evidence.memory.candidate.value
    return Spot(evidence.candidate, _x(verdict, is_timed) or 0.0, rise.value or 0.0, rise.low, rise.high, memory, color)


def _todays(shown: Sequence[Verdict], is_timed: bool) -> list[Spot]:
    """What is used today stands at a rise of 0, once for each that the candidates are compared with."""
    found = []
    for one in shown:
        pair = one.evidence.latency if is_timed else one.evidence.memory
        if pair.today.value:
            memory = one.evidence.memory.today.value
            found.append(Spot(one.evidence.today, pair.today.value, 0.0, None, None, memory, drawing.INK))
    return found


def _said(spot: Spot, is_timed: bool, say: Words) -> str:
    place = say.duration(spot.x) if is_timed else say.size(spot.x)
    size = [] if spot.memory is None or not is_timed else [say.size(spot.memory)]
    ends = say.interval(spot.low, spot.high, is_signed=True) if spot.low is not None else ""
    return say.row([f"{say.signed(spot.rise)} {ends}".strip(), place, *size])


def _chart(spots: list[Spot], x_title: str, is_timed: bool, say: Words) -> dict[str, Any]:
    import altair as alt

    x_frame = _logarithmic([spot.x for spot in spots])
    ends = [end for spot in spots for end in (spot.rise, spot.low, spot.high) if end is not None]
    y_frame = drawing.padded([*ends, 0.0], 0.1)
    label = _TIME if is_timed else _SIZES[max(spot.x for spot in spots) >= 2**20]
    axis = alt.Axis(values=_ticks(x_frame), grid=False, labelExpr=label)
    x = alt.X("x:Q", scale=alt.Scale(type="log", domain=x_frame, nice=False), title=x_title, axis=axis)
    scale = alt.Scale(domain=y_frame, nice=False)
    y = alt.Y("y:Q", scale=scale, title=say("decision.axis.rise"))
    most = max((spot.memory or 0.0 for spot in spots), default=0.0) or 1.0
    areas = [_area(spot.memory, most) if is_timed else USUAL_AREA for spot in spots]
    rows = [
        {
            "x": spot.x, "y": spot.rise, "low": spot.rise if spot.low is None else spot.low, "color": spot.color,
            "high": spot.rise if spot.high is None else spot.high, "name": drawing.short(spot.name),
            "size": area,
            "tip": drawing.tip(f"{spot.name}: {_said(spot, is_timed, say)}"),
        }
        for spot, area in zip(spots, areas, strict=True)
    ]  # fmt: skip
    color, chart = drawing.as_given(), drawing.chart("rows")
    size = alt.Size("size:Q", scale=None, legend=None)
    dots = chart.mark_point(filled=True, opacity=0.85).encode(
        x=x, y=y, color=color, size=size, description=drawing.tips()
    )
    strokes = chart.mark_rule(strokeWidth=1.2).encode(x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q", color=color)
    zero = drawing.chart("zero").mark_rule(color=drawing.FAINT, strokeDash=[3, 3]).encode(y=alt.Y("y:Q", scale=scale))
    layers = [zero, strokes, dots]
    datasets: dict[str, list[dict[str, Any]]] = {"rows": rows, "zero": [{"y": 0.0}]}
    radii = [math.sqrt(area / math.pi) for area in areas]
    for place, label in enumerate(_labels(spots, radii, x_frame, y_frame)):
        if label is not None:
            datasets[f"label{place}"] = [rows[place]]
            text = drawing.chart(f"label{place}").mark_text(dx=label.dx, dy=label.dy, align=label.align)
            layers.append(text.encode(x=x, y=y, text="name:N", color=color))
    return drawing.specification(alt.layer(*layers), datasets, width=WIDTH, height=HEIGHT)


def _area(memory: float | None, most: float) -> float:
    """Area in proportion to bytes; a small one can still be seen."""
    return 60.0 if memory is None else max(40.0, 900.0 * memory / most)


def _ticks(frame: list[float]) -> list[float]:
    """Powers of ten and their neighbours; in a narrow frame its own values, as many digits as tell them apart."""
    ticks = drawing.decades(*frame)
    if len(ticks) > 2:
        return ticks
    low, high = frame
    wanted = [low * (high / low) ** part for part in (0.1, 0.37, 0.63, 0.9)]
    rounded = ([float(f"{value:.{digits}g}") for value in wanted] for digits in (2, 3))
    return next((found for found in rounded if len(set(found)) == len(found)), wanted)


def _logarithmic(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    margin = 1.25 if low == high else (high / low) ** 0.12
    return [low / margin, high * margin]


def _labels(spots: list[Spot], radii: list[float], x_frame: list[float], y_frame: list[float]) -> Any:
    """Where names go, today first, then the candidates in their order."""
    across = math.log(x_frame[1] / x_frame[0])
    pixels = [
        (WIDTH * math.log(s.x / x_frame[0]) / across, HEIGHT * (y_frame[1] - s.rise) / (y_frame[1] - y_frame[0]))
        for s in spots
    ]
    return beside(pixels, [drawing.LETTER * len(drawing.short(s.name)) for s in spots], (WIDTH, HEIGHT), radii)
