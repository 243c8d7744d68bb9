"""What a spec costs: features, bytes and operations. Arithmetic only; constants of a machine are passed in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from termwise.attention.kernels import Polynomial  # noqa: F401 (the docstring example)
from termwise.attention.monomials import total_width
from termwise.attention.spec import AttentionSpec
from termwise.attention.state import FOLD, RESERVE, num_recent, stored_orders
from termwise.attention.tail import has_reference, mass_orders, moment_orders

BLOCK = 256  # tokens of a chunk: a quarter less time than 64, whose many small operations count


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


def cost(
    spec: AttentionSpec, key_width: int, value_width: int, length: int, kv_heads: int = 1, reads_half: bool = False
) -> Cost:
    """Costs of `spec` for `kv_heads` heads of one sequence without padding; `reads_half`: with a bfloat16 copy of the moments.

    A past that is recorded (`record_past`) is not counted.

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
    numbers = _moment_numbers(spec, key_width, value_width)
    moment_bytes = 4 * numbers * kv_heads
    buffered = num_buffered(spec, length)
    has_break_even = spec.is_constant_size and num_features > 0
    return Cost(
        length=length,
        features=num_features,
        moment_bytes=moment_bytes,
        state_bytes=moment_bytes
        + (2 * num_features * value_width * kv_heads if reads_half else 0)
        + _buffer_bytes(spec, pair, buffered, kv_heads)
        + _constant_bytes(spec, key_width, kv_heads),
        cache_bytes=4 * pair * length * kv_heads,
        cache_bytes_half=2 * pair * length * kv_heads,
        break_even=round(numbers / pair) if has_break_even else None,
        break_even_half=round(2 * numbers / pair) if has_break_even else None,
        step_operations=kv_heads * (4 * numbers + 2 * pair * buffered),
    )


def _moment_numbers(spec: AttentionSpec, key_width: int, value_width: int) -> int:
    """Numbers of one head's moments and mass; of each group its own, where keys leave at fixed positions."""
    if not spec.evicts:
        return total_width(key_width, stored_orders(spec)) * (value_width + 1)
    if not spec.has_tail:
        return 0
    moments, mass = (total_width(key_width, orders) for orders in (moment_orders(spec), mass_orders(spec)))
    return spec.kernel.centers * (moments * value_width + mass)


def num_buffered(spec: AttentionSpec, length: int) -> int:
    """Keys in the exact buffer after `length` tokens: all of a cache; else sinks, window, and 64 to 127 not folded yet.

    Where keys leave at fixed positions: sinks, window, heavy ones, and those that have come since.

    >>> [num_buffered(AttentionSpec(Polynomial((0, 1, 2))), length) for length in (100, 128, 191, 192)]
    [100, 64, 127, 64]
    """
    if not spec.is_constant_size:
        return length
    if spec.local is not None and spec.evicts:
        return spec.local.num_held(length)
    folded = max(0, length - (num_recent(spec) - 1) - RESERVE) // FOLD * FOLD
    sinks = spec.local.sinks if spec.local else 0
    return length - max(0, folded - sinks)


def _buffer_bytes(spec: AttentionSpec, pair: int, buffered: int, kv_heads: int) -> int:
    """Keys and values, log decay in fp64 and running gate of each head; one rank for all heads.

    Where keys leave at fixed positions: keys, values and ranks of each head, and what its slots have received.
    """
    if spec.local is not None and spec.evicts:
        return buffered * (4 * pair + 8 + (4 if spec.local.heavy else 0)) * kv_heads
    per_head = 4 * pair + (8 if spec.log_decay else 0) + (4 if spec.needs_running_gate else 0)
    return buffered * (per_head * kv_heads + 8)


def shared_bytes(spec: AttentionSpec, length: int) -> int:
    """What the sequences of a batch without padding keep once: count, boundary, and ranks that no head has for itself."""
    return 16 + (0 if spec.evicts else 8 * num_buffered(spec, length))


def _constant_bytes(spec: AttentionSpec, key_width: int, kv_heads: int) -> int:
    """Count and boundary once; decayed count, reference key, two log decays and the running gate sum a head."""
    if spec.evicts:
        each = 1 + (key_width if has_reference(spec) else 0)
        return 16 + 4 * kv_heads * (each * spec.kernel.centers if spec.has_tail else 1)
    per_head = 4 + (16 if spec.log_decay else 0) + (4 if spec.needs_running_gate else 0)
    return 16 + kv_heads * (per_head + (4 * key_width if spec.has_tail and spec.kernel.is_centered else 0))


