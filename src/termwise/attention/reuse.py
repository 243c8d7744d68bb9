"""Memory of tensors that nobody holds any more, used again: new memory costs a page fault for every 4 KiB of it.

A state is never changed, so every fold makes new moments; with the state before it, the old ones soon die. Their memory then
serves the next fold. It comes back only when torch has let go of the storage, and with it of every view.
"""

from __future__ import annotations

import math
import weakref
from collections import deque

import numpy as np
import torch
from torch import Tensor

SMALLEST = 2**17  # bytes; below, the system's own allocator reuses memory by itself
LARGEST = 2**27  # bytes of dead memory kept, the oldest goes first
ALIGNED = 64  # bytes: a cache line, so that no read of a vector touches two
_dead: deque[np.ndarray] = deque()


def empty(like: Tensor, *shape: int) -> Tensor:
    """`like.new_empty(shape)`, on a CPU in memory that was used before, if there is some of this size."""
    size = math.prod(shape) * like.element_size()
    if like.device.type != "cpu" or not SMALLEST <= size <= LARGEST:
        return like.new_empty(shape)
    memory = _claimed(size + ALIGNED)
    start = -memory.ctypes.data % ALIGNED
    # The storage holds this very view, alive as long as any tensor upon it.
    view = memory[start : start + size]
    weakref.finalize(view, _give_back, memory).atexit = False
    return torch.from_numpy(view).view(like.dtype).view(shape)


def _claimed(size: int) -> np.ndarray:
    """Memory that is the caller's alone. Taking from a deque is atomic: nothing is locked, whichever thread a tensor dies in."""
    for _ in range(len(_dead)):
        try:
            memory = _dead.popleft()
        except IndexError:
            break
        if memory.nbytes == size:
            return memory
        _dead.append(memory)
    return np.empty(size, dtype=np.uint8)


def _give_back(memory: np.ndarray) -> None:
    _dead.append(memory)
    while sum(one.nbytes for one in tuple(_dead)) > LARGEST:
        _dead.popleft()
