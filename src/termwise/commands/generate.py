"""`termwise generate`."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from termwise.commands.shared import Device, Dtype, Json


def generate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A model folder, e.g. termwise-runs/demo/runs/softmax/0/model.", show_default=False
        ),
    ],
    prompt: Annotated[str, typer.Option(help="The text to go on from.", show_default=False)],
    max_tokens: Annotated[int, typer.Option(min=1, help="New tokens at most.")] = 200,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the likeliest token each time.")] = 0.8,
    top_p: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Draw from the likeliest tokens that have this share together.")
    ] = 0.95,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the draws.")] = 0,
    half_state: Annotated[
        bool,
        typer.Option(
            "--half-state",
            help="Read states from a bfloat16 copy: half the bytes a token, half as much memory again, about 1e-3 of precision.",
        ),
    ] = False,
    as_json: Json = False,
    device: Device = "cpu",
    dtype: Dtype = None,
) -> None:
    """Write on from a prompt, token by token as they come; the speed from the first of them on is said at the end."""
    from termwise.data.sizes import counted
    from termwise.models.naming import trained_folder
    from termwise.models.streaming import generate_text

    write = (lambda piece: None) if as_json else (lambda piece: (sys.stdout.write(piece), sys.stdout.flush()))
    told = generate_text(
        trained_folder(model),
        prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        device=device,
        dtype=dtype,
        reads_half=half_state,
        write=write,
    )
    if as_json:
        typer.echo(json.dumps(told, ensure_ascii=False))
        return
    typer.echo("")
    speed = told["tokens_per_second"]
    after = f", {speed:.1f} tokens/s after the first" if speed else ""
    typer.echo(f"{counted(told['tokens'], 'token')}{after}, state {told['state_bytes']:,} B", err=True)
