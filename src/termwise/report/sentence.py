"""The page of `termwise variants --plot`: one head's weights on a sentence, order by order."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from termwise.report import drawing
from termwise.report.rendering import HERE
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


def write(seen: Taken, path: str | Path) -> Path:
    """Write the page whole, without scripts or network; its place. ValueError where the extra packages are missing."""
    try:
        from termwise.report import figures

        parts = [(key, heading, figures.svg(made, key)) for key, heading, made in specifications(seen)]
    except ImportError as error:
        raise ValueError(f"drawing needs {error.name}; install it with: pip install 'termwise[study]'") from error
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(path, _page(seen, parts))
    return path


def specifications(seen: Taken) -> list[tuple[str, str, dict[str, Any]]]:
    """(key, heading, Vega-Lite) of each figure."""
    softmax = ("softmax, all orders", seen.softmax)
    found = []
    for center, around in (("zero", "around 0"), ("mean", "around the mean score")):
        kept = [(orders, weights) for (c, orders), weights in seen.weights.items() if c == center]
        rows = [(f"{_span(orders)} ({seen.distances[center, orders]:.2f} off)", weights) for orders, weights in kept]
        found.append(
            (
                f"weights-{center}",
                f"Weights by the orders kept, {around}",
                _heatmap(seen, [*rows, softmax], max(seen.softmax)),
            )
        )
    terms = [(f"order {n}", term) for n, term in enumerate(seen.terms)]
    largest = max(abs(value) for _, term in terms for value in term)
    found.append(("terms", "What each order adds, around 0", _heatmap(seen, terms, largest)))
    return found


def _span(orders: tuple[int, ...]) -> str:
    return f"order {orders[0]}" if len(orders) == 1 else f"orders {orders[0]}..{orders[-1]}"


def _heatmap(seen: Taken, rows: list[tuple[str, Row]], most: float) -> dict[str, Any]:
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
        x=x, y=y, color=alt.Color("value:Q", scale=color, legend=alt.Legend(title="weight", gradientLength=120))
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


def _page(seen: Taken, parts: list[tuple[str, str, str]]) -> str:
    css = (HERE / "page.css").read_text(encoding="utf-8")
    sentence = "".join(seen.tokens)
    low, high = min(seen.scores), max(seen.scores)
    intro = (
        f"The last token of <q>{html.escape(sentence)}</q> looks back at every token. Layer {seen.layer} of {seen.num_layers}, "
        f"head {seen.head} of {seen.num_heads} (counted from 0) of {html.escape(seen.model)}; its scores run from {low:.2f} to "
        f"{high:.2f}. Softmax weighs a token by exp(score), which is the sum of all orders score^n / n!. Kept are only some:"
    )
    notes = {
        "weights-zero": "Blue: weight; orange: negative weight; full colour: softmax's largest or more. "
        "In brackets the distance from softmax: 0 equal, 1 nothing in common.",
        "weights-mean": "The same orders about the query's own mean score: a shift of all scores changes nothing, as in softmax.",
        "terms": "score^n / n! over softmax's own sum. Odd orders take weight from low scores; together they are softmax.",
    }
    figures = "\n".join(
        f'<section><h2>{heading}</h2><figure class="wide">{svg}<figcaption>{notes[key]}</figcaption></figure></section>'
        for key, heading, svg in parts
    )
    title = "What each order does to a sentence"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
        f"<title>{title}</title>\n<style>\n{css}\n</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n<p>{intro}</p>\n{figures}\n"
        "</main>\n</body>\n</html>\n"
    )
