"""When two forms agree: tolerances, and where they first do not.

float64   1e-10 relative, the promise for one attention, once for every attention a row has gone through
float32   1e-5 likewise, or twice the error of the plain parallel form where that is larger
bfloat16  twice the error of the plain parallel form in bfloat16

Errors are root mean squares over rows; a single row may have ten times as much (in bfloat16 four times the worst row of the
plain form).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from termwise.data.sizes import counted
from termwise.evaluation.tracing import Errors, rms, worst

PROMISED = {torch.float64: 1e-10, torch.float32: 1e-5}
OVER_PLAIN = 2.0
WORST_ROW = 10.0  # of the tolerance for the mean over rows
WORST_ROW_OVER_PLAIN = 4.0


@dataclass(frozen=True)
class Outcome:
    """What a check found. `value` is its worst figure, also where it failed; `reason` stands where status is not ok."""

    value: float | None
    tolerance: float | None = None
    status: str = "ok"
    reason: str | None = None
    metric: str = "relative_rms"
    unit: str = "1"
    where: dict[str, Any] = field(default_factory=dict)
    method: str | None = None


def judged(
    errors: Errors, plain: Callable[[Errors], Tensor] | None, dtype: torch.dtype, names: tuple[str, str]
) -> Outcome:
    """Whether rows agree with float64. `plain`: the errors of the plain form at the same rows; `names`: the two forms."""
    num_left_out = int(errors.values.isnan().any(dim=1).sum())
    if bool(errors.values.isnan().all()):
        return Outcome(None, status="excluded", reason="every row was left out: row sums nearly vanish there")
    usual = None if plain is None else plain(errors)
    mean, row = allowed(errors.values.shape[1], dtype, usual)
    found, largest = rms(errors.values), worst(errors.values)
    part = int((found / mean).nan_to_num(nan=0.0, posinf=torch.inf).argmax())
    where = {"layer": part} if part < len(found) - 1 else {"layer": "logits"}
    method = counted(len(errors.values), "row") + (
        f", {num_left_out} left out: row sums nearly vanish there" if num_left_out else ""
    )
    outcome = Outcome(float(found[part]), float(mean[part]), where=where, method=method)
    is_bad = (found > mean) | (largest > row)
    if not bool(is_bad.any()):
        return outcome
    return _failed(errors, is_bad, mean, row, names)


def allowed(num_parts: int, dtype: torch.dtype, plain: Tensor | None) -> tuple[Tensor, Tensor]:
    """(P,) what the mean over rows may be, and what a single row may be."""
    attentions = torch.arange(1, num_parts + 1, dtype=torch.float64).clamp(max=max(num_parts - 1, 1))
    mean = PROMISED.get(dtype, 0.0) * attentions
    row = WORST_ROW * mean
    if plain is not None:
        # A plain form that is not finite allows nothing.
        plain = torch.where(plain.isinf(), torch.zeros_like(plain), plain)
        mean = mean.maximum(OVER_PLAIN * rms(plain))
        row = row.maximum(WORST_ROW_OVER_PLAIN * worst(plain))
    return mean, row


def _failed(errors: Errors, is_bad: Tensor, mean: Tensor, row: Tensor, names: tuple[str, str]) -> Outcome:
    """The first layer that disagrees, and in it the first row of each sequence that does."""
    part = int(is_bad.nonzero()[0])
    values = errors.values[:, part]
    is_off = values > torch.where((values > row[part]).any(), row[part], mean[part])
    places = errors.position[is_off]
    first = int(places.argmin())
    position, sequence = int(places[first]), int(errors.sequence[is_off][first])
    size = float(values[is_off][first])
    value = float(rms(errors.values)[part])
    layer = f"layer {part}" if part < len(mean) - 1 else "the logits (every layer agrees)"
    limit = float(mean[part])
    reason = (
        f"{names[0]} differs from {names[1]}: first in {layer}, from position {position} of sequence {sequence} on "
        f"({size:.2g} there, {int(is_off.sum())} of {len(values)} rows; relative RMS {value:.2g}, allowed is {limit:.2g})"
    )
    where = {"layer": part if part < len(mean) - 1 else "logits", "position": position, "sequence": sequence}
    return Outcome(value, limit, "failed", reason, where=where)


def bits(found: Tensor, expected: Tensor) -> Tensor:
    """(rows,) True where a row is not the same bit by bit."""
    return ((found != expected) & ~(found.isnan() & expected.isnan())).flatten(1).any(dim=1)
