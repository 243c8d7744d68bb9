"""`termwise inspect`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from termwise.commands.shared import Column, Device, DryRun, Errors, Json, Out, finish, given, progress_console, show


def inspect(
    context_of_call: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A model folder (Llama, Mistral, Qwen2, Qwen3, SmolLM2/3, GPT-2, BERT), a folder with one GGUF file, or that file.",
            show_default=False,
        ),
    ],
    text: Annotated[
        list[str] | None,
        typer.Option(help="Files or folders to read. [default: the standard library's source]", show_default=False),
    ] = None,
    texts: Annotated[int, typer.Option(help="Passages, spread evenly over the text.")] = 4,
    length: Annotated[
        int | None,
        typer.Option(help="Tokens of each passage. [default: 512, or the model's context]", show_default=False),
    ] = None,
    window: Annotated[int, typer.Option(help="Last keys that stay exact, where there are exact slots.")] = 64,
    sinks: Annotated[int, typer.Option(help="First keys that stay exact with them.")] = 4,
    reduced: Annotated[
        str | None,
        typer.Option(
            help="What a head is worth is measured against this. [default: taylor:0..2@mean with the slots]",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option(help="Time for all of it; terms and even orders are measured whatever they take.")
    ] = "15m",
    column: Column = None,
    errors: Errors = "strict",
    seed: Annotated[int, typer.Option(help="Moves the places of the passages.")] = 0,
    out: Out = None,
    as_json: Json = False,
    device: Device = "cpu",
    dry_run: DryRun = False,
) -> None:
    """Take a trained model's attention apart: what each order, head and layer is worth on your text.

    The same command goes on where it stopped; with a larger --budget it measures more.
    """
    from termwise.inspection.config import InspectConfig, default_folder
    from termwise.results import parse_duration

    asked: dict[str, Any] = {
        "model": model, "text": tuple(text or ()), "column": column, "errors": errors, "texts": texts, "length": length,
        "window": window, "sinks": sinks, "reduced": reduced, "budget": parse_duration(budget), "seed": seed, "device": device,
    }  # fmt: skip
    config = InspectConfig(**asked)
    from termwise.commands.folders import check_reservable, reserved, run_folder
    from termwise.inspection.run import describe, run_inspect

    folder = run_folder(out, default_folder(config), model)
    if dry_run:
        check_reservable(folder, "inspect")
        show(describe(config, folder), as_json)
        return
    with reserved(folder, "inspect"):
        run_inspect(config, folder, arguments=given(context_of_call), console=progress_console())
        finish(folder, as_json)
