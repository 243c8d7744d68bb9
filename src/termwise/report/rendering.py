"""Templates to text: one environment for every page, with the tables, figures and facts of blocks.html.j2."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from termwise.report import drawing

HERE = Path(__file__).parent
_CODE = re.compile(r"`([^`]+)`")


def filled(template: str, *, with_tips: bool = False, **values: Any) -> str:
    """A template with its values, escaped. `with_tips` keeps what a mark says of itself, for the script of a page.

    ValueError where the extra packages are not installed.
    """
    figures, jinja2 = _tools()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["letters"] = drawing.letters
    as_markup = jinja2.utils.markupsafe.Markup
    environment.globals["svg"] = lambda block: as_markup(
        figures.svg(block.specification, block.key, with_tips=with_tips)
    )
    environment.filters["code"] = lambda text: as_markup(
        _CODE.sub(r"<code>\1</code>", str(jinja2.utils.markupsafe.escape(text)))
    )
    environment.globals["file"] = lambda name: as_markup((HERE / name).read_text(encoding="utf-8"))
    return environment.get_template(template).render(**values)


def _tools() -> tuple[Any, Any]:
    try:
        import altair  # noqa: F401
        import jinja2
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"the page needs {error.name}, which is not installed; install it with: pip install 'termwise[study]'"
        ) from error
    from termwise.report import figures

    return figures, jinja2
