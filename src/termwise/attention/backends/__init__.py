"""Compiled twins of the hot loops, loaded on first use and taken only where they win: on a CPU.

`TERMWISE_COMPILED=off` in the environment keeps to the torch forms, `=uncached` compiles anew in every process.
"""

from __future__ import annotations

import torch
from torch import Tensor

from termwise.attention.backends.compiled import Loops, compiled_loops
from termwise.attention.safe import is_transformed

__all__ = ["Loops", "compiled_loops", "loops_for", "wants_gradient"]


def loops_for(*tensors: Tensor | None) -> Loops | None:
    """The compiled loops, if they serve these tensors: on a CPU, all fp32 or all fp64."""
    given = [t for t in tensors if t is not None]
    kind = given[0].dtype
    if kind is not torch.float32 and kind is not torch.float64:
        return None
    if any(t.device.type != "cpu" or t.dtype is not kind for t in given):
        return None
    return None if is_transformed() else compiled_loops()


def wants_gradient(*tensors: Tensor | None) -> bool:
    """Whether a result of these tensors would carry a gradient."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
