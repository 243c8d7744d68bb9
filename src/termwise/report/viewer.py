"""The attention viewer of an inspection's page: layer and head are chosen by radio buttons, without scripts.

Weights are drawn from the scores that the run kept, in plain Python: w = sum_{n <= P} (x - c)^n / n!, over their sum.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

from termwise.report.words import Words

ORDERS = (0, 1, 2, 3, 4, 6, 8)
SHADES = 8
LAYERS_SHOWN, HEADS_SHOWN = 64, 32


def truncated_weights(scores: Sequence[float], order: int, center: str) -> list[float] | None:
    """Weights of orders 0..order around 0 or the mean score; None where their sum vanishes.

    >>> truncated_weights([0.0, 0.0], 2, "mean")
    [0.5, 0.5]
    """
    middle = math.fsum(scores) / len(scores) if center == "mean" else 0.0
    raw = [math.fsum((x - middle) ** n / math.factorial(n) for n in range(order + 1)) for x in scores]
    total = math.fsum(raw)
    return [w / total for w in raw] if abs(total) >= 1e-6 * len(raw) else None


def softmax(scores: Sequence[float]) -> list[float]:
    """The exact weights."""
    top = max(scores)
    raw = [math.exp(x - top) for x in scores]
    return [w / math.fsum(raw) for w in raw]


def viewer(sentence: dict[str, Any], say: Words) -> str:
    """The markup: one table a layer and head, all but the chosen one hidden by the style sheet."""
    scores = sentence["scores"][:LAYERS_SHOWN]
    heads = len(scores[0][:HEADS_SHOWN])
    choices = _choices("layer", "l", len(scores), say) + _choices("head", "h", heads, say)
    rules = "".join(f".viewer:has(#viewer-l{n}:checked) .l{n}{{display:block}}" for n in range(len(scores)))
    rules += "".join(f".viewer:has(#viewer-h{n}:checked) .h{n}{{display:block}}" for n in range(heads))
    tokens = "".join(f"<span>{html.escape(_sign(token))}</span>" for token in sentence["tokens"])
    tables = "".join(
        f'<div class="vl l{number}">'
        + "".join(f'<div class="vh h{place}">{_head(head, say)}</div>' for place, head in enumerate(layer[:heads]))
        + "</div>"
        for number, layer in enumerate(scores)
    )
    width = f"--n:{len(sentence['tokens'])}"
    return (
        f'<style>{_STYLE}{rules}</style><div class="viewer" style="{width}">{choices}'
        f'<div class="vtokens"><b></b>{tokens}<i></i></div>{tables}</div>'
    )


_STYLE = (
    ".vl,.vh{display:none}.viewer fieldset{border:0;padding:0;margin:0 0 6px;display:flex;flex-wrap:wrap;gap:2px 10px}"
    ".viewer legend{float:left;width:4em;color:var(--muted)}.viewer label{font-size:13px;white-space:nowrap}"
    # one size of type for both: columns in em would else not stand under one another
    ".vtokens,.vrow{display:grid;grid-template-columns:13em repeat(var(--n),minmax(14px,1fr)) 9em;font-size:12.5px}"
    ".vtokens{margin:14px 0 4px;align-items:end}.vtokens span{writing-mode:vertical-rl;transform:rotate(180deg);"
    "font-size:12px;max-height:8em;overflow:hidden;justify-self:center}.vrow{align-items:center}.vrow b{font-weight:400}"
    ".vrow i{font-style:normal;color:var(--muted);padding-left:8px}.vrow u{height:18px;border:1px solid var(--paper);"
    "background:var(--panel)}.vrow u[class^=p]{background:color-mix(in srgb,var(--lower) var(--s),var(--panel))}"
    ".vrow u[class^=m]{background:color-mix(in srgb,var(--higher) var(--s),var(--panel))}"
    + "".join(f".p{n},.m{n}{{--s:{round(100 * n / SHADES)}%}}" for n in range(1, SHADES + 1))
)


def _choices(name: str, sign: str, count: int, say: Words) -> str:
    buttons = "".join(
        f'<label><input type="radio" name="viewer-{name}" id="viewer-{sign}{n}"{" checked" if n == 0 else ""}>{n}</label>'
        for n in range(count)
    )
    return f"<fieldset><legend>{html.escape(say(f'inspect.viewer.{name}'))}</legend>{buttons}</fieldset>"


def _head(scores: Sequence[float], say: Words) -> str:
    """Rows: softmax, then what the orders kept make of it around each center."""
    exact = softmax(scores)
    most = max(exact)
    rows = [_row(say("inspect.viewer.softmax"), exact, most, "")]
    for center in ("mean", "zero"):
        for order in ORDERS if center == "mean" else ORDERS[1:]:
            label = say(f"inspect.viewer.{center}", order=order)
            weights = truncated_weights(scores, order, center)
            if weights is None:
                rows.append(_row(label, [0.0] * len(scores), most, say("inspect.viewer.vanishing")))
                continue
            off = sum(abs(a - b) for a, b in zip(weights, exact, strict=True)) / 2
            rows.append(_row(label, weights, most, say("inspect.viewer.off", off=say.number(off, 2))))
    return "".join(rows)


def _row(label: str, weights: Sequence[float], most: float, note: str) -> str:
    """Blue for weight, orange for negative weight, full at softmax's largest."""
    cells = []
    for weight in weights:
        shade = min(SHADES, round(SHADES * abs(weight) / most))
        cells.append(f"<u class={'p' if weight > 0 else 'm'}{shade}></u>" if shade else "<u></u>")
    return f'<div class="vrow"><b>{html.escape(label)}</b>{"".join(cells)}<i>{html.escape(note)}</i></div>'


def _sign(token: str) -> str:
    return token.replace(" ", "\u2423").replace("\n", "\u21b5").replace("\t", "\u21e5") or "\u2205"
