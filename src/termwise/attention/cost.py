"""What a spec costs: features, bytes and operations. Arithmetic only; constants of a machine are passed in."""

from __future__ import annotations

from dataclasses import dataclass

from termwise.attention.kernels import Polynomial  # noqa: F401 (the docstring example)
from termwise.attention.monomials import total_width
from termwise.attention.spec import AttentionSpec

FOLD_BUFFER = 127  # keys at most waiting to be folded or kept for rollback


@dataclass(frozen=True)
class Cost:
    """Costs of one kv head at one context length.

    `features`: C(d+P, P) for orders 0..P; 0 when the state is the cache. `state_bytes`: live bytes at `length` in fp32, exact
    buffer included; `moment_bytes`: 4 features (e + 1). `cache_bytes`: keys and values of all tokens in the given precision.
    `break_even`: the length at which the cache in fp32 is as large as the moments; `break_even_half`: against a bf16 cache.
    `step_operations`: multiplications and additions of one decoded token.
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


def cost(spec: AttentionSpec, key_width: int, value_width: int, length: int) -> Cost:
    """Costs of `spec` for one kv head and sequence.

    >>> spec = AttentionSpec(Polynomial((0, 1, 2)))
    >>> cost(spec, key_width=64, value_width=64, length=8192).break_even
    1089
    """
    from termwise.attention.state import stored_orders

    orders = stored_orders(spec)
    num_features = total_width(key_width, orders)
    pair = key_width + value_width
    moment_bytes = 4 * num_features * (value_width + 1)
    buffered = length
    if spec.is_constant_size:
        window = spec.local.window + spec.local.sinks if spec.local else 1
        buffered = min(length, window - 1 + FOLD_BUFFER)
    slot_bytes = 4 * pair + 8 + (8 if spec.log_decay else 0) + (4 if spec.needs_running_gate else 0)
    constant = (
        16
        + 4
        + (4 * key_width if spec.kernel.is_centered and orders else 0)
        + (16 if spec.log_decay else 0)
        + (4 if spec.needs_running_gate else 0)
    )
    has_break_even = spec.is_constant_size and num_features > 0
    explicit = length if not spec.is_constant_size else buffered
    return Cost(
        length=length,
        features=num_features,
        moment_bytes=moment_bytes,
        state_bytes=moment_bytes + buffered * slot_bytes + constant,
        cache_bytes=4 * pair * length,
        cache_bytes_half=2 * pair * length,
        break_even=round(num_features * (value_width + 1) / pair) if has_break_even else None,
        break_even_half=round(2 * num_features * (value_width + 1) / pair) if has_break_even else None,
        step_operations=4 * num_features * (value_width + 1) + 2 * pair * explicit,
    )


def crossing_length(spec: AttentionSpec, key_width: int, value_width: int) -> int:
    """Keys above which reading the state costs fewer operations than scoring every key.

    A query scores half of its keys on average: T/2 * 2 (d + e) operations against 4 F (e + 1) for one read and one fold. Below
    512 keys the many small operations of the chunked form cost more than they save.
    """
    from termwise.attention.state import stored_orders

    num_features = total_width(key_width, stored_orders(spec))
    window = spec.local.window if spec.local else 0
    return round(4 * num_features * (value_width + 1) / (key_width + value_width)) + 2 * window + 512
