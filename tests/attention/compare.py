"""The only assertions of the contract suite: NaN first, then relative root mean square. Each one is counted."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.attention.tolerances import TABLE


@dataclasses.dataclass
class Counter:
    """How many comparisons have been made in this process."""

    comparisons: int = 0


counter = Counter()


def rms(x: Tensor) -> float:
    return float(x.detach().double().square().mean().sqrt())


def relative_rms(actual: Tensor, expected: Tensor) -> float:
    return rms(actual.double() - expected.double()) / rms(expected)


def close(actual: Tensor, expected: Tensor, row: str, what: str = "") -> None:
    """Relative root mean square of `actual` against `expected` within a row of the table of tolerances."""
    counter.comparisons += 1
    assert actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    assert actual.numel() > 0, f"{what}: nothing to compare"
    assert torch.isfinite(expected).all(), f"{what}: the expected values are not finite"
    assert torch.isfinite(actual).all(), (
        f"{what}: {int((~torch.isfinite(actual)).sum())} of {actual.numel()} values are NaN or infinite"
    )
    tolerance = TABLE[row]
    error = rms(actual.double() - expected.double())
    allowed = max(tolerance.relative * rms(expected), tolerance.absolute)
    assert error <= allowed, (
        f"{what}: RMS error {error:.3g} of {rms(expected):.3g}, allowed {allowed:.3g} ({tolerance.reason})"
    )


def all_close(
    actual: Mapping[str, Tensor | None], expected: Mapping[str, Tensor | None], row: str, what: str = ""
) -> None:
    """Named tensors, each on its own; a missing gradient is a zero one."""
    assert set(actual) == set(expected), f"{what}: {sorted(actual)} against {sorted(expected)}"
    for name, wanted in expected.items():
        got = actual[name]
        if wanted is None and got is None:
            continue
        shape_of = wanted if wanted is not None else got
        zero = torch.zeros_like(shape_of)
        close(zero if got is None else got, zero if wanted is None else wanted, row, f"{what} {name}")


def same_bits(actual: Tensor, expected: Tensor, what: str = "") -> None:
    counter.comparisons += 1
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, what
    assert actual.numel() > 0, f"{what}: nothing to compare"
    differs = (actual != expected) & ~(actual.isnan() & expected.isnan())
    assert not differs.any(), (
        f"{what}: {int(differs.sum())} of {actual.numel()} values differ, by up to {float((actual - expected).abs().max()):.3g}"
    )


def equal(actual: Any, expected: Any, what: str = "") -> None:
    counter.comparisons += 1
    assert actual == expected, f"{what}: {actual!r}, expected {expected!r}"


def holds(statement: bool, what: str) -> None:
    """A claim that is no equality (a bound, a sign)."""
    counter.comparisons += 1
    assert statement, what


@contextlib.contextmanager
def refused(*words: str) -> Iterator[None]:
    """A ValueError of one line whose message holds all `words`: what was given, and the way out."""
    counter.comparisons += 1
    with pytest.raises(ValueError) as error:  # noqa: PT011 (every word is looked for below)
        yield
    message = str(error.value)
    assert "\n" not in message, f"more than one line: {message!r}"
    for word in words:
        assert word in message, f"{word!r} is not in {message!r}"


def close_states(actual, expected, row: str, what: str = "") -> None:
    """Two states field by field: spec and scales equal, whole numbers equal, sums close."""
    equal((actual.spec, actual.scale, actual.slot_scale), (expected.spec, expected.scale, expected.slot_scale), what)
    actual, expected = actual.with_batch_ranks(), expected.with_batch_ranks()
    equal(sorted(actual.tensors), sorted(expected.tensors), f"{what}: fields")
    for name, wanted in expected.tensors.items():
        got = actual.tensors[name]
        if not wanted.is_floating_point():
            equal(got.tolist(), wanted.tolist(), f"{what}: {name}")
        elif wanted.numel():
            finite = torch.isfinite(wanted)
            equal(torch.isfinite(got).tolist(), finite.tolist(), f"{what}: {name} finite")
            zero = torch.zeros_like(wanted)
            close(
                torch.where(finite, got, zero).detach(),
                torch.where(finite, wanted, zero).detach(),
                row,
                f"{what}: {name}",
            )