@dataclass(frozen=True)
class Work:
    """One call of `attend` as the cost model sees it; heads are counted over the whole batch.

    `has_state`: earlier keys are read from moments. `hands_back`: the final state is asked for.
    """

    num_queries: int
    num_keys: int
    heads: int
    kv_heads: int
    key_width: int
    value_width: int
    causal: bool = True
    has_state: bool = False
    hands_back: bool = False
    chunk_size: int = BLOCK


# What the seconds of a form are counted in; a machine has one constant for each.
TERMS = (
    "parallel_call", "parallel_products", "parallel_scores", "parallel_spill", "parallel_pages",
    "chunked_call", "chunked_blocks", "chunked_products", "chunked_scores",
    "reads", "folds", "features",
)  # fmt: skip
# Scores beyond which what is made of them no longer fits a core's cache, and beyond which the allocator hands pages back to the
# system between calls, so that every one is faulted in again.
IN_CACHE, KEPT = 2**19, 2**21


def parallel_terms(spec: AttentionSpec, work: Work) -> dict[str, float]:
    """How often each constant is spent when every score is made at once.

    T S H scores, each (d + e) products and some passes; more where they outgrow the cache. A state that is read or handed back
    costs as in the chunked form.
    """
    scores = work.num_queries * work.num_keys * work.heads
    found = {
        "parallel_call": 1.0,
        "parallel_products": float(scores * (work.key_width + work.value_width)),
        "parallel_scores": float(scores * _passes(spec)),
        "parallel_spill": float(max(0, scores - IN_CACHE)),
        "parallel_pages": float(max(0, scores - KEPT)),
    }
    reads = work.num_queries * work.heads if work.has_state else 0
    folds = _num_far(spec, work, work.num_keys, RESERVE) * work.kv_heads if work.hands_back else 0
    return found | _state_terms(spec, work, reads, folds)


def chunked_terms(spec: AttentionSpec, work: Work) -> dict[str, float]:
    """How often each constant is spent when far keys are read from moments, block by block.

    A query reads F (e + 1) numbers, a key is folded into as many; scores only within a block and the window.
    """
    near = (work.chunk_size / 2 + (spec.local.window + spec.local.sinks if spec.local else 0)) if work.causal else 0
    scores = work.num_queries * near * work.heads
    found = {
        "chunked_call": 1.0,
        "chunked_blocks": float(-(-work.num_keys // work.chunk_size)),
        "chunked_products": float(scores * (work.key_width + work.value_width)),
        "chunked_scores": float(scores * _passes(spec)),
    }
    reads = work.num_queries if work.has_state else _num_far(spec, work, work.num_queries, work.chunk_size)
    folds = _num_far(spec, work, work.num_keys, work.chunk_size)
    return found | _state_terms(spec, work, reads * work.heads, folds * work.kv_heads)


def _num_far(spec: AttentionSpec, work: Work, number: int, block: int) -> int:
    """Keys that are folded, or queries that have folded keys: all but those of one block and the window."""
    window = spec.local.window + spec.local.sinks if spec.local else 0
    return max(0, number - block - window) if work.causal else number


def _state_terms(spec: AttentionSpec, work: Work, reads: int, folds: int) -> dict[str, float]:
    num_features = total_width(work.key_width, stored_orders(spec))
    each = num_features * (work.value_width + 1)
    return {
        "reads": float(reads * each),
        "folds": float(folds * each),
        "features": float((reads + folds) * num_features),
    }


def _passes(spec: AttentionSpec) -> int:
    """Times every score is touched: once an order, for the mean, for exact slots and for decay."""
    order = max(len(spec.kernel.dense or ()) - 1, 1)
    return 1 + order + 2 * spec.kernel.is_centered + 3 * (spec.local is not None) + spec.log_decay


def predicted_seconds(terms: Mapping[str, float], constants: Mapping[str, float]) -> float:
    """Seconds by the model: every term times the machine's constant for it.

    >>> predicted_seconds({"reads": 100.0}, {"reads": 0.5, "folds": 9.0})
    50.0
    """
    return sum(count * constants[name] for name, count in terms.items())
