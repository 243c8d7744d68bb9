"""Room for keys and values to come: appended in place, copied where a state branches.

A state with L keys sees the first L places. Whoever holds the last of them appends; a second continuation of the same state
finds the next place taken and copies first, so neither sees the other. Without gradients only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from termwise.attention.state import AttentionState


@dataclass(eq=False)
class Room:
    """Places for keys and values, the first `used` of them taken by some state."""

    key: Tensor  # (B, G, places, d)
    value: Tensor  # (B, G, places, e)
    used: int

    @property
    def places(self) -> int:
        return self.key.shape[2]

    def holds(self, key: Tensor, value: Tensor) -> bool:
        """Whether these tensors are the first places of this room, and no other state has gone on from them."""
        return (
            key.shape[2] == self.used
            and key.shape[:2] == self.key.shape[:2]
            and key.data_ptr() == self.key.data_ptr()
            and value.data_ptr() == self.value.data_ptr()
            and key.stride() == self.key.stride()
        )

    def owns(self, tensor: Tensor) -> bool:
        return tensor.data_ptr() in (self.key.data_ptr(), self.value.data_ptr())


def roomy(state: AttentionState, places: int) -> Room:
    """A room that ends with the state's keys: its own if nobody has gone on from there, else a copy with `places` places."""
    length = state.key.shape[2]
    room = state.room
    if room is not None and room.places > length and room.holds(state.key, state.value):
        return room
    batch, kv_heads, _, d = state.key.shape
    fresh = Room(
        state.key.new_empty(batch, kv_heads, places, d),
        state.value.new_empty(batch, kv_heads, places, state.value.shape[3]),
        length,
    )
    fresh.key[:, :, :length] = state.key
    fresh.value[:, :, :length] = state.value
    return fresh


def append(room: Room, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """One key and value (B, G, 1, .) in the next place; all keys and values up to it."""
    end = room.used + 1
    # `.data` has its own version counter: a graph that saved the earlier places does not see them changed.
    room.key.data[:, :, room.used : end] = key
    room.value.data[:, :, room.used : end] = value
    room.used = end
    return room.key[:, :, :end], room.value[:, :, :end]
