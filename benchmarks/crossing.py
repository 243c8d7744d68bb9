"""Draw docs/figures/crossing.svg, prefill and decode against context, from the records of benchmarks.

python benchmarks/crossing.py RUN ... [FIGURE.svg]

Each part comes from the last of the runs that has it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from termwise.report import bench_figures, drawing, figures
from termwise.report.bench_view import bench_view
from termwise.report.read import read
from termwise.report.words import words

FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "crossing.svg"
SHOWN = ("bench-prefill", "bench-decode")
TITLE = 30  # pixels above each part


def beside(parts: list[tuple[str, str]]) -> str:
    """One drawing of (title, drawing) side by side, on white, so that it stands alone."""
    sizes = [[float(re.search(rf'\b{side}="([\d.]+)"', svg)[1]) for side in ("width", "height")] for _, svg in parts]  # type: ignore[index]
    width, height = sum(w for w, _ in sizes), max(h for _, h in sizes) + TITLE
    found, left = [], 0.0
    for (title, svg), (own, _) in zip(parts, sizes, strict=True):
        text = f'<text x="10" y="20" font-size="14" font-weight="600" fill="{drawing.INK}">{title}</text>'
        found.append(f'<g transform="translate({left:g},0)">{text}<g transform="translate(0,{TITLE})">{svg}</g></g>')
        left += own
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    return f'{head} font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>{"".join(found)}</svg>\n'


def main(runs: list[Path], figure: Path) -> None:
    found = {}
    for run in runs:
        made = bench_figures.figures(bench_view(read(run)), words("en"))
        found |= {one.key: (one.title, figures.svg(one.specification, one.key)) for one in made if one.key in SHOWN}
    figure.write_text(beside([found[key] for key in SHOWN if key in found]), encoding="utf-8")


if __name__ == "__main__":
    given = [Path(argument) for argument in sys.argv[1:]]
    drawn = [path for path in given if path.suffix == ".svg"]
    if len(given) == len(drawn) or len(drawn) > 1:
        sys.exit(__doc__)
    main([path for path in given if path.suffix != ".svg"], drawn[0] if drawn else FIGURE)
