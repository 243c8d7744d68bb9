"""What all figures share: colours, type, captions. The page's style sheet turns each colour into its dark twin."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from termwise.report.view import Variant, View
from termwise.report.words import Words

INK = "#22262b"
MUTED = "#68717b"
FAINT = "#b9c0c7"
GRID = "#e3e7eb"
LOWER = "#0f6cb0"
HIGHER = "#c2570c"
# Told apart with any colour vision, and dark enough for text on white. In this order: a variant keeps its colour.
SERIES = ("#0f6cb0", "#c2570c", "#0d8065", "#a34a86", "#8a6d0b", "#5a5fc0", "#5b7a1e", "#8c4a3a")

FONT = "system-ui, 'Hiragino Sans', 'Yu Gothic UI', 'Yu Gothic', Meiryo, 'Noto Sans CJK JP', sans-serif"
FONT_SIZE = 12
LONGEST_NAME = 25
LETTER = 6.6
"""Width of a letter in pixels at FONT_SIZE, for placing labels; a little generous."""


def configuration() -> dict[str, Any]:
    """Vega-Lite configuration shared by all figures."""
    axis = {
        "domainColor": FAINT,
        "gridColor": GRID,
        "labelColor": MUTED,
        "labelFontSize": FONT_SIZE - 1,
        "tickColor": FAINT,
        "titleColor": MUTED,
        "titleFontSize": FONT_SIZE,
        "titleFontWeight": "normal",
        "titlePadding": 8,
    }
    return {
        "axis": axis,
        "axisX": {"grid": False},
        "axisY": {"domain": False, "ticks": False, "labelPadding": 6},
        "background": "transparent",
        "font": FONT,
        "header": {"labelColor": INK, "labelFontSize": FONT_SIZE - 1, "labelPadding": 4, "title": None},
        "text": {"fontSize": FONT_SIZE},
        "view": {"stroke": "transparent"},
    }


def colors(view: View) -> dict[str, str]:
    """A colour a variant, by its place in run.json: more variants later change no colour. The baseline is ink."""
    others = sorted((v for v in view.variants if not v.is_baseline), key=lambda v: v.order)
    found = {v.name: SERIES[i % len(SERIES)] for i, v in enumerate(others)}
    return found | {v.name: INK for v in view.variants if v.is_baseline}


def short(name: str) -> str:
    """A name that fits beside a line: a long one keeps its two ends, which is where names differ.

    >>> short("gated_softmax_no_gate_L2norm_nodivS_noclamp")
    'gated_softma…divS_noclamp'
    """
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME // 2]}…{name[-(LONGEST_NAME // 2) :]}"


def letters(text: str) -> int:
    """How many Latin letters a text is as wide as: a Japanese sign is as wide as two.

    >>> letters("order 2"), letters("次数 2")
    (7, 6)
    """
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)


def is_crowded(num_variants: int) -> bool:
    """Whether so many variants are shown that colours no longer tell them apart."""
    return num_variants > len(SERIES) + 1


Rows = Sequence[dict[str, Any]]


def chart(name: str) -> Any:
    """A chart of the rows that `specification` is given under this name."""
    import altair as alt

    return alt.Chart(alt.NamedData(name=name))


def specification(
    drawn: Any, datasets: Mapping[str, Rows], padding: dict[str, float] | None = None, **properties: Any
) -> dict[str, Any]:
    """The chart under the shared configuration with its rows, as plain JSON.

    Rows join only here: Altair would check every one of them against its schema, which takes seconds for curves.
    """
    configured = drawn.properties(**properties).configure(**configuration() | {"padding": padding or 4})
    return configured.to_dict() | {"datasets": {name: list(rows) for name, rows in datasets.items()}}


def room_for(names: Iterable[str], side: str = "right") -> dict[str, float]:
    """Padding that keeps names at one side inside the picture in fonts wider than the one they were measured in."""
    longest = max(map(letters, names), default=0)
    return dict.fromkeys(("left", "right", "top", "bottom"), 4.0) | {side: 4.0 + 0.16 * LETTER * longest}


def as_given(field: str = "color") -> Any:
    """A colour channel that takes the colours in the rows as they are."""
    import altair as alt

    return alt.Color(f"{field}:N", scale=None)


def tip(said: str, place: tuple[int, int] | None = None) -> str:
    """What a mark says when it is pointed at; `place` is its (layer, kv head). Goes into the field that `tips` encodes.

    >>> tip("0.5", (3, 1)), tip("0.5")
    ('@3,1@0.5', '@@0.5')
    """
    return f"@{'' if place is None else f'{place[0]},{place[1]}'}@{said}"


def tips(field: str = "tip") -> Any:
    """A channel that carries the tip of every mark into the SVG, where `figures.svg` finds it."""
    import altair as alt

    return alt.Description(f"{field}:N")


def decades(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic axis: powers of ten, with 2 and 5 between them where there would be fewer than three.

    >>> decades(3, 2000), decades(120, 900)
    ([10, 100, 1000], [200, 500])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        ticks = [factor * 10**power for power in powers for factor in factors if low <= factor * 10**power <= high]
        if len(ticks) > 2:
            break
    return ticks


def padded(numbers: Sequence[float], share: float) -> list[float]:
    """A frame around numbers, wider than they are by `share` at both ends."""
    margin = share * ((max(numbers) - min(numbers)) or abs(max(numbers)) or 1.0)
    return [min(numbers) - margin, max(numbers) + margin]


def caption(text: str, missing: Sequence[Variant], say: Words) -> str:
    """The caption, naming at its end what could not be drawn."""
    return say.sentences((text, say("figure.missing", names=say.listing([v.name for v in missing])) if missing else ""))


def described(title: str, figures: Sequence[tuple[str, str]], say: Words) -> str:
    """A figure in words: its title and the numbers it shows."""
    return say("figure.described", title=title, figures=say.groups(f"{name} {figure}" for name, figure in figures))
