"""What this machine can do at best, measured in the same run: copying memory, reading it, multiplying matrices."""

from __future__ import annotations

from collections.abc import Callable

import torch

from termwise.bench.inputs import Shape
from termwise.bench.timing import Spread, quiet, seconds

LARGE = 2**26  # numbers, 256 MiB in float32: beyond every cache
PRODUCT = 1024  # rows and columns of the product
ROUNDS = 9


def measure(shape: Shape) -> dict[str, tuple[str, Spread]]:
    """Metric -> (unit, spread) of copy and read bandwidth (bytes copied or read a second) and of the product peak."""
    source = torch.ones(LARGE, device=shape.device)
    target = torch.empty_like(source)
    square = torch.randn(PRODUCT, PRODUCT, device=shape.device, dtype=shape.dtype)
    product = torch.empty_like(square)
    runs: dict[str, tuple[str, int, Callable[[], object]]] = {
        "copy_bandwidth": ("B/s", 4 * LARGE, lambda: target.copy_(source)),
        "read_bandwidth": ("B/s", 4 * LARGE, source.sum),
        "product_peak": ("operations/s", 2 * PRODUCT**3, lambda: torch.mm(square, square, out=product)),
    }
    with quiet(), torch.no_grad():
        for _, _, run in runs.values():
            run()
        clock = {name: [seconds(run, shape) for _ in range(ROUNDS)] for name, (_, _, run) in runs.items()}
    return {name: (unit, Spread.of([size / t for t in clock[name]])) for name, (unit, size, _) in runs.items()}
