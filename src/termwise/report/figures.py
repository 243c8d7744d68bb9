"""The figures of a study, in reading order; each is one Altair specification, drawn to SVG without a browser."""

from __future__ import annotations

import re
from typing import Any

from termwise.report import lines, rows, scatter
from termwise.report.blocks import Figure
from termwise.report.view import View
from termwise.report.words import Words


def figures(view: View, say: Words) -> list[Figure]:
    """Every figure that has something to show."""
    makers = (rows.differences, rows.recall, scatter.state, lines.curves, lines.positions)
    return [figure for make in makers if (figure := make(view, say)) is not None]


def svg(specification: dict[str, Any], key: str, *, with_tips: bool = False) -> str:
    """The figure as SVG that can stand inside a page: ids made unique by `key`, no namespace addresses.

    Text stays text (it can be searched and copied); colours stay attributes, which the page's style sheet answers to.
    `with_tips` keeps as data-tip and data-place what `drawing.tip` gave a mark.
    """
    import vl_convert

    drawn = vl_convert.vegalite_to_svg(specification)
    drawn = re.sub(r' xmlns(:\w+)?="[^"]*"', "", drawn)
    # the converter numbers its ids onwards from figure to figure; the same records shall give the same page
    for place, name in enumerate(dict.fromkeys(re.findall(r'\bid="([^"]+)"', drawn))):
        drawn = re.sub(rf'(\bid="|url\(#){re.escape(name)}(["\)])', rf"\g<1>{key}-{place}\2", drawn)
    if with_tips:
        drawn = re.sub(r' aria-label="@([\d,]*)@([^"]*)"', _tip, drawn)
    # the page describes the figure as a whole; a label on each of a thousand points would be read out one by one
    return re.sub(r' (aria-[a-z]+|role)="[^"]*"', "", drawn)


def _tip(found: re.Match[str]) -> str:
    place, said = found.groups()
    return (f' data-place="{place}"' if place else "") + f' data-tip="{said}"'
