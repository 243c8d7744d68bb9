"""Draw docs/figures/ladder.svg, loss against the highest order kept and what heads are worth, from the records of an inspection.

python benchmarks/inspection.py [RUN [FIGURE]]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from termwise.report import drawing, figures, inspect_figures, inspect_page
from termwise.report.inspect_view import inspect_view
from termwise.report.read import read
from termwise.report.words import words

HERE = Path(__file__).parent
FIGURE = HERE.parent / "docs" / "figures" / "ladder.svg"
TITLE, GAP = 30, 14  # pixels above and below each part


def below(parts: list[tuple[str, str]]) -> str:
    """One drawing of (title, drawing) below each other, on white, so that it stands alone."""
    sizes = [[float(re.search(rf'\b{side}="([\d.]+)"', svg)[1]) for side in ("width", "height")] for _, svg in parts]  # type: ignore[index]
    found, top = [], 0.0
    for (title, svg), (_, height) in zip(parts, sizes, strict=True):
        text = f'<text x="10" y="20" font-size="14" font-weight="600" fill="{drawing.INK}">{title}</text>'
        found.append(f'<g transform="translate(0,{top:g})">{text}<g transform="translate(0,{TITLE})">{svg}</g></g>')
        top += height + TITLE + GAP
    width = max(w for w, _ in sizes)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {top:g}" width="{width:g}" height="{top:g}"'
    return f'{head} font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>{"".join(found)}</svg>\n'


def main(run: Path, figure: Path) -> None:
    view, say = inspect_view(read(run)), words("en")
    made = inspect_figures.figures(view, say)
    figure.write_text(below([(one.title, figures.svg(one.specification, one.key)) for one in made]), encoding="utf-8")
    told = inspect_page.summary(view, say)
    print(told.headline, *told.lines, sep="\n")


if __name__ == "__main__":
    if len(sys.argv) > 3:
        sys.exit(__doc__)
    run = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "records" / "inspect_smollm2"
    main(run, Path(sys.argv[2]) if len(sys.argv) == 3 else FIGURE)
