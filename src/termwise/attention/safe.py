"""Numerically safe helpers. Each says why the obvious form fails."""

from __future__ import annotations

import torch
from torch import Tensor

FADED = 1e8  # times the smallest normal number


def norm(x: Tensor) -> Tensor:
    """Euclidean length over the last axis, kept. Its gradient at a zero row is zero; that of `x.norm()` is NaN or arbitrary."""
    square = x.square().sum(dim=-1, keepdim=True)
    is_zero = square == 0
    return torch.where(is_zero, torch.zeros_like(square), torch.where(is_zero, torch.ones_like(square), square).sqrt())


def unit(x: Tensor) -> Tensor:
    """x / |x| over the last axis; a zero row stays zero with zero gradient (0/0 otherwise)."""
    length = norm(x)
    is_zero = length == 0
    return torch.where(is_zero, torch.zeros_like(x), x / torch.where(is_zero, torch.ones_like(length), length))


def away_from_zero(x: Tensor, floor: Tensor) -> Tensor:
    """sign(x) * max(|x|, floor), with sign(0) = 1: a denominator that cannot vanish."""
    signed_floor = torch.where(x < 0, -floor, floor)
    return torch.where(x.abs() < floor, signed_floor, x)


def is_faded(mass: Tensor) -> Tensor:
    """Whether a decayed mass has faded to nothing: so small that a mean over it, or its gradient, would overflow."""
    return mass < FADED * torch.finfo(mass.dtype).tiny


def in_type(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """`.to` takes its time even where it has nothing to do."""
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def is_transformed() -> bool:
    """Whether torch follows what is computed: forward-mode derivatives, tracing. Writing into buffers would be lost on it."""
    has_tangents = getattr(torch.autograd.forward_ad, "_current_level", -1) >= 0
    return has_tangents or torch.jit.is_tracing() or torch.compiler.is_compiling()
