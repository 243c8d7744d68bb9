"""How large the type of the first page may be on paper, so that all of it stands on one sheet of A4.

The height is estimated from the texts: nothing here draws. decision.css prints in these proportions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from termwise.report import drawing
from termwise.report.blocks import Cell, Table

if TYPE_CHECKING:
    from termwise.report.decision_page.manager import Manager

SIZES = tuple(round(1.34 - 0.02 * step, 2) for step in range(33))
TYPE = 2.93  # millimetres of the usual type
SHEET = 272.0  # millimetres between the margins, less a line for what is estimated too low
WIDTH, LEFT, RIGHT, THIRD = 186.0, 102.0, 75.0, 58.0
LETTER, LINE = 0.52, 1.42  # of the type: a wide letter, the distance of lines
MEASURES = (0.25, 0.12, 0.15, 0.18, 0.14, 0.16)
PARTS = (0.38, 0.23, 0.18, 0.21)


def type_size(page: Manager) -> float:
    """The largest of SIZES at which the page is estimated to fit, beside the usual type."""
    return next((size for size in SIZES if height(page, size) <= SHEET), SIZES[-1])


def height(page: Manager, size: float) -> float:
    """Millimetres that the page takes at a size of type."""
    em = TYPE * size
    answer = 3.4 + _lines(page.reason, 0.7 * WIDTH, 1.18 * em) * 1.65
    answer += _lines(page.next_stage + page.kicker[:14], 0.7 * WIDTH, em) * LINE
    top = 1.5 + _lines(page.title, WIDTH, 1.75 * em) * 2.14 + answer
    top += (1.6 + LINE * _all(page.warnings, WIDTH, em)) if page.warnings else 0.0
    top += 2.4 + _table(page.measures, MEASURES, WIDTH, em)
    left = 2.4 + (_table(page.parts, PARTS, LEFT, em) if page.parts else 2 * LINE)
    left += _list(page.go_on, LEFT, em) + 1.4 + _list(page.stop, LEFT, em)
    right = 2.4 + sum(0.5 + LINE * _lines(f"{fact.name}  {fact.text}", RIGHT, em) for fact in page.complexity)
    right += (2.4 + LINE * _all(page.cost, RIGHT, em)) if page.cost else 0.0
    right += _list(page.untested, RIGHT, em) + _list(page.phrases, RIGHT, em, 0.4)
    terms = [_lines(f"{term}: {meaning}", THIRD, 0.85 * em) * 1.15 + 0.2 for term, meaning in page.glossary]
    rows = [max(terms[start : start + 3]) for start in range(0, len(terms), 3)]
    return em * (top + max(left, right) + 2.4 + sum(rows))


def _lines(text: str, width: float, em: float) -> int:
    """Lines that a text takes in a column."""
    return max(1, math.ceil(drawing.letters(text) * LETTER * em / width))


def _all(texts: Iterable[str], width: float, em: float) -> int:
    return sum(_lines(text, width, em) for text in texts)


def _list(texts: tuple[str, ...], width: float, em: float, gap: float = 0.15) -> float:
    """A heading and its points; nothing where there are none."""
    return 2.4 + LINE * _all(texts, width - 2 * em, em) + gap * len(texts) if texts else 0.0


def _table(table: Table, shares: tuple[float, ...], width: float, em: float) -> float:
    """The head and every row as high as its highest cell."""
    rows = (
        max(_cell(cell, share * width - 3.5, em) for cell, share in zip(row, shares, strict=True)) for row in table.rows
    )
    return 3.4 + sum(rows)


def _cell(cell: Cell, width: float, em: float) -> float:
    """A cell with its note below it."""
    note = 1.12 * _lines(cell.note, width, 0.84 * em) if cell.note else 0.0
    return 0.65 + 1.36 * _lines(cell.text, width, 0.96 * em) + note
