"""What cancels: rows whose divisor does, so that float32 cannot promise their digits, and gradients that are zero by the algebra."""

from __future__ import annotations

import torch
from torch import Tensor

from termwise.attention.kernels import Drop, Exp
from termwise.attention.normalizers import L2, RMS, Layer, RowSum
from tests.attention import oracle


def divisor_share(arguments: dict, spec) -> Tensor:
    """(B, T, H): how much of itself the divisor of each row keeps, 1 where nothing is divided by what may cancel.

    Under a row sum |Z| against the larger of sum |w| and the decayed count sum a; under a vector norm |U| against the same of |v|.
    """
    query, key, value, log_decay = (arguments.get(n) for n in ("query", "key", "value", "log_decay"))
    if isinstance(spec.kernel, (Exp, Drop)) or not isinstance(spec.normalizer, (RowSum, L2, RMS, Layer)):
        return torch.ones(query.shape[:3], dtype=torch.float64)
    shares = torch.empty(query.shape[:3], dtype=torch.float64)
    for b in range(query.shape[0]):
        for h in range(query.shape[2]):
            g = oracle._kv(h, query, key)
            decay = None if log_decay is None else log_decay[b, :, g]
            shares[b, :, h] = _share(
                query[b, :, h].double(), key[b, :, g].double(), value[b, :, g].double(), spec, decay
            )
    return shares


def _share(query: Tensor, key: Tensor, value: Tensor, spec, log_decay: Tensor | None) -> Tensor:
    length = query.shape[0]
    visible = torch.ones(length, length, dtype=torch.bool).tril()
    log_a = (
        torch.zeros(length, length, dtype=torch.float64)
        if log_decay is None
        else oracle._decay(log_decay.double(), length)
    )
    a = torch.where(visible, log_a, torch.full_like(log_a, -torch.inf)).exp()
    slots = oracle._slots(spec, visible, visible[-1])
    near, far, _, count = oracle._weights(spec, query, key, None, query.shape[1], a, log_a, visible, slots)
    weights, count = near + far, count[:, 0]
    if isinstance(spec.normalizer, RowSum):
        return weights.sum(dim=1).abs() / torch.maximum(weights.abs().sum(dim=1), count)
    sizes = value.norm(dim=1)
    mean_size = (a @ sizes) / a.sum(dim=1)
    return (weights @ value).norm(dim=1) / torch.maximum(weights.abs() @ sizes, count * mean_size)


def cancelling_gradients(spec) -> set[str]:
    """The tensors handed in whose gradient is zero up to a norm's eps: a factor that the canonical spec does without."""
    return {"output_gate"} if spec.output_gate and spec.canonical().output_gate is None else set()


def is_forced(spec) -> bool:
    """Whether weights of both signs share a row sum."""
    return isinstance(spec.normalizer, RowSum) and getattr(spec.kernel, "allow_negative", False)
