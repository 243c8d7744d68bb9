"""Bytes of a converted model's states, of the cache it replaces, and the window that costs as much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from termwise.attention.cost import cost
from termwise.attention.kernels import Drop
from termwise.attention.spec import AttentionSpec, Local
from termwise.attention.state import FOLD
from termwise.models.config import TermwiseConfig
from termwise.models.groups import HeadGroup

Layers = Sequence[Sequence[HeadGroup]]


@dataclass(frozen=True)
class Sizes:
    """Bytes of one sequence, over all layers, when it holds most up to a context. States are fp32 whatever the model's type is."""

    context: int
    state: int
    cache: int  # of the original, fp32
    cache_half: int  # of the original, bfloat16


def sizes(config: TermwiseConfig, layers: Layers, context: int) -> Sizes:
    """What one sequence keeps at most under these specs up to `context` tokens, and what the original's cache takes there."""
    state = sum(_state(group, config.head_dim, context) for layer in layers for group in layer)
    pairs = config.num_hidden_layers * config.num_key_value_heads * context * 2 * config.head_dim
    return Sizes(context, state, 4 * pairs, 2 * pairs)


def window_of_equal_bytes(layers: Layers, head_dim: int, context: int) -> list[list[HeadGroup]] | None:
    """The same heads with far keys dropped and a window as long as the bytes of their states allow; exact heads stay.

    Keys leave as often as they do from the head's own slots, so that a window of one key always fits. None where a head's state takes
    as much as all keys of the context: no window is shorter then.
    """
    found = []
    for layer in layers:
        groups = []
        for group in layer:
            spec = group.spec if not group.spec.is_constant_size else _window(group, head_dim, context)
            if spec is None:
                return None
            groups.append(HeadGroup(group.kv_heads, spec))
        found.append(groups)
    return found


def slots_alone(layers: Layers) -> list[list[HeadGroup]] | None:
    """The same slots with far keys dropped. None where no head has a tail beside its slots."""
    found = [
        [
            HeadGroup(group.kv_heads, AttentionSpec(Drop(), local=group.spec.local) if _has_both(group) else group.spec)
            for group in layer
        ]
        for layer in layers
    ]
    return found if any(_has_both(group) for layer in layers for group in layer) else None


def _has_both(group: HeadGroup) -> bool:
    return group.spec.local is not None and group.spec.has_tail


def _state(group: HeadGroup, head_dim: int, context: int) -> int:
    """Exact buffers are fullest just before their keys leave, once in FOLD tokens or as often as the slots say."""
    local = group.spec.local
    every = max(FOLD, local.evict_every or 1) if local else FOLD
    lengths = range(max(1, context - every + 1), context + 1)
    return max(cost(group.spec, head_dim, head_dim, n, kv_heads=len(group.kv_heads)).state_bytes for n in lengths)


def _window(group: HeadGroup, head_dim: int, context: int) -> AttentionSpec | None:
    """The longest window of at most the group's bytes, with its sinks; None where that is the context."""
    allowed, own = _state(group, head_dim, context), group.spec.local
    sinks, every = (own.sinks, own.evict_every) if own else (0, None)

    def spec(window: int) -> AttentionSpec:
        return AttentionSpec(Drop(), local=Local(window, sinks, evict_every=every))

    low, high = 1, context
    while low < high:
        middle = (low + high + 1) // 2
        fits = _state(HeadGroup(group.kv_heads, spec(middle)), head_dim, context) <= allowed
        low, high = (middle, high) if fits else (low, middle - 1)
    return None if low + sinks >= context else spec(low)
