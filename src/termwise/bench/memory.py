"""Peak memory beyond inputs, outputs and state, each case in a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

from termwise.bench.config import BASELINE, BenchConfig
from termwise.bench.rows import Row

# Extra memory below this is the noise of pages and of the interpreter, and counts as equal.
NOISE = 2**21


def measure(names: Sequence[str], config: BenchConfig, length: int) -> list[Row]:
    """A row of the baseline and of every name: the memory of a prefill of `length` tokens."""
    found = [_row(name, config, length) for name in (BASELINE, *names)]
    base = found[0].samples
    return [found[0], *(with_ratio(row, base) for row in found[1:])]


def with_ratio(row: Row, base: tuple[float, ...]) -> Row:
    """The row with the baseline's bytes over its own; both at least the noise."""
    if not row.samples or not base:
        return row
    return replace(row, ratios=(max(base[0], NOISE) / max(row.samples[0], NOISE),))


def _row(name: str, config: BenchConfig, length: int) -> Row:
    try:
        told = in_child(name, "memory", config, length)
    except ValueError as error:
        return Row(name, "memory", length, missing=str(error))
    return Row(name, "memory", length, (float(told["extra"]),), length, form=str(told["form"]), method=told["method"])


def in_child(name: str, measure: str, config: BenchConfig, length: int, form: str | None = None) -> dict:
    """What a fresh process says of one case. ValueError with its last line where it failed."""
    case = {
        "variant": name,
        "measure": measure,
        "config": config.model_dump(mode="json"),
        "length": length,
        "form": form,
    }
    done = subprocess.run(
        [sys.executable, "-m", "termwise.bench.child"],
        input=json.dumps(case),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"its process ended with code {done.returncode}"]
        raise ValueError(said[-1])
    return json.loads(done.stdout)
