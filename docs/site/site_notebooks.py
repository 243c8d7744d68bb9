"""examples/*.md: the notebooks with what their cells show, in each language. They are executed once; the code is one."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "examples"))

import execute
from site_links import with_pages

NOT_RUN = {
    "en": "Not executed in this build: {reason}",
    "ja": "このビルドでは実行していません: {reason}",
}


# A line that ends inside a Japanese sentence would show as a space.
BREAK = re.compile(r"(?<=[\u3000-\u30ff\u4e00-\u9fff\uff00-\uffef])\n(?=[\u3000-\u30ff\u4e00-\u9fff\uff00-\uffef])")


def write(examples: Path, folder: Path) -> None:
    """A page for each notebook and language; figures stand beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in execute.notebooks():
        cells, reason = execute.read(path), None
        shown: list[execute.Shown] = []
        try:
            shown, _ = execute.run(cells)
        except ConnectionError as error:
            reason = str(error)
        figures = [_save(path.stem, number, one, folder) for number, one in enumerate(shown)]
        for suffix, language in execute.LANGUAGES.items():
            source = examples / f"{path.stem}{suffix}.py"
            page = _page(execute.read(source), shown, figures)
            if reason:
                page = f"```{{warning}}\n{NOT_RUN[language].format(reason=reason)}\n```\n\n{page}"
            (folder / f"{source.stem}.md").write_text(with_pages(page), encoding="utf-8")


def _save(stem: str, number: int, shown: execute.Shown, folder: Path) -> list[str]:
    names = [f"{stem}_{number}{letter}.svg" for letter, _ in zip("abc", shown.figures, strict=False)]
    for name, figure in zip(names, shown.figures, strict=True):
        (folder / name).write_text(figure, encoding="utf-8")
    return names


def _page(cells: list[execute.Cell], shown: list[execute.Shown], figures: list[list[str]]) -> str:
    parts, number = [], 0
    for cell in cells:
        if cell.kind == "markdown":
            parts.append(BREAK.sub("", cell.source))
            continue
        parts.append(f"```python\n{cell.source}\n```")
        if number < len(shown):
            parts += [f"```text\n{shown[number].text}\n```"] if shown[number].text else []
            parts += [f"![{name.removesuffix('.svg')}]({name})" for name in figures[number]]
        number += 1
    return "\n\n".join(parts) + "\n"
