"""What a page is made of: sections of paragraphs, facts, tables and figures. Plain values; rendering is elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Tone = Literal["", "missing", "lower", "higher", "flag"]


@dataclass(frozen=True)
class Cell:
    """One cell: what it says, a smaller line under it, and a tone that is never the only sign of its meaning.

    `value` is the number behind the text, by which a table can be sorted.
    """

    text: str
    note: str = ""
    tone: Tone = ""
    value: float | None = None


@dataclass(frozen=True)
class Column:
    """The head of a column."""

    label: str
    unit: str = ""
    is_number: bool = False


@dataclass(frozen=True)
class Table:
    """The first cell of a row names it. `strong` are the indices of rows that stand out (the baseline)."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    strong: frozenset[int] = frozenset()
    kind: Literal["table"] = "table"


@dataclass(frozen=True)
class Figure:
    """One Vega-Lite specification with its title, caption and a sentence for those who cannot see it."""

    key: str
    title: str
    caption: str
    description: str
    specification: dict[str, Any]
    is_wide: bool = False
    kind: Literal["figure"] = "figure"


@dataclass(frozen=True)
class Facts:
    """Pairs of a name and one or several lines. `is_code` marks what is to be copied letter by letter."""

    pairs: tuple[tuple[str, tuple[str, ...], bool], ...]
    kind: Literal["facts"] = "facts"


@dataclass(frozen=True)
class Lines:
    """Sentences; a list when there are several."""

    lines: tuple[str, ...]
    is_list: bool = False
    kind: Literal["lines"] = "lines"


@dataclass(frozen=True)
class Html:
    """Markup of our own making, its texts escaped already."""

    markup: str
    kind: Literal["html"] = "html"


Block = Table | Figure | Facts | Lines | Html


@dataclass(frozen=True)
class Section:
    """A titled part of the page; `key` is its anchor. Left out of the page when it has no blocks."""

    key: str
    title: str
    blocks: tuple[Block, ...]
