"""`termwise convert`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from termwise.commands.shared import (
    Column,
    Device,
    DryRun,
    Dtype,
    Errors,
    Json,
    Out,
    finish,
    given,
    progress_console,
    show,
)


def convert(
    context_of_call: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="The original: a model folder or a GGUF file.", show_default=False)
    ],
    plan: Annotated[
        str,
        typer.Option(
            help="The plan.json of termwise plan or its folder; one spec for every head (a name or a file); or identity.",
            show_default=False,
        ),
    ],
    tune: Annotated[
        str | None,
        typer.Option(help="Tune for this long, e.g. 20m. [default: weights stay as they are]", show_default=False),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=4, help="Tune for so many steps instead of a time.", show_default=False)
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="Text to tune on (what is held out of it is scored); alone, losses are measured on it.",
            show_default=False,
        ),
    ] = None,
    column: Column = None,
    errors: Errors = "strict",
    lora: Annotated[
        int, typer.Option(min=0, help="Tune adapters of this rank, merged at the end. 0: all weights.")
    ] = 0,
    labels: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Weight of the text's own next tokens beside the original's distribution."),
    ] = 0.0,
    tune_original: Annotated[
        bool, typer.Option("--tune-original", help="Tune the original as long on the same text, to compare with.")
    ] = False,
    lr: Annotated[float, typer.Option(help="The highest learning rate.")] = 1e-4,
    rows: Annotated[int, typer.Option(min=1, help="Windows a step.")] = 8,
    context: Annotated[
        int | None,
        typer.Option(help="Tokens of a window. [default: the model's, at most 512]", show_default=False),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="About how many held-out tokens are scored.")] = 65_536,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the order of the text and of adapters.")] = 0,
    out: Out = None,
    as_json: Json = False,
    device: Device = "cpu",
    dtype: Dtype = None,
    dry_run: DryRun = False,
) -> None:
    """Give back a model whose heads keep only what a plan keeps, tuned if asked; the original stays as it is.

    OUT/model is an ordinary folder with a model card. The same command goes on where it stopped.
    """
    from termwise.conversion.config import ConvertConfig, default_folder
    from termwise.results import parse_duration

    asked: dict[str, Any] = {
        "model": model, "plan": plan, "tune": parse_duration(tune) if tune is not None else None, "steps": steps,
        "text": tuple(text or ()), "column": column, "errors": errors, "lora": lora, "labels": labels,
        "tune_original": tune_original, "lr": lr, "rows": rows, "context": context, "max_tokens": max_tokens, "seed": seed,
        "device": device, "dtype": dtype,
    }  # fmt: skip
    config = ConvertConfig(**asked)
    from termwise.commands.folders import check_reservable, reserved, run_folder
    from termwise.conversion.run import convert as run_convert
    from termwise.conversion.run import describe

    folder = run_folder(out, default_folder(config), model)
    if dry_run:
        check_reservable(folder, "convert")
        show(describe(config, folder), as_json)
        return
    with reserved(folder, "convert"):
        run_convert(config, folder, arguments=given(context_of_call), console=progress_console())
        finish(folder, as_json)
