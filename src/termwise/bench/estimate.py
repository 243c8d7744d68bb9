"""About how long a benchmark takes, said before it starts. Rough on purpose: operations over a plausible speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from termwise.bench.config import BenchConfig

if TYPE_CHECKING:
    from termwise.bench.run import Group, Subject

STRETCH = 128  # tokens of a sample of decoding
LONG_ROUND, MOST_SECONDS = 20.0, 120.0  # a round beyond the first is repeated at most within the second
SPEED = 3e10  # operations a second and thread
READ = 1e10  # bytes a second
UNPACKED = {".safetensors": 1.0, ".gguf": 8.0}  # bytes of weights in float32 over those of the file, about
PER_CALL = 2e-4  # seconds of a step that does next to nothing
PROCESS = 5.0  # seconds of a fresh process that imports torch
FIXED = 2.0  # seconds of a group: tensors, comparison with the definition


def estimated_seconds(config: BenchConfig, groups: Sequence[Group], subjects: Sequence[Subject]) -> float:
    """Seconds of the groups of rows that are left."""
    weights = {subject.name: _weights(subject.named.folder) for subject in subjects}
    return sum(_group(config, group, weights) for group in groups)


def _weights(place: Path | None) -> float:
    """Bytes of a model in float32, from the sizes of its files; those of the size "tiny" without any."""
    files = [] if place is None else [place] if place.is_file() else list(place.iterdir())
    return sum(path.stat().st_size * UNPACKED.get(path.suffix, 0.0) for path in files) or 3e6


def _group(config: BenchConfig, group: Group, weights: Mapping[str, float]) -> float:
    heads, width, length = config.batch * config.heads, config.key_width + config.value_width, group.length
    speed = SPEED * config.threads
    quadratic = heads * width * length**2 / speed
    linear = [_features(config, name) * 4 * config.value_width * heads / speed for name in group.names]
    rounds = config.repeats + 1
    if group.measure == "prefill":
        return FIXED + _rounds(quadratic + sum(min(2 * quadratic, length * one) for one in linear), config)
    if group.measure == "decode":
        steps = STRETCH * rounds * (sum(linear) + heads * width * 2 * length / speed + PER_CALL * (1 + len(linear)))
        return FIXED + steps + length * sum(linear)
    if group.measure == "memory":
        return (1 + len(linear)) * PROCESS + quadratic + length * sum(linear)
    if group.measure == "training":
        return FIXED + _rounds(4 * (quadratic * (1 + 2 * len(linear)) + length * sum(linear)), config)
    # The baseline is a model of the same size; a token of a prompt takes half an operation a byte.
    each = [weights[name] for name in group.names]
    steps = sum(size / READ + 5 * PER_CALL for size in (each[0], *each))
    return FIXED + STRETCH * rounds * steps + length * config.batch * sum(each) / 2 / speed


def _rounds(each: float, config: BenchConfig) -> float:
    """Seconds of rounds that take `each`, the warm-up included: long ones are repeated less often."""
    wanted = config.repeats if each < LONG_ROUND else min(config.repeats, max(2, int(MOST_SECONDS / each)))
    return (1 + wanted) * each


def _features(config: BenchConfig, name: str) -> int:
    from termwise.attention.catalogue import catalogue
    from termwise.attention.monomials import total_width
    from termwise.attention.state import stored_orders

    try:
        return total_width(config.key_width, stored_orders(catalogue.variant(name).spec))
    except ValueError:  # a model folder
        return 0


def in_words(seconds: float) -> str:
    """A time as people read it.

    >>> in_words(0.00123), in_words(75)
    ('1.23 ms', '1 min 15 s')
    """
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
