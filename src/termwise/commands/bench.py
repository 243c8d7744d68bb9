"""`termwise bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from termwise.bench import options as bench_options
from termwise.commands.shared import Device, DryRun, Out, finish, given, progress_console, show

# What goes with --calibrate, as `given` names it.
CALIBRATING = {"calibrate", "threads", "out", "json", "dry_run"}


def bench(
    context_of_call: typer.Context,
    variants: bench_options.Subjects = None,
    lengths: bench_options.Lengths = "1k,4k,16k,64k",
    heads: bench_options.Heads = 8,
    kv_heads: bench_options.KvHeads = None,
    key_width: bench_options.KeyWidth = 64,
    value_width: bench_options.ValueWidth = None,
    batch: bench_options.Batch = 1,
    dtype: bench_options.Dtype = "float32",
    threads: bench_options.Threads = 1,
    repeats: bench_options.Repeats = 5,
    measures: bench_options.Measures = None,
    half_state: bench_options.HalfState = False,
    clock: bench_options.Clock = "wall",
    seed: bench_options.Seed = 0,
    calibrate: bench_options.Calibrate = False,
    out: Out = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines with llama-bench's names instead of a table.")
    ] = False,
    device: Device = "cpu",
    dry_run: DryRun = False,
) -> None:
    """Measure time and memory of variants and models against torch's fused attention with a key/value cache.

    A form that disagrees with the definition at the very shape has no figure. The same command goes on where it stopped.
    """
    from termwise.bench.config import BenchConfig, default_folder, parse_lengths

    if calibrate:
        stray = sorted(given(context_of_call).keys() - CALIBRATING)
        if stray:
            options = ", ".join(
                "MODEL|VARIANT" if name == "variants" else f"--{name.replace('_', '-')}" for name in stray
            )
            raise ValueError(f"--calibrate measures the machine at shapes of its own: leave out {options}")
        _calibrate(out, as_json=as_json, dry_run=dry_run, threads=threads)
        return
    asked: dict[str, Any] = {
        "variants": tuple(variants or ()), "lengths": parse_lengths(lengths), "heads": heads, "kv_heads": kv_heads,
        "key_width": key_width, "value_width": value_width, "batch": batch, "dtype": dtype, "threads": threads,
        "repeats": repeats, "measures": tuple(m.strip() for m in measures.split(",")) if measures else (),
        "half_state": half_state, "clock": clock, "seed": seed, "device": device,
    }  # fmt: skip
    config = BenchConfig(**asked)
    from termwise.bench.run import describe, json_lines, run_bench
    from termwise.commands.folders import check_reservable, reserved, run_folder

    folder = run_folder(out, default_folder(config), *config.variants)
    if dry_run:
        check_reservable(folder, "bench")
        show(describe(config, folder), as_json)
        return
    with reserved(folder, "bench"):
        run_bench(config, folder, arguments=given(context_of_call), console=progress_console())
        finish(folder, as_json, lines=json_lines(folder))


def _calibrate(out: Path | None, *, as_json: bool, dry_run: bool, threads: int) -> None:
    """`termwise bench --calibrate`: measure, keep, say."""
    from termwise.bench.calibrate import default_folder, describe_calibration, run_calibration
    from termwise.commands.folders import check_reservable, reserved

    folder = out or default_folder(threads)
    if dry_run:
        check_reservable(folder, "bench")
        show(describe_calibration(folder, threads), as_json)
        return
    with reserved(folder, "bench"):
        told = run_calibration(folder, threads=threads, console=progress_console())
        finish(folder, as_json, lines=told.as_json())
