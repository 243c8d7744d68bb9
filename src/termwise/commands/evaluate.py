"""`termwise evaluate`."""

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


def evaluate(
    context_of_call: typer.Context,
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL", help="Model folders, or catalogue names.", show_default=False)
    ],
    tasks: Annotated[str, typer.Option(help="perplexity, recall, or both.")] = "perplexity,recall",
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="Score these files or folders. [default: what the model's study held out]", show_default=False
        ),
    ] = None,
    column: Column = None,
    errors: Errors = "strict",
    preset: Annotated[str, typer.Option(help="The size in which a catalogue name is built.")] = "tiny",
    context: Annotated[
        int | None, typer.Option(help="Window of the scores. [default: the model's]", show_default=False)
    ] = None,
    max_tokens: Annotated[
        int,
        typer.Option(help="About how many tokens are scored, in whole windows (one at least) spread over the text."),
    ] = 131_072,
    seed: Annotated[int, typer.Option(help="Seed of the weights of a catalogue name and of the recall task.")] = 0,
    out: Out = None,
    as_json: Json = False,
    device: Device = "cpu",
    dtype: Dtype = None,
    dry_run: DryRun = False,
) -> None:
    """Score models: held-out loss (perplexity) and recall.

    A catalogue name is built untrained for perplexity, and trained on the recall task for recall.
    """
    from termwise.commands.folders import check_reservable, reserved, run_folder
    from termwise.study.evaluate import EvaluateConfig, default_folder, describe, evaluate_models

    asked: dict[str, Any] = {
        "models": tuple(models), "tasks": tuple(task.strip() for task in tasks.split(",")), "text": tuple(text or ()),
        "column": column, "errors": errors, "preset": preset, "context": context, "max_tokens": max_tokens, "seed": seed,
        "device": device, "dtype": dtype,
    }  # fmt: skip
    config = EvaluateConfig(**asked)
    folder = run_folder(out, default_folder(config), *config.models)
    if dry_run:
        check_reservable(folder, "evaluate")
        show(describe(config, folder), as_json)
        return
    with reserved(folder, "evaluate"):
        evaluate_models(config, folder, arguments=given(context_of_call), console=progress_console())
        finish(folder, as_json)
