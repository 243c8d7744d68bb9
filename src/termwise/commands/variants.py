"""`termwise variants`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from termwise.commands.shared import Json, at_home, given, show

# What only a drawing takes, and what only the sizes of states do.
DRAWING = {"sentence", "model", "layer", "head", "out", "lang"}
SIZES = {"length", "width"}


def variants(
    context_of_call: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A name, a short name, or a spec.json file.", show_default=False),
    ] = None,
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw what each order does to a sentence, with a trained model.")
    ] = False,
    sentence: Annotated[
        str, typer.Option(help="The sentence for --plot.")
    ] = "In the beginning was the word, and the word was with",
    model: Annotated[
        str | None, typer.Option(help="The model for --plot. [default: of the last study]", show_default=False)
    ] = None,
    layer: Annotated[
        int | None, typer.Option(help="The layer for --plot. [default: the most telling head]", show_default=False)
    ] = None,
    head: Annotated[int | None, typer.Option(help="The head for --plot.", show_default=False)] = None,
    length: Annotated[int, typer.Option(min=1, help="Context length for the sizes of states.")] = 8192,
    width: Annotated[int, typer.Option(min=1, help="Width of keys and values of one head for the sizes.")] = 64,
    out: Annotated[Path, typer.Option(help="The page that --plot writes.", callback=at_home)] = Path(
        "termwise-runs/sentence.html"
    ),
    lang: Annotated[str, typer.Option(help="Language of the page that --plot writes: en or ja.")] = "en",
    as_json: Json = False,
) -> None:
    """List the variants, or explain one: formula, state and cost, equal names, parts that cancel and why."""
    from termwise.study import listing

    stray = sorted(given(context_of_call).keys() & (SIZES if plot else DRAWING))
    if stray:
        options = ", ".join(f"--{option}" for option in stray)
        raise ValueError(f"{options}: no part of {'a drawing' if plot else 'a list; add --plot to draw'}")
    if plot and out.is_dir():
        raise ValueError(f"--out {out} is a folder; name the page to write, e.g. {out / 'sentence.html'}")
    if plot:
        from termwise.commands.folders import check_apart

        if model is not None and "out" in given(context_of_call):
            check_apart(out, model)
        from termwise.analysis.sentence import look
        from termwise.models.naming import plotted_model
        from termwise.report.sentence import write

        seen = look(plotted_model(model, name), sentence, layer=layer, head=head)
        show({"open": str(write(seen, out, lang=lang))}, as_json)
    elif name is None:
        show(listing.all_variants(width, length), as_json, table=listing.table)
    else:
        show(listing.one_variant(name, width, length), as_json, table=listing.text)
