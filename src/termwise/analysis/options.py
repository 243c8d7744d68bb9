"""What a kv head may keep: all keys, exact slots alone, or slots with sums over the far keys; and what each costs.

Bytes are those of one sequence at the context, at their maximum: slots in the precision the cache is served in, received
weights and sums in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from termwise.attention.cost import cost
from termwise.attention.kernels import Drop, Exp, Polynomial
from termwise.attention.spec import AttentionSpec, Local
from termwise.attention.tail import has_reference

Kind = Literal["exact", "slots", "mean", "centers"]
CacheDtype = Literal["bfloat16", "float32"]
SLOT_BYTES: dict[str, int] = {"bfloat16": 2, "float32": 4}

EXACT = AttentionSpec()
EVICT_EVERY = 64
SINKS = 4
LEAST_WINDOW = 8
# Shares of the context that the options of a head aim at, in bytes of the cache.
SHARES = (1 / 32, 1 / 20, 1 / 12, 1 / 7, 1 / 4, 0.4)
# Of the slots beyond the sinks, how many are the window; the others go to the keys of most weight.
WINDOWS = (1.0, 0.75, 0.5)
WINDOWS_WITH_SUMS = (0.6,)
# Numbers of groups of sums of order 0; those whose bytes, without the eviction's own slack, are such a part of an option.
CENTERS = (4, 8, 16, 32, 64, 128, 256, 512)
GROUPS = (0.07, 0.35)
# The further orders, with their numbers of groups; taken where their sums are at most MOST_SUMS of those bytes.
ORDERS = (((0, 1), 1), ((0, 1), 16), ((0, 1, 2), 1))
MOST_SUMS = 0.5


def kind_of(spec: AttentionSpec) -> Kind:
    """Which of the four ways to keep keys a spec is. ValueError for any other spec.

    >>> kind_of(AttentionSpec()), kind_of(uniform(4096, 0.25))
    ('exact', 'slots')
    """
    if spec.local is None and isinstance(spec.kernel, Exp):
        return "exact"
    if spec.local is not None and isinstance(spec.kernel, Drop):
        return "slots"
    if spec.local is not None and isinstance(spec.kernel, Polynomial) and spec.kernel.is_centered:
        return "mean" if spec.kernel.centers == 1 else "centers"
    raise ValueError(
        f"{spec.short_name} is no option of a plan; these are exact, slots, or slots with sums around means"
    )


def num_slots(spec: AttentionSpec) -> int:
    """Exact slots at their most, just before keys leave."""
    local = spec.local
    assert local is not None
    return local.window + local.sinks + local.heavy + (local.evict_every or 1) - 1


def served_bytes(spec: AttentionSpec, context: int, key_width: int, value_width: int, cache_dtype: CacheDtype) -> int:
    """Bytes of one kv head of one sequence at `context`, at their maximum.

    Exact, or any other kernel without finite features: keys and values of all tokens, 2 or 4 bytes a number. Otherwise those of
    all slots, with 4 for the received weight where there are heavy ones, and the sums: 4 m (F e + F' + 1), F monomials of the
    orders times e values, F' of them alone and the count of each of m groups; one group keeps its reference key, several have
    theirs in the model.

    >>> served_bytes(AttentionSpec(), 4096, 64, 64, "bfloat16")
    1048576
    """
    pair = (key_width + value_width) * SLOT_BYTES[cache_dtype]
    if not spec.is_constant_size:
        return context * pair
    slots = 0 if spec.local is None else min(num_slots(spec), context) * (pair + (4 if spec.local.heavy else 0))
    return slots + (_sums(spec, key_width, value_width) if spec.has_tail else 0)


def _sums(spec: AttentionSpec, key_width: int, value_width: int) -> int:
    """Moments and mass, the count of each group, and the reference key of a single one."""
    own_reference = key_width if has_reference(spec) and spec.kernel.centers == 1 else 0
    return cost(spec, key_width, value_width, 1).moment_bytes + 4 * (spec.kernel.centers + own_reference)


def uniform(context: int, share: float) -> AttentionSpec:
    """The last keys and 4 sinks, `share` of the context: what every head keeps in the plainest baseline.

    >>> uniform(4096, 0.25).short_name
    'drop+w1020s4'
    """
    return AttentionSpec(Drop(), local=Local(max(1, int(context * share) - SINKS), SINKS))


def options(context: int, key_width: int, value_width: int, cache_dtype: CacheDtype) -> tuple[AttentionSpec, ...]:
    """Every option that costs less than keeping all keys, and the exact one, first.

    >>> options(4096, 64, 64, "bfloat16")[:2] == (EXACT, AttentionSpec(Drop(), local=Local(8, 4, evict_every=64)))
    True
    """
    pair = (key_width + value_width) * SLOT_BYTES[cache_dtype]
    found = [AttentionSpec(Drop(), local=Local(LEAST_WINDOW, SINKS, evict_every=EVICT_EVERY))]
    for share in SHARES:
        free = int(share * context) * pair - (EVICT_EVERY - 1) * (pair + 4)
        found.extend(_within(free, pair, key_width, value_width))
    whole = context * pair
    cheaper = [one for one in found if served_bytes(one, context, key_width, value_width, cache_dtype) < whole]
    return tuple(dict.fromkeys([EXACT, *cheaper]))


def _within(free: int, pair: int, key_width: int, value_width: int) -> Iterator[AttentionSpec]:
    """Options of about `free` bytes besides the slack of the eviction: slots alone, then fewer of them beside sums."""
    yield from (AttentionSpec(Drop(), local=local) for local in _split(free, pair, WINDOWS))
    for kernel, sums in _kernels(key_width, value_width):
        least, most = GROUPS if kernel.orders == (0,) else (0.0, MOST_SUMS)
        if least * free <= sums <= most * free:
            yield from (AttentionSpec(kernel, local=local) for local in _split(free - sums, pair, WINDOWS_WITH_SUMS))


def _kernels(key_width: int, value_width: int) -> Iterator[tuple[Polynomial, int]]:
    """Every kind of sums with its bytes."""
    local = Local(1, evict_every=EVICT_EVERY)
    for orders, centers in (*(((0,), centers) for centers in CENTERS), *ORDERS):
        kernel = Polynomial(orders, center="mean", centers=centers)
        yield kernel, _sums(AttentionSpec(kernel, local=local), key_width, value_width)


def _split(free: int, pair: int, windows: tuple[float, ...]) -> Iterator[Local]:
    """Slots within `free` bytes, shared between the window and heavy keys in several ways."""
    for share in windows:
        slots = free // (pair + (4 if share < 1 else 0)) - SINKS
        if slots >= LEAST_WINDOW:
            window = max(LEAST_WINDOW, int(slots * share))
            yield Local(window, SINKS, heavy=slots - window, evict_every=EVICT_EVERY)
