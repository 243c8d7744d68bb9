"""No figure for a form that disagrees: what ran is compared with the definition on the very tensors that are timed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from termwise.attention.forms import attend
from termwise.attention.reference import reference_rows
from termwise.attention.spec import AttentionSpec
from termwise.data.sizes import counted

# Up to here every row is compared with all scores in float64; beyond, some rows with the definition.
ALL_ROWS = 1024
NUM_ROWS = 21
# With decay the definition adds up each key's own stretch, which is quadratic in the length for one row.
NUM_ROWS_DECAYED = 5
TOLERANCE = 1e-5  # relative RMS, the promise for float32
LOW_PRECISION_FACTOR = 2.0  # of the error of rounding the exact rows once to the type of the output


@dataclass(frozen=True)
class Agreement:
    """How far what ran is from the definition. `reason` says why no figure may be shown; None where they agree."""

    error: float
    tolerance: float
    how: str

    @property
    def reason(self) -> str | None:
        """Why there is no figure."""
        if self.error <= self.tolerance:
            return None
        return f"the form that runs disagrees with {self.how}: relative RMS {self.error:.2g}, allowed is {self.tolerance:.2g}"


def of_prefill(spec: AttentionSpec, given: dict[str, Any], out: Tensor) -> Agreement:
    """A whole prompt: `out` (B, T, H, e) is what the timed call gives for `given`."""
    length = out.shape[1]
    if length <= ALL_ROWS:
        exact, _ = attend(**in_float64(given), spec=spec, form="parallel")
        return compared(out, exact, f"form='parallel' in float64, all {length:,} rows")
    rows = some_rows(length, NUM_ROWS_DECAYED if spec.log_decay else NUM_ROWS)
    return of_rows(spec, given, rows, out[:, rows])


def of_rows(spec: AttentionSpec, given: dict[str, Any], rows: Sequence[int], out: Tensor) -> Agreement:
    """Some rows: `out` (B, rows, H, e) against every key up to their own."""
    if spec.evicts:
        # Which keys a row sees depends on all rows before it.
        whole, _ = attend(**in_float64(given), spec=spec, form="chunked")
        return compared(out, whole[:, list(rows)], f"form='chunked' in float64, {counted(len(rows), 'row')}")
    exact = reference_rows(spec=spec, rows=rows, **given)
    return compared(out, exact, f"the definition in float64, {counted(len(rows), 'row')}")


def compared(out: Tensor, exact: Tensor, how: str, usual: float = 0.0) -> Agreement:
    """Relative root mean square of the difference, infinite where a value is not finite.

    In low precision the yardstick is the error of rounding once, or `usual` where several roundings cannot be helped.
    """
    tolerance = TOLERANCE
    if is_low_precision(out.dtype):
        tolerance = LOW_PRECISION_FACTOR * max(usual, distance(exact.to(out.dtype), exact))
    return Agreement(distance(out, exact), tolerance, how)


def is_low_precision(dtype: torch.dtype) -> bool:
    """Whether a type is narrower than the sums are kept in."""
    return dtype not in (torch.float32, torch.float64)


def distance(out: Tensor, exact: Tensor) -> float:
    """|out - exact| / |exact|."""
    out, exact = out.detach().double(), exact.detach().double()
    if not bool(torch.isfinite(out).all()):
        return float("inf")
    return float((out - exact).norm() / exact.norm().clamp(min=1e-300))


def in_float64(given: dict[str, Any]) -> dict[str, Any]:
    """The same arguments of `attend`, wider."""
    return {
        name: in_float64(value) if isinstance(value, dict) else value.double() if value.is_floating_point() else value
        for name, value in given.items()
    }


def some_rows(length: int, number: int) -> list[int]:
    """The ends, the rows beside the folds, and some between; the same for every subject.

    >>> some_rows(2048, 5)
    [0, 1023, 1024, 1983, 2047]
    """
    wanted = [
        length - 1,
        length // 2,
        length - 65,
        0,
        length // 2 - 1,
        1,
        63,
        64,
        65,
        127,
        128,
        length - 64,
        length - 2,
    ]
    between = random.Random(length).sample(range(length), min(length, number))
    kept = list(dict.fromkeys(row for row in wanted + between if 0 <= row < length))
    return sorted(kept[:number])
