"""Run a notebook kept as text and keep what each cell shows: for the tests and for the site, without a kernel.

    python examples/execute.py examples/1_sum_of_rnns.py

Such a file is a notebook in Jupyter with jupytext, and an ordinary script without it.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LANGUAGES = {"": "en", ".ja": "ja"}


@dataclass(frozen=True)
class Cell:
    """A cell: kind "markdown" or "code", and its source."""

    kind: str
    source: str


@dataclass(frozen=True)
class Shown:
    """What a cell shows: printed text with the repr of its last value, and figures as SVG."""

    text: str = ""
    figures: tuple[str, ...] = ()


def notebooks(suffix: str = "") -> list[Path]:
    """The notebooks of one language: suffix "" is English, ".ja" Japanese."""
    return sorted(path for path in HERE.glob("[0-9]_*.py") if path.stem.endswith(".ja") == (suffix == ".ja"))


def read(path: Path) -> list[Cell]:
    import jupytext

    return [Cell(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]


def run(cells: list[Cell]) -> tuple[list[Shown], dict[str, Any]]:
    """What each code cell shows, in order, and the names they leave behind. What a cell raises comes through."""
    names: dict[str, Any] = {"__name__": "__main__"}
    added, before = str(HERE), Path.cwd()
    sys.path.insert(0, added)
    try:
        return [_run_cell(cell.source, names) for cell in cells if cell.kind == "code"], names
    finally:
        sys.path.remove(added)
        os.chdir(before)


def _run_cell(source: str, names: dict[str, Any]) -> Shown:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    figure = _figure(value)
    told = "" if value is None or figure else repr(value)
    return Shown("\n".join(filter(None, [printed.getvalue().rstrip(), told])), (figure,) if figure else ())


def _figure(value: Any) -> str | None:
    """The SVG of a chart."""
    if not type(value).__module__.startswith("altair."):
        return None
    import vl_convert

    return vl_convert.vegalite_to_svg(value.to_dict())


def main(path: Path) -> None:
    cells = read(path)
    shown = iter(run(cells)[0])
    for cell in cells:
        if cell.kind == "code" and (told := next(shown)).text:
            print(told.text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
