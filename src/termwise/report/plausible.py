"""Values that no model and no machine has: a record that holds one tells of a mistake, and is set aside with its line."""

from __future__ import annotations

import math
from typing import Any

from termwise.results import Record

LOSSES = frozenset({
    "held_out_nats", "held_out_document", "held_out_by_position", "held_out_bits", "loss", "expected_loss", "train_loss",
})  # fmt: skip
MOST_NATS = 1e4
# By unit, from the least to the most. A processor's cycle takes 3e-10 s; 2**60 bytes are a thousand times the largest memory.
RANGES: dict[str, tuple[float, float]] = {
    "nats/token": (-MOST_NATS, MOST_NATS),
    "bits/byte": (0.0, MOST_NATS),
    "s": (1e-9, 1e9),
    "s/token": (1e-9, 1e9),
    "tokens/s": (1e-9, 1e12),
    "B": (1.0, 2.0**60),
}
POSITIVE = (1e-9, 1e9)  # ratios of times or bytes, and SHARES of them
SHARES = frozenset({"state_share", "chosen_share"})
FITTED = frozenset({"constant"})  # of a calibration: seconds an operation
EXTRA = frozenset({"memory", "training_memory"})  # bytes beyond inputs, outputs and state, which may be none


def without_bounds(fields: dict[str, Any]) -> str:
    """What a line says where one of its numbers is NaN, infinite or beyond every float; empty where none is."""
    numbers = {name: fields.get(name) for name in ("value", "low", "high", "level")}
    odd = [f"{name} = {number!r:.40}" for name, number in numbers.items() if _is_endless(number)]
    return f"{fields.get('metric')}: {', '.join(odd)}" if odd else ""


def _is_endless(number: Any) -> bool:
    try:
        return isinstance(number, int | float) and not math.isfinite(number)
    except OverflowError:
        return True


def implausible(record: Record) -> str:
    """What a record says where that cannot be: beyond `RANGES`, outside its own interval, an interval of one measurement.

    Empty where it can.
    """
    if record.value is None or (_is_in_range(record) and _has_own_interval(record)):
        return ""
    ends = "" if record.low is None or record.high is None else f" [{record.low:g}, {record.high:g}]"
    count = "" if record.n is None else f", n = {record.n}"
    return f"{record.metric} = {record.value:g} {record.unit}{ends}{count}"


def _is_in_range(record: Record) -> bool:
    value = record.value or 0.0
    if record.metric.endswith("_ratio") or record.metric in SHARES:
        return POSITIVE[0] <= value <= POSITIVE[1]
    if record.metric in LOSSES and value < 0:
        return False
    if record.metric in EXTRA and value == 0:
        return True
    least, most = RANGES.get(record.unit, (-math.inf, math.inf))
    return record.metric in FITTED or least <= value <= most


def _has_own_interval(record: Record) -> bool:
    low, high, value = record.low, record.high, record.value or 0.0
    if record.level is not None and not 0 < record.level < 1:
        return False
    if low is None or high is None:
        return True
    slack = 1e-9 * max(abs(low), abs(high))
    return low - slack <= value <= high + slack and (low == high or record.n is None or record.n > 1)
