"""`termwise verify`."""

from __future__ import annotations

from typing import Annotated

import typer

from termwise.commands.shared import (
    Column,
    Device,
    DryRun,
    Errors,
    Json,
    Out,
    finish,
    given,
    progress_console,
    show,
)


def verify(
    context_of_call: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model folder, or a catalogue name.", show_default=False)
    ],
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="Read these files or folders. [default: the source of Python's standard library]", show_default=False
        ),
    ] = None,
    soak: Annotated[str, typer.Option(help="Tokens streamed in the soak: 8k, 64k, ...; 0 leaves it out.")] = "8k",
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer prefill splits, no even stage, a soak of 1,024 tokens.")
    ] = False,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Make the checks that tell most within about this time, e.g. 30m; the same command goes on. [default: all]",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or all; float64 is always looked at first.")] = "all",
    column: Column = None,
    errors: Errors = "strict",
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Seed of splits, orders and what stands under padding.")
    ] = 0,
    out: Out = None,
    as_json: Json = False,
    device: Device = "cpu",
    dry_run: DryRun = False,
) -> None:
    """Check that every form agrees on this very model, with its own weights and text.

    Full = cached = chunked = padded = packed = reordered = rolled back = the definition, in every layer; and a long text against
    float64. Exit code 0: all agree, 1: a check failed, 2: bad input. An interrupted run goes on; a finished one is made again.
    """
    from termwise.bench.config import parse_lengths
    from termwise.commands.folders import check_reservable, reserved, run_folder
    from termwise.evaluation import verification
    from termwise.evaluation.verify_config import VerifyConfig, default_folder, resolved
    from termwise.results import parse_duration
    from termwise.study.budget import format_duration

    lengths = parse_lengths(soak, option="--soak")
    if len(lengths) != 1:
        raise ValueError(f"--soak {soak!r}: allowed is one length, e.g. 8k")
    seconds = None if budget is None else parse_duration(budget)
    config = VerifyConfig(model, tuple(text or ()), column, errors, lengths[0], quick, dtype, device, seed, seconds)
    settings = resolved(config)
    folder = run_folder(out, default_folder(settings), model)
    if dry_run:
        check_reservable(folder, "verify")
        show(verification.describe(config, folder, settings), as_json)
        return
    console = progress_console()

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    with reserved(folder, "verify"):
        done = verification.run_verify(
            config, folder, settings, arguments=given(context_of_call), say=say, in_words=format_duration
        )
        failed = verification.failures(done)
        finish(folder, as_json, lines=verification.as_json(done, failed))
    if failed:
        raise typer.Exit(1)
