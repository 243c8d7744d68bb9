"""The exact buffer of a state: which of its slots stay, and what it can take back.

Axes as in state.py.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from termwise.attention.stored import RESERVE, num_recent

if TYPE_CHECKING:
    from termwise.attention.state import AttentionState


def taken_back(state: AttentionState, num_tokens: int) -> AttentionState:
    """The state before the last `num_tokens` tokens. ValueError for more than the buffer reaches back."""
    target = state.count - num_tokens
    oldest_needed = (target - num_recent(state.spec) + 1).clamp(min=0)
    if (target < 0).any() or (state.boundary > oldest_needed).any():
        raise ValueError(
            f"rollback: {num_tokens} tokens cannot be taken back from {state.count.tolist()} keys; the buffer allows up to "
            f"{RESERVE} (a cache: all); keep an earlier state for more"
        )
    keep = (state.rank >= 0) & (state.rank < target[:, None])
    is_last = state.rank == target[:, None] - 1
    changed = {"count": target, **_decay_at(state, target, is_last), **_running_gate_at(state, is_last)}
    if state.reference is not None:
        changed["reference"] = torch.where(
            (target > 0)[:, None, None], state.reference, torch.zeros_like(state.reference)
        )
    return compress(dataclasses.replace(state, **changed), keep)


def _decay_at(state: AttentionState, target: Tensor, is_last: Tensor) -> dict[str, Any]:
    """Ages and total decay as they were when the key `is_last` (B or 1, L), of rank `target` - 1, was the last one."""
    if state.age is None or state.fold_age is None or state.total_log_decay is None:
        return {}
    undone = pick(state.age, is_last)
    # A sequence rolled back to nothing has no decay left; one with folded keys only is anchored at the last of them.
    undone = torch.where(
        is_last.any(dim=1, keepdim=True),
        undone,
        torch.where(target[:, None] > 0, state.fold_age, state.total_log_decay),
    )
    return {
        "age": state.age - undone[..., None],
        "fold_age": state.fold_age - undone,
        "total_log_decay": state.total_log_decay - undone,
    }


def _running_gate_at(state: AttentionState, is_last: Tensor) -> dict[str, Any]:
    if state.running_gate is None or state.running_total is None:
        return {}
    empty = torch.full_like(state.running_total, -torch.inf)
    return {"running_total": torch.where(is_last.any(dim=1, keepdim=True), pick(state.running_gate, is_last), empty)}


def compress(state: AttentionState, keep: Tensor) -> AttentionState:
    """The buffer reduced to the slots `keep` (B or 1, L), in order, empty slots in front where sequences differ."""
    if keep.shape[0] == 1:
        slots = keep.nonzero()[:, 1][None]
        if slots.shape[1] == keep.shape[1]:
            return state
        rank = state.rank.index_select(1, slots[0])
    else:
        length = int(keep.sum(dim=1).max()) if keep.numel() else 0
        if length == keep.shape[1]:
            return state if bool(keep.all()) else dataclasses.replace(state, rank=torch.where(keep, state.rank, -1))
        if length == 0:
            slots = keep.new_zeros(keep.shape[0], 0, dtype=torch.int64)
        else:
            slots = keep.to(torch.int8).argsort(dim=1, stable=True)[:, -length:]
        kept = keep.gather(1, slots)
        rank = torch.where(kept, state.rank.expand_as(keep).gather(1, slots), -1)
    changed: dict[str, Any] = {"rank": rank}
    for name in ("key", "value", "age", "running_gate"):
        tensor = getattr(state, name)
        if tensor is not None:
            changed[name] = _take(tensor, slots)
    return dataclasses.replace(state, **changed)


def _take(tensor: Tensor, slots: Tensor) -> Tensor:
    """Slots (B or 1, L') of a (B, G, L, ...) tensor."""
    if slots.shape[0] == 1:
        return tensor.index_select(2, slots[0])
    index = slots[:, None, :].expand(-1, tensor.shape[1], -1)
    if tensor.dim() == 4:
        index = index[..., None].expand(-1, -1, -1, tensor.shape[3])
    return tensor.gather(2, index)


def pick(tensor: Tensor, mask: Tensor) -> Tensor:
    """The one slot of each sequence where `mask` (B or 1, L) is true, from (B, G, L); zero where there is none."""
    return torch.where(mask[:, None, :], tensor, torch.zeros_like(tensor)).sum(dim=2)


def padded(state: AttentionState, length: int, num_given: int) -> AttentionState:
    """Empty slots in front, up to `length`; of queries up to `num_given`, where they are kept."""
    if state.spec.evicts:
        from termwise.attention.evicting_state import padded as padded_slots

        return padded_slots(state, length, num_given)
    missing = length - state.key.shape[2]
    if missing == 0:
        return state

    fills = {"key": 0.0, "value": 0.0, "age": 0.0, "running_gate": 0.0, "rank": -1}
    changed: dict[str, Any] = {}
    for name, fill in fills.items():
        tensor = getattr(state, name)
        if tensor is not None:
            front = (0, 0, missing, 0) if tensor.dim() == 4 else (missing, 0)
            changed[name] = torch.nn.functional.pad(tensor, front, value=fill)
    return dataclasses.replace(state, **changed)
