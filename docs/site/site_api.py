"""docs/api/*.md: the public names with their signatures and docstrings. A public name without a docstring stops the build."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# page: (title, modules, what it is about)
PAGES = {
    "attention": ("termwise", ["termwise"], "The algebra: specs, kernels, normalizers, `attend`, states and costs."),
    "models": ("termwise.models", ["termwise.models"], "Models whose layers each run the attention their spec says."),
    "analysis": (
        "termwise.analysis",
        ["termwise.analysis.pretrained", "termwise.analysis.replacing"],
        "Other people's models as they are, with their attention laid open.",
    ),
    "data": ("termwise.data", ["termwise.data"], "Text to packed tokens, and seeded synthetic tasks."),
    "evaluation": ("termwise.evaluation", ["termwise.evaluation"], "Held-out loss and recall."),
    "results": ("termwise.results", ["termwise.results"], "Run folders and records."),
}
LINE = 110


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for page, (title, modules, about) in PAGES.items():
        (folder / f"{page}.md").write_text(text(title, modules, about), encoding="utf-8")


def text(title: str, modules: list[str], about: str) -> str:
    """A page of what these modules make public, in Markdown. ValueError names what has no docstring."""
    named = {name: value for module in modules for name, value in public(importlib.import_module(module)).items()}
    if missing := [name for name, value in named.items() if callable(value) and not docstring(value)]:
        raise ValueError(f"{title}: no docstring: {', '.join(missing)}; write one sentence and the equation")
    callables = [_entry(name, value) for name, value in named.items() if callable(value)]
    others = [_value(name, value) for name, value in named.items() if not callable(value)]
    return "\n".join([f"# `{title}`\n\n{about}\n", *callables, *others])


def public(module: Any) -> dict[str, Any]:
    """`__all__`, else the functions and classes that the module defines."""
    if hasattr(module, "__all__"):
        return {name: getattr(module, name) for name in module.__all__}
    own = {name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    return {name: value for name, value in own.items() if not name.startswith("_") and callable(value)}


def docstring(value: Any) -> str:
    """The docstring as written; none where a dataclass made its own."""
    found = inspect.cleandoc(value.__doc__ or "") if getattr(value, "__doc__", None) else ""
    own = dataclasses.is_dataclass(value) and found.startswith(f"{value.__name__}(")
    return "" if own else found


def markdown(doc: str) -> str:
    """A docstring as Markdown: indented equations are code already, examples are fenced.

    >>> markdown("One.\\n    x = y\\n\\n>>> 1 + 1\\n2")
    'One.\\n\\n    x = y\\n\\n```python\\n>>> 1 + 1\\n2\\n```'
    """
    blocks = []
    for block in doc.split("\n\n"):
        blocks.append(f"```python\n{block}\n```" if block.lstrip().startswith(">>>") else _with_code_apart(block))
    return "\n\n".join(blocks)


def _with_code_apart(block: str) -> str:
    """Lines indented below a sentence are an equation or a listing, also where no empty line parts them from it."""
    out: list[str] = []
    for line in block.split("\n"):
        is_code, was_code = line.startswith("    "), bool(out) and out[-1].startswith("    ")
        if out and is_code != was_code:
            out.append("")
        out.append(line)
    return "\n".join(out)


def _entry(name: str, value: Any) -> str:
    parts = [f"## `{name}`\n", _signature(name, value), markdown(docstring(value)), ""]
    if inspect.isclass(value):
        for member, found in _members(value):
            parts += [f"### `{name}.{member}`\n", _signature(member, found), markdown(docstring(found)), ""]
    return "\n".join(parts)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """What the class itself defines for others to use and explains."""
    for name, value in vars(kind).items():
        found = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if not name.startswith("_") and docstring(found) and (inspect.isfunction(found) or isinstance(found, property)):
            yield name, found


def _signature(name: str, value: Any) -> str:
    if isinstance(value, property):
        return f"```python\n{name}: {value.fget.__annotations__.get('return', 'Any')}\n```\n"  # type: ignore[union-attr]
    function = value.__init__ if inspect.isclass(value) and "__init__" in vars(value) else value
    signature = inspect.signature(function)
    shown = [_parameter(p) for p in signature.parameters.values() if p.name not in ("self", "cls")]
    result = "" if inspect.isclass(value) or signature.return_annotation is inspect.Signature.empty else (
        f" -> {_annotation(signature.return_annotation)}"
    )  # fmt: skip
    line = f"{name}({', '.join(shown)}){result}"
    if len(line) > LINE:
        line = f"{name}(\n" + textwrap.indent(",\n".join(shown), "    ") + f",\n){result}"
    return f"```python\n{line}\n```\n"


def _parameter(one: inspect.Parameter) -> str:
    star = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(one.kind, "")
    typed = "" if one.annotation is one.empty else f": {_annotation(one.annotation)}"
    default = "" if one.default is one.empty else f" = {_default(one.default)}"
    return f"{star}{one.name}{typed}{default}"


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _default(value: Any) -> str:
    return "..." if type(value).__name__ == "_HAS_DEFAULT_FACTORY_CLASS" else repr(value)


def _value(name: str, value: Any) -> str:
    if inspect.ismodule(value):
        inner = [n for n, v in vars(value).items() if inspect.isfunction(v) and v.__module__ == value.__name__]
        shown = [_entry(f"{name}.{n}", getattr(value, n)) for n in inner if not n.startswith("_")]
        return "\n".join([f"## `{name}`\n\n{markdown(inspect.cleandoc(value.__doc__ or ''))}\n", *shown])
    if doc := docstring(value) if type(value).__module__.startswith("termwise") else "":
        return f"## `{name}`\n\n{markdown(doc)}\n"
    return f"## `{name}`\n\n```python\n{name} = {textwrap.shorten(repr(value), 400)}\n```\n"
