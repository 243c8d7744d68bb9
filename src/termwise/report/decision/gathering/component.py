"""A part of attention, what it is worth and what cutting it saves."""

from __future__ import annotations

from dataclasses import dataclass

from termwise.report.decision.figures import Figure


@dataclass(frozen=True)
class Component:
    """A part and what it is worth.

    `loss` is what the held-out loss rises by if it is cut or replaced as its name says; `saved` the share of today's bytes that
    this saves, below 0 where it takes more. `kind`: sums, choice, order, head, layer, variant, window, center, denominator, gate, decay, option.
    `recommendation`: keep, cut, open or not_measured.
    """

    name: str
    kind: str
    loss: Figure
    saved: Figure
    recommendation: str
    source: str


def recommended(loss: Figure, saved: Figure, allowed: float) -> str:
    """Keep where even the near end of the rise is above what is allowed, cut where even the far end is within it, else open.

    What takes as many bytes or more without the part is kept too: cutting it would save nothing.

    >>> recommended(Figure(0.2, 0.1, 0.3), Figure(0.5), 0.05), recommended(Figure(0.01, -0.02, 0.04), Figure(0.5), 0.05)
    ('keep', 'cut')
    >>> recommended(Figure(0.01, -0.02, 0.04), Figure(-0.1), 0.05)
    'keep'
    """
    if loss.value is None:
        return "not_measured"
    if loss.low is None or loss.high is None:
        return "open"
    if loss.low > allowed:
        return "keep"
    if loss.high <= allowed and saved.value is not None and saved.value <= 0:
        return "keep"
    return "cut" if loss.high <= allowed else "open"
