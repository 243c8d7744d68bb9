"""Compiled twins of the hot loops, loaded on first use and taken only where they win (a CPU, no gradients).

`TERMWISE_COMPILED=off` in the environment keeps to the torch forms, `=uncached` compiles anew in every process.
"""

from __future__ import annotations

import torch
from torch import Tensor

from termwise.attention.backends.compiled import Loops, compiled_loops

__all__ = ["Loops", "compiled_loops", "loops_for"]


def loops_for(*tensors: Tensor | None) -> Loops | None:
    """The compiled loops, if they serve these tensors: on a CPU, of one width (fp32 or fp64), no gradient asked for."""
    given = [t for t in tensors if t is not None]
    kind = given[0].dtype
    if kind is not torch.float32 and kind is not torch.float64:
        return None
    records = torch.is_grad_enabled()
    for t in given:
        if t.device.type != "cpu" or t.dtype is not kind or (records and t.requires_grad):
            return None
    return None if torch.compiler.is_compiling() else compiled_loops()
