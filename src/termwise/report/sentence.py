"""The page of `termwise variants --plot`: one head's weights on a sentence, order by order."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from termwise.report import drawing
from termwise.report.rendering import HERE
from termwise.report.words import Words, words
from termwise.results import atomic_write_text

CELL = 15
Row = tuple[float, ...]


class Taken(Protocol):
    """What is drawn: one query of one head, as `termwise.analysis.sentence.Look` says it."""

    @property
    def model(self) -> str: ...

    @property
    def layer(self) -> int: ...

    @property
    def head(self) -> int: ...

    @property
    def num_layers(self) -> int: ...

    @property
    def num_heads(self) -> int: ...

    @property
    def tokens(self) -> tuple[str, ...]: ...

    @property
    def scores(self) -> Row: ...

    @property
    def softmax(self) -> Row: ...

    @property
    def weights(self) -> Mapping[tuple[str, tuple[int, ...]], Row]: ...

    @property
    def distances(self) -> Mapping[tuple[str, tuple[int, ...]], float]: ...

    @property
    def terms(self) -> tuple[Row, ...]: ...


def write(seen: Taken, path: str | Path, *, lang: str = "en") -> Path:
    """Write the page whole, without scripts or network; its place. ValueError where the extra packages are missing."""
    say = words(lang)
    try:
        from termwise.report import figures

        parts = [(key, heading, figures.svg(made, key)) for key, heading, made in specifications(seen, say)]
    except ImportError as error:
        raise ValueError(f"drawing needs {error.name}; install it with: pip install 'termwise[study]'") from error
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(path, _page(seen, parts, say))
    return path


def specifications(seen: Taken, say: Words) -> list[tuple[str, str, dict[str, Any]]]:
    """(key, heading, Vega-Lite) of each figure."""
    softmax = (say("sentence.softmax"), seen.softmax)
    found = []
    for center in ("zero", "mean"):
        kept = [(orders, weights) for (c, orders), weights in seen.weights.items() if c == center]
        rows = [(_row(orders, seen.distances[center, orders], say), weights) for orders, weights in kept]
        key = f"weights-{center}"
        found.append((key, say(f"sentence.{key}"), _heatmap(seen, [*rows, softmax], max(seen.softmax), say)))
    terms = [(_span((n,), say), term) for n, term in enumerate(seen.terms)]
    largest = max(abs(value) for _, term in terms for value in term)
    found.append(("terms", say("sentence.terms"), _heatmap(seen, terms, largest, say)))
    return found


def _row(orders: tuple[int, ...], distance: float, say: Words) -> str:
    return say("sentence.row", orders=_span(orders, say), off=say.number(distance, 2))


def _span(orders: tuple[int, ...], say: Words) -> str:
    key = "sentence.order" if len(orders) == 1 else "sentence.orders"
    return say(key, first=orders[0], last=orders[-1])


def _heatmap(seen: Taken, rows: list[tuple[str, Row]], most: float, say: Words) -> dict[str, Any]:
    """One row a set of orders, one column a token; colours are full at `most`."""
    import altair as alt

    names = [name for name, _ in rows]
    cells = [
        {"row": name, "place": place, "value": max(-most, min(most, value))}
        for name, values in rows
        for place, value in enumerate(values)
    ]
    labels = "[" + ", ".join(repr(_sign(token)) for token in seen.tokens) + "][datum.value]"
    # Tokens of several characters stand upright, or they would lie over each other.
    is_wide = max(len(_sign(token)) for token in seen.tokens) > 1
    color = alt.Scale(domain=[-most, 0, most], range=[drawing.HIGHER, "#ffffff", drawing.LOWER], interpolate="rgb")
    x = alt.X(
        "place:O",
        title=None,
        axis=alt.Axis(
            labelExpr=labels, labelAngle=-90 if is_wide else 0, ticks=False, domain=False, labelOverlap=False
        ),
    )
    y = alt.Y("row:N", title=None, sort=names, axis=alt.Axis(ticks=False, domain=False, labelLimit=240))
    squares = drawing.chart("cells").mark_rect(stroke=drawing.GRID, strokeWidth=0.5).encode(
        x=x, y=y, color=alt.Color("value:Q", scale=color, legend=alt.Legend(title=say("sentence.weight"), gradientLength=120))
    )  # fmt: skip
    return drawing.specification(squares, {"cells": cells}, width=CELL * len(seen.tokens), height=22 * len(rows))


def _sign(token: str) -> str:
    """A token as it can stand under a column."""
    return (
        token.replace(" ", "\u2423")
        .replace("\n", "\u21b5")
        .replace("\t", "\u21e5")
        .replace("'", "\u2019")
        .replace("\\", "\u29f5")
        or "\u2205"
    )


def _page(seen: Taken, parts: list[tuple[str, str, str]], say: Words) -> str:
    css = (HERE / "page.css").read_text(encoding="utf-8")
    places = {"layer": seen.layer, "layers": seen.num_layers, "head": seen.head, "heads": seen.num_heads}
    scores = {"low": say.number(min(seen.scores), 2), "high": say.number(max(seen.scores), 2)}
    intro = say("sentence.intro", sentence="".join(seen.tokens), model=seen.model, **places, **scores)
    figures = "\n".join(
        f'<section><h2>{heading}</h2><figure class="wide">{svg}<figcaption>{say(f"sentence.caption.{key}")}</figcaption></figure></section>'
        for key, heading, svg in parts
    )
    title = say("sentence.title")
    return (
        f'<!doctype html>\n<html lang="{say.language}">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
        f"<title>{title}</title>\n<style>\n{css}\n</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n<p>{html.escape(intro)}</p>\n{figures}\n"
        "</main>\n</body>\n</html>\n"
    )
