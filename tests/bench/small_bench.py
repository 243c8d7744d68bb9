"""Benchmarks of seconds: tiny shapes, two repeats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from termwise.bench.config import BenchConfig
from termwise.bench.inputs import Shape
from termwise.bench.run import run_bench
from termwise.results import Record, RunFolder

NAME = "taylor:0..2"
SMALL = Shape(1, 4, 2, 4, 3, torch.float32, torch.device("cpu"))


def config(**changed: Any) -> BenchConfig:
    """A tiny benchmark of one variant."""
    usual = {
        "variants": (NAME,),
        "lengths": (130, 260),
        "measures": ("prefill",),
        "heads": 4,
        "kv_heads": 2,
        "key_width": 4,
    }
    return BenchConfig(**usual | {"value_width": 3, "repeats": 2} | changed)


def run(path: Path, **changed: Any) -> RunFolder:
    """The run folder of a tiny benchmark."""
    return run_bench(config(**changed), path, arguments={}, console=Console(quiet=True))


def of(folder: RunFolder, metric: str, **subject: Any) -> list[Record]:
    """The records of one metric about one subject."""
    return [r for r in folder.records() if r.metric == metric and subject.items() <= r.subject.items()]
