"""What a kv head may keep: all keys, exact slots alone, or slots with sums over the far keys; and what each costs.

Bytes are those of one sequence at the context, at their maximum: slots in the precision the cache is served in, received
weights and sums in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from termwise.attention.kernels import Drop, Polynomial
from termwise.attention.monomials import total_width
from termwise.attention.spec import AttentionSpec, Local

Kind = Literal["exact", "slots", "mean", "centers"]
CacheDtype = Literal["bfloat16", "float32"]
SLOT_BYTES: dict[str, int] = {"bfloat16": 2, "float32": 4}

EVICT_EVERY = 64
SINKS = 4
LEAST_WINDOW = 8
# Shares of the context that the options of a head aim at, in bytes of the cache.
SHARES = (1 / 32, 1 / 20, 1 / 12, 1 / 8, 3 / 16, 0.27, 0.4)
# Of the slots beyond the sinks, how many are the window; the others go to the keys of most weight.
WINDOWS = (1.0, 0.8, 0.6, 0.4)
WINDOWS_WITH_SUMS = (0.75, 0.5)
# Of the bytes that are not the eviction's own slack, how many go to groups of sums of order 0.
GROUPS = (0.08, 0.2, 0.4)
# The further orders, with their numbers of groups; taken where their sums are at most this share of those bytes.
ORDERS = (((0, 1), 1), ((0, 1), 16), ((0, 1, 2), 1))
MOST_SUMS = 0.6


@dataclass(frozen=True)
class Option:
    """One way to keep the keys of a kv head. `window` 0: all of them. `evict_every` None: keys leave one at a time.

    `orders` empty: far keys are dropped; else they are summed around their mean, or in `centers` groups.
    """

    window: int = 0
    sinks: int = 0
    heavy: int = 0
    evict_every: int | None = EVICT_EVERY
    orders: tuple[int, ...] = ()
    centers: int = 1

    @property
    def kind(self) -> Kind:
        """Which of the four ways it is."""
        if not self.window:
            return "exact"
        return "slots" if not self.orders else "mean" if self.centers == 1 else "centers"

    @property
    def spec(self) -> AttentionSpec:
        """The option as a point of the algebra."""
        if self.kind == "exact":
            return AttentionSpec()
        local = Local(self.window, self.sinks, heavy=self.heavy, evict_every=self.evict_every)
        if self.kind == "slots":
            return AttentionSpec(Drop(), local=local)
        return AttentionSpec(Polynomial(self.orders, center="mean", centers=self.centers), local=local)

    @property
    def num_slots(self) -> int:
        """Exact slots at their most, just before keys leave."""
        return self.window + self.sinks + self.heavy + (self.evict_every or 1) - 1

    def nbytes(self, context: int, key_width: int, value_width: int, cache_dtype: CacheDtype) -> int:
        """Bytes of one kv head of one sequence at `context`, at their maximum.

        Exact: 2 or 4 bytes for each number of `context` keys and values. Otherwise of all slots, with 4 for the received weight
        where there are heavy ones, and 4 m (F e + F' + 1) for m groups of sums: F monomials of the orders times e values, F' of
        them alone, the count; one group keeps its reference key, several have theirs in the model.
        """
        pair = (key_width + value_width) * SLOT_BYTES[cache_dtype]
        if self.kind == "exact":
            return context * pair
        slots = min(self.num_slots, context) * (pair + (4 if self.heavy else 0))
        return slots + (_sums(self.orders, self.centers, key_width, value_width) if self.orders else 0)


EXACT = Option()


def uniform(context: int, share: float) -> Option:
    """The last keys and 4 sinks, `share` of the context: what every head keeps in the plainest baseline.

    >>> uniform(4096, 0.25).window
    1020
    """
    return Option(window=max(1, int(context * share) - SINKS), sinks=SINKS, evict_every=None)


def options(context: int, key_width: int, value_width: int, cache_dtype: CacheDtype) -> tuple[Option, ...]:
    """Every option that costs less than keeping all keys, the exact one first.

    >>> len(options(4096, 64, 64, "bfloat16")) > 50
    True
    """
    whole = EXACT.nbytes(context, key_width, value_width, cache_dtype)
    pair = (key_width + value_width) * SLOT_BYTES[cache_dtype]
    found = [EXACT, *_smallest()]
    for share in SHARES:
        found.extend(_of_size(int(share * context) * pair, pair, key_width, value_width))
    cheaper = [one for one in found[1:] if one.nbytes(context, key_width, value_width, cache_dtype) < whole]
    return tuple(dict.fromkeys([EXACT, *cheaper]))


def _smallest() -> Iterator[Option]:
    yield Option(window=LEAST_WINDOW, sinks=SINKS)


def _of_size(size: int, pair: int, key_width: int, value_width: int) -> Iterator[Option]:
    """Options of about `size` bytes: slots alone, then fewer of them beside sums."""
    free = size - EVICT_EVERY * (pair + 4)
    yield from _split(free, pair, WINDOWS, (), 1)
    group = _sums((0,), 2, key_width, value_width) // 2
    groups = [((0,), round(share * free / group)) for share in GROUPS]
    for orders, centers in [*(one for one in groups if one[1] > 1), *ORDERS]:
        left = free - _sums(orders, centers, key_width, value_width)
        if left >= (1 - MOST_SUMS) * free:
            yield from _split(left, pair, WINDOWS_WITH_SUMS, orders, centers)


def _sums(orders: tuple[int, ...], centers: int, key_width: int, value_width: int) -> int:
    """Bytes of the sums over far keys, fp32: m (F e + F' + 1), and the reference key of a single group.

    >>> _sums((0,), 2, 64, 64), _sums((0, 1, 2), 1, 64, 64)
    (1040, 557964)
    """
    moments = total_width(key_width, orders) * value_width
    alone = total_width(key_width, tuple(range(max(orders[-1] + 1, 2))))
    return 4 * centers * (moments + alone + 1 + (key_width if centers == 1 else 0))


def _split(free: int, pair: int, windows: tuple[float, ...], orders: tuple[int, ...], centers: int) -> Iterator[Option]:
    """Slots within `free` bytes, shared between the window and heavy keys in several ways."""
    for share in windows:
        each = pair + (4 if share < 1 else 0)
        slots = free // each - SINKS
        if slots >= LEAST_WINDOW:
            window = max(LEAST_WINDOW, int(slots * share))
            yield Option(window, SINKS, slots - window, orders=orders, centers=centers)
