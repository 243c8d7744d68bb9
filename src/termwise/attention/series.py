"""The exponential's truncated series at many terms, where Horner's rule loses every digit."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def truncated_exponential(x: Tensor, num_terms: int) -> Tensor:
    """sum_{n < num_terms} x^n / n!, to 1e-12 of its exact value on [-60, 60] for 80 terms (computed in float64).

    For x >= 0 by Horner's rule. For x < 0 the terms alternate and cancel: 2 % wrong at -18, 6,000 times at -23; there
        sum = exp(x) - remainder,   remainder = x^N/N! (1 + x/(N+1) (1 + x/(N+2) (...)))
    Below -N the terms grow to the last one, which dominates: Horner's rule again.
    Differentiable: the derivative is the series one term shorter.
    """
    return _TruncatedExponential.apply(x, num_terms)


class _TruncatedExponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, num_terms: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.num_terms = num_terms
        return _evaluate(x.double(), num_terms).to(x.dtype)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, None]:
        (x,) = ctx.saved_tensors
        return (
            grad * truncated_exponential(x, ctx.num_terms - 1) if ctx.num_terms > 1 else torch.zeros_like(grad)
        ), None


def _evaluate(x: Tensor, num_terms: int) -> Tensor:
    is_direct = (x >= 0) | (x < -num_terms)
    above = torch.where(is_direct, x, torch.zeros_like(x))
    direct = torch.ones_like(x)
    for n in range(num_terms - 1, 0, -1):
        direct = 1 + direct * above / n
    below = torch.where(is_direct, torch.zeros_like(x), x)
    tail = torch.ones_like(x)
    for n in range(num_terms + 120, num_terms, -1):
        tail = 1 + tail * below / n
    sign = -1.0 if num_terms % 2 else 1.0
    log_first = num_terms * torch.log(below.abs().clamp(min=1e-300)) - math.lgamma(num_terms + 1)
    remainder = torch.where(below == 0, torch.zeros_like(x), sign * torch.exp(log_first) * tail)
    return torch.where(is_direct, direct, torch.exp(below) - remainder)
