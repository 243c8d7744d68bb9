"""Room for keys and values to come: appended in place, copied where a state branches.

A state with L keys sees the first L places. Whoever holds the last of them appends; a second continuation of the same state
finds the next place taken and copies first, so neither sees the other. Without gradients only.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from termwise.attention import reuse

if TYPE_CHECKING:
    from termwise.attention.state import AttentionState


@dataclass(eq=False)
class Room:
    """Places for keys and values, the first `used` of them taken by some state."""

    key: Tensor  # (B, G, places, d)
    value: Tensor  # (B, G, places, e)
    rank: Tensor  # (B or 1, places)
    used: int
    ready: Any = None  # arrays of the compiled step, see compiled_step.py
    known: Any = None  # the kind of step that was checked, see step.py
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: arrays would no longer be the memory of the tensors, and a lock is nobody else's."""
        return self.__dict__ | {"ready": None, "_lock": None}

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values, _lock=threading.Lock())

    def holds(self, state: AttentionState) -> bool:
        """Whether the state's buffer is the first places of this room, with another one behind them."""
        return (
            state.key.shape[2] < self.key.shape[2]
            and self.owns(state.key)
            and state.value.data_ptr() == self.value.data_ptr()
            and state.rank.data_ptr() == self.rank.data_ptr()
            and state.key.shape[:2] == self.key.shape[:2]
            and state.rank.shape[0] == self.rank.shape[0]
            and state.key.stride() == self.key.stride()
            # torch lets nobody write into a tensor of inference mode outside of it.
            and (torch.is_inference_mode_enabled() or not self.key.is_inference())
        )

    def owns(self, tensor: Tensor) -> bool:
        return tensor.data_ptr() in (self.key.data_ptr(), self.value.data_ptr(), self.rank.data_ptr())

    def claim(self, length: int) -> bool:
        """Take the place behind the first `length`, for one caller alone: False where somebody has gone on from there."""
        with self._lock:
            is_free = length == self.used < self.key.shape[2]
            self.used += is_free
            return is_free

    def upto(self, length: int) -> dict[str, Tensor]:
        """What a state of `length` buffered keys holds."""
        return {
            "key": self.key.narrow(2, 0, length),
            "value": self.value.narrow(2, 0, length),
            "rank": self.rank.narrow(1, 0, length),
        }

    def put(self, place: int, key: Tensor, value: Tensor, rank: Tensor) -> None:
        """One key and value (B, G, 1, .) and its rank (B or 1, 1) in a place that was claimed."""
        here = slice(place, place + 1)
        # `.data` has a version counter of its own: a graph that saved the earlier places does not see them changed.
        self.key.data[:, :, here] = key
        self.value.data[:, :, here] = value
        self.rank.data[:, here] = rank


def room_behind(state: AttentionState, places: int) -> Room:
    """A room with the state's keys in its first places and the next one claimed: its own, or a copy with `places` places."""
    length = state.key.shape[2]
    if state.room is not None and state.room.holds(state) and state.room.claim(length):
        return state.room
    batch, kv_heads, _, d = state.key.shape
    room = Room(
        reuse.empty(state.key, batch, kv_heads, places, d),
        reuse.empty(state.value, batch, kv_heads, places, state.value.shape[3]),
        torch.empty(state.rank.shape[0], places, dtype=torch.int64, device=state.rank.device),
        length + 1,
    )
    for whole, part in zip((room.key, room.value), (state.key, state.value), strict=True):
        whole[:, :, :length] = part
    room.rank[:, :length] = state.rank
    return room


def replaced(state: AttentionState, **changed: Any) -> AttentionState:
    """dataclasses.replace without running __init__ over all fields, which is a tenth of a small step."""
    fresh: AttentionState = object.__new__(type(state))
    fresh.__dict__.update(state.__dict__, **changed)
    return fresh
