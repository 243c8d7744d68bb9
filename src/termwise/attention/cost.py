"""What a spec costs: features, bytes and operations. Arithmetic only; constants of a machine are passed in."""

from __future__ import annotations

from dataclasses import dataclass

from termwise.attention.kernels import Polynomial  # noqa: F401 (the docstring example)
from termwise.attention.monomials import total_width
from termwise.attention.spec import AttentionSpec
from termwise.attention.state import FOLD, RESERVE, num_recent, stored_orders


@dataclass(frozen=True)
class Cost:
    """Costs of the kv heads of one layer and one sequence at one context length, sums in fp32.

    `features`: of one head, C(d+P, P) for orders 0..P; 0 when the state is the cache. `state_bytes`: live bytes of an
    AttentionState after `length` tokens, exact buffer included; `moment_bytes`: 4 features (e + 1) a head. `cache_bytes`: keys
    and values of all tokens in fp32, `cache_bytes_half` in bf16. `break_even`, `break_even_half`: the length at which such a
    cache is as large as the moments. `step_operations`: multiplications and additions of one decoded token.
    """

    length: int
    features: int
    moment_bytes: int
    state_bytes: int
    cache_bytes: int
    cache_bytes_half: int
    break_even: int | None
    break_even_half: int | None
    step_operations: int


def cost(spec: AttentionSpec, key_width: int, value_width: int, length: int, kv_heads: int = 1) -> Cost:
    """Costs of `spec` for `kv_heads` heads of one sequence without padding.

    >>> spec = AttentionSpec(Polynomial((0, 1, 2)))
    >>> cost(spec, key_width=64, value_width=64, length=8192).break_even
    1089
    """
    for name, size in (
        ("key_width", key_width),
        ("value_width", value_width),
        ("length", length),
        ("kv_heads", kv_heads),
    ):
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"cost: {name}={size!r}; allowed are whole numbers from 1")
    num_features = total_width(key_width, stored_orders(spec))
    pair = key_width + value_width
    moment_bytes = 4 * num_features * (value_width + 1) * kv_heads
    buffered = num_buffered(spec, length)
    has_break_even = spec.is_constant_size and num_features > 0
    return Cost(
        length=length,
        features=num_features,
        moment_bytes=moment_bytes,
        state_bytes=moment_bytes
        + _buffer_bytes(spec, pair, buffered, kv_heads)
        + _constant_bytes(spec, key_width, kv_heads),
        cache_bytes=4 * pair * length * kv_heads,
        cache_bytes_half=2 * pair * length * kv_heads,
        break_even=round(num_features * (value_width + 1) / pair) if has_break_even else None,
        break_even_half=round(2 * num_features * (value_width + 1) / pair) if has_break_even else None,
        step_operations=kv_heads * (4 * num_features * (value_width + 1) + 2 * pair * buffered),
    )


def num_buffered(spec: AttentionSpec, length: int) -> int:
    """Keys in the exact buffer after `length` tokens: all of a cache; else sinks, window, and 64 to 127 not folded yet.

    >>> [num_buffered(AttentionSpec(Polynomial((0, 1, 2))), length) for length in (100, 128, 191, 192)]
    [100, 64, 127, 64]
    """
    if not spec.is_constant_size:
        return length
    folded = max(0, length - (num_recent(spec) - 1) - RESERVE) // FOLD * FOLD
    sinks = spec.local.sinks if spec.local else 0
    return length - max(0, folded - sinks)


def _buffer_bytes(spec: AttentionSpec, pair: int, buffered: int, kv_heads: int) -> int:
    """Keys and values, log decay in fp64 and running gate of each head; one rank for all heads."""
    per_head = 4 * pair + (8 if spec.log_decay else 0) + (4 if spec.needs_running_gate else 0)
    return buffered * (per_head * kv_heads + 8)


def _constant_bytes(spec: AttentionSpec, key_width: int, kv_heads: int) -> int:
    """Count and boundary once; decayed count, reference key, two log decays and the running gate sum a head."""
    per_head = 4 + (16 if spec.log_decay else 0) + (4 if spec.needs_running_gate else 0)
    return 16 + kv_heads * (per_head + (4 * key_width if spec.has_tail and spec.kernel.is_centered else 0))


def crossing_length(spec: AttentionSpec, key_width: int, value_width: int) -> int:
    """Keys above which reading the state costs fewer operations than scoring every key.

    A query scores half of its keys on average: T/2 * 2 (d + e) operations against 4 F (e + 1) for one read and one fold. Below
    512 keys the many small operations of the chunked form cost more than they save.
    """
    num_features = total_width(key_width, stored_orders(spec))
    window = spec.local.window if spec.local else 0
    return round(4 * num_features * (value_width + 1) / (key_width + value_width)) + 2 * window + 512
