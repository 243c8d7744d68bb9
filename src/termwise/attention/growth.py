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
from torch.nn.functional import pad

from termwise.attention import reuse

if TYPE_CHECKING:
    from termwise.attention.state import AttentionState


@dataclass(eq=False)
class Room:
    """Places for keys and values, the first `used` of them taken by some state."""

    key: Tensor  # (B, G, places, d)
    value: Tensor  # (B, G, places, e)
    rank: Tensor  # (B or 1, places), or (B, G, places)
    used: int
    received: Tensor | None = (
        None  # (B, G, places), given (B, G, rows, places), given_rank (B or 1, rows): evicting_state.py
    )
    given: Tensor | None = None
    given_rank: Tensor | None = None
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
            and state.rank.shape[:-1] == self.rank.shape[:-1]
            and _follows(state.given, self.given)
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

    def upto(self, length: int, num_given: int = 0) -> dict[str, Tensor]:
        """What a state of `length` buffered keys holds, and of what so many queries have given them."""
        found = {
            "key": self.key.narrow(2, 0, length),
            "value": self.value.narrow(2, 0, length),
            "rank": self.rank.narrow(-1, 0, length),
        }
        if self.received is not None and self.given is not None and self.given_rank is not None:
            found["received"] = self.received.narrow(2, 0, length)
            found["given"] = self.given.narrow(2, 0, num_given).narrow(3, 0, length)
            found["given_rank"] = self.given_rank.narrow(1, 0, num_given)
        return found

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
        state.rank.new_empty(*state.rank.shape[:-1], places),
        length + 1,
    )
    for whole, part in zip((room.key, room.value), (state.key, state.value), strict=True):
        whole[:, :, :length] = part
    room.rank[..., :length] = state.rank
    _note(room, state, places - length)
    return room


def _note(room: Room, state: AttentionState, num_more: int) -> None:
    """What queries have given the keys, with zeros behind it: later keys have been given nothing."""
    if state.received is None or state.given is None or state.given_rank is None:
        return
    after = room.key.shape[2] - state.key.shape[2]
    room.received = pad(state.received, (0, after))
    room.given = pad(state.given, (0, after, 0, num_more))
    room.given_rank = pad(state.given_rank, (0, num_more))


def _follows(part: Tensor | None, whole: Tensor | None) -> bool:
    """Whether the rows of a state are the first ones of the room's, with another one behind them."""
    if part is None or whole is None:
        return part is None and whole is None
    # A part without rows may stand anywhere.
    is_there = part.numel() == 0 or part.data_ptr() == whole.data_ptr()
    return is_there and part.stride()[:3] == whole.stride()[:3] and part.shape[2] < whole.shape[2]


def replaced(state: AttentionState, **changed: Any) -> AttentionState:
    """dataclasses.replace without running __init__ over all fields, which is a tenth of a small step."""
    fresh: AttentionState = object.__new__(type(state))
    fresh.__dict__.update(state.__dict__, **changed)
    return fresh
