"""The state before any key."""

from __future__ import annotations

import torch
from torch import Tensor

from termwise.attention.monomials import total_width
from termwise.attention.spec import AttentionSpec
from termwise.attention.state import AttentionState
from termwise.attention.stored import stored_orders


def empty_state(
    spec: AttentionSpec,
    batch: int,
    kv_heads: int,
    key_width: int,
    value_width: int,
    scale: float,
    slot_scale: float,
    like: Tensor,
    with_moments: bool = True,
) -> AttentionState:
    """The state before any key; `like` gives device and accumulation type."""
    if spec.evicts:
        return _empty_evicting(spec, batch, kv_heads, key_width, value_width, scale, slot_scale, like)
    orders = stored_orders(spec) if with_moments else ()
    num_features = total_width(key_width, orders)
    return AttentionState(
        spec=spec, scale=scale, slot_scale=slot_scale,
        count=_whole(like, 1), boundary=_whole(like, 1),
        key=like.new_zeros(batch, kv_heads, 0, key_width), value=like.new_zeros(batch, kv_heads, 0, value_width),
        rank=_whole(like, 1, 0),
        moments=like.new_zeros(batch, kv_heads, num_features, value_width) if orders else None,
        mass=like.new_zeros(batch, kv_heads, num_features) if orders else None,
        decayed_count=like.new_zeros(batch, kv_heads),
        reference=like.new_zeros(batch, kv_heads, key_width) if spec.has_tail and spec.kernel.is_centered else None,
        age=None, fold_age=None, total_log_decay=None,
        running_gate=like.new_zeros(batch, kv_heads, 0) if spec.needs_running_gate else None,
        running_total=like.new_full((batch, kv_heads), -torch.inf) if spec.needs_running_gate else None,
    )  # fmt: skip


def _empty_evicting(
    spec: AttentionSpec, batch: int, kv_heads: int, key_width: int, value_width: int, scale: float, slot_scale: float,
    like: Tensor,
) -> AttentionState:  # fmt: skip
    from termwise.attention.tail import empty_tail

    tail = empty_tail(spec, batch, kv_heads, key_width, value_width, scale, like) if spec.has_tail else None
    has_heavy = spec.local is not None and spec.local.heavy > 0
    return AttentionState(
        spec=spec, scale=scale, slot_scale=slot_scale,
        count=_whole(like, 1), boundary=_whole(like, 1),
        key=like.new_zeros(batch, kv_heads, 0, key_width), value=like.new_zeros(batch, kv_heads, 0, value_width),
        rank=_whole(like, batch, kv_heads, 0),
        moments=None if tail is None else tail.moments, mass=None if tail is None else tail.mass,
        decayed_count=like.new_zeros(batch, kv_heads) if tail is None else tail.count,
        reference=None if tail is None else tail.reference,
        age=None, fold_age=None, total_log_decay=None, running_gate=None, running_total=None,
        received=like.new_zeros(batch, kv_heads, 0) if has_heavy else None,
    )  # fmt: skip


def _whole(like: Tensor, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64, device=like.device)
