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
TITLE, GAP, LEFT = 30, 14, 16  # pixels above, below and left of each part


def below(parts: list[tuple[str, str]]) -> str:
    """One drawing of (title, drawing) below each other, on white, so that it stands alone."""
    sizes = [[float(re.search(rf'\b{side}="([\d.]+)"', svg)[1]) for side in ("width", "height")] for _, svg in parts]  # type: ignore[index]
    found, top = [], 0.0
    for (title, svg), (_, height) in zip(parts, sizes, strict=True):
        text = f'<text x="10" y="20" font-size="14" font-weight="600" fill="{drawing.INK}">{title}</text>'
        found.append(
            f'<g transform="translate(0,{top:g})">{text}<g transform="translate({LEFT},{TITLE})">{svg}</g></g>'
        )
        top += height + TITLE + GAP
    width = max(w for w, _ in sizes) + LEFT
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {top:g}" width="{width:g}" height="{top:g}"'
    return f'{head} font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>{"".join(found)}</svg>\n'


def table(run: Path) -> str:
    """The ladder as the README has it: losses at even orders, by center, with and without slots."""
    view = inspect_view(read(run))
    assert view.exact is not None and view.exact.value is not None and view.slots_alone is not None
    exact, orders = view.exact.value, (0, 2, 4, 6, 8)
    lines = [
        "| every head of every layer | " + " | ".join(f"0..{n}" if n else "0" for n in orders) + " |",
        "|---" * 6 + "|",
    ]
    for slots in (None, view.slots):
        for center, name in (("zero", "around zero"), ("mean", "around the mean")):
            losses = [exact + (view.rungs[center, slots][n].value or 0.0) for n in orders]
            where = name if slots is None else f"`{slots}` and the rest {name}"
            lines.append(f"| {where} | " + " | ".join(f"{loss:.2f}" for loss in losses) + " |")
    alone = exact + (view.slots_alone.value or 0.0)
    return "\n".join([*lines, f"| `{view.slots}` alone, the rest dropped | {alone:.2f}" + " |" * 5])


def main(run: Path, figure: Path) -> None:
    view, say = inspect_view(read(run)), words("en")
    made = inspect_figures.figures(view, say)
    figure.write_text(below([(one.title, figures.svg(one.specification, one.key)) for one in made]), encoding="utf-8")
    told = inspect_page.summary(view, say)
    print(told.headline, *told.lines, table(run), sep="\n")


if __name__ == "__main__":
    if len(sys.argv) > 3:
        sys.exit(__doc__)
    run = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "records" / "inspect_smollm2"
    main(run, Path(sys.argv[2]) if len(sys.argv) == 3 else FIGURE)
