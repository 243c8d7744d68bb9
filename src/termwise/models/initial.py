"""Weights before training: each parameter from its own generator, so that variants share every weight they have in common."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from termwise.models.convolution import ShortConvolution
from termwise.models.layers import Attention, Gate, GroupParameters


def generator_for(seed: int, name: str) -> torch.Generator:
    """A generator that depends on the seed and the parameter's name alone.

    >>> int(torch.randint(100, (), generator=generator_for(0, "a"))) == int(torch.randint(100, (), generator=generator_for(0, "a")))
    True
    """
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def initial_value(module: nn.Module, leaf: str, parameter: Tensor, std: float, generator: torch.Generator) -> Tensor:
    """The starting value of `module.leaf`: Llama's normal weights, ones in norms, zeros in biases; a slow decay; U(-1, 1)/sqrt(K) in convolutions."""
    shape = parameter.shape
    if isinstance(module, ShortConvolution):
        bound = shape[-1] ** -0.5
        return torch.empty(shape).uniform_(-bound, bound, generator=generator)
    if isinstance(module, Gate) and leaf == "bias":
        return torch.full(shape, module.start)
    if isinstance(module, nn.RMSNorm) or leaf == "norm_weight":
        return torch.ones(shape)
    if leaf == "bias" or (isinstance(module, (Attention, GroupParameters)) and leaf in ("norm_bias", "count_exponent")):
        return torch.zeros(shape)
    return torch.empty(shape).normal_(0.0, std, generator=generator)
