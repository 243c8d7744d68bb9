"""`termwise plan`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from termwise.commands.shared import Column, Device, DryRun, Errors, Json, Out, finish, given, progress_console, show


def plan(
    context_of_call: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="INSPECTION|MODEL",
            help="The folder of `termwise inspect`, or a model folder (Llama, Mistral, Qwen2, Qwen3, SmolLM2/3) or GGUF file.",
            show_default=False,
        ),
    ],
    context: Annotated[str, typer.Option(help="Tokens of context the plan is for, e.g. 4k.", show_default=False)],
    max_loss: Annotated[
        float | None, typer.Option(help="Target: the loss may rise by so many nats a token.", show_default=False)
    ] = None,
    max_state: Annotated[
        str | None,
        typer.Option(help="Target: the state may take this share of the cache's bytes, e.g. 25%.", show_default=False),
    ] = None,
    cache_dtype: Annotated[
        str, typer.Option(help="What keys and values are served in: bfloat16 or float32.")
    ] = "bfloat16",
    text: Annotated[
        list[str] | None,
        typer.Option(help="Files or folders to read. [default: the standard library's source]", show_default=False),
    ] = None,
    texts: Annotated[int, typer.Option(help="Passages to report on.")] = 8,
    planning_texts: Annotated[
        int, typer.Option(help="Other passages to plan with: the first for the centers, the rest for the losses.")
    ] = 3,
    length: Annotated[
        str | None, typer.Option(help="Tokens of each passage. [default: the context]", show_default=False)
    ] = None,
    shares: Annotated[str, typer.Option(help="Shares of the cache for the front.")] = "5%,10%,25%",
    longer: Annotated[
        str | None,
        typer.Option(help="Evaluate the plan on one more passage of so many tokens, e.g. 8k.", show_default=False),
    ] = None,
    anchors: Annotated[int, typer.Option(help="True evaluations of single heads, to judge the proxies by.")] = 8,
    budget: Annotated[str, typer.Option(help="Time for all of it; reporting stops when it is spent.")] = "2h",
    column: Column = None,
    errors: Errors = "strict",
    seed: Annotated[int, typer.Option(help="Chooses the passages and draws labels.")] = 0,
    out: Out = None,
    as_json: Json = False,
    device: Device = "cpu",
    dtype: Annotated[
        str, typer.Option(help="float32 or bfloat16: the model in evaluations of whole plans.")
    ] = "float32",
    dry_run: DryRun = False,
) -> None:
    """Choose what each kv head of a model keeps: all keys, exact slots, or slots with sums over the far keys.

    Meets --max-loss or --max-state at --context, is evaluated for real, and writes plan.json for `termwise convert`. The same
    command goes on where it stopped.
    """
    from termwise.planning.config import PlanConfig, default_folder, parse_context, parse_share, parse_shares
    from termwise.results import parse_duration

    asked: dict[str, Any] = {
        "source": source, "context": parse_context(context), "max_loss": max_loss,
        "max_state": parse_share(max_state, "--max-state") if max_state is not None else None, "cache_dtype": cache_dtype,
        "text": tuple(text or ()), "column": column, "errors": errors, "texts": texts, "planning_texts": planning_texts,
        "length": parse_context(length) if length is not None else None, "shares": parse_shares(shares),
        "longer": parse_context(longer) if longer is not None else None, "anchors": anchors, "budget": parse_duration(budget),
        "seed": seed, "device": device, "dtype": dtype,
    }  # fmt: skip
    config = PlanConfig(**asked)
    from termwise.commands.folders import check_reservable, reserved, run_folder
    from termwise.planning.opening import inspected
    from termwise.planning.run import describe, run_plan

    read = inspected(config)
    folder = run_folder(out, default_folder(config), read.source)
    if dry_run:
        check_reservable(folder, "plan")
        show(describe(config, folder), as_json)
        return
    with reserved(folder, "plan"):
        run_plan(config, folder, arguments=given(context_of_call), console=progress_console())
        finish(folder, as_json)
