"""Where a model computes: the device and the number type behind the names a person gives."""

from __future__ import annotations

import re

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def usable_device(name: str) -> torch.device:
    """The device of a name; "auto" is a CUDA card where there is one. ValueError for an unknown name or what is not here.

    >>> usable_device("cpu")
    device(type='cpu')
    """
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
        raise ValueError(f"device={name!r}; allowed are auto, cpu, cuda, cuda:1 (any number), mps")
    num_cards = torch.cuda.device_count()
    if name == "auto":
        return torch.device("cuda" if num_cards else "cpu")
    if name.startswith("cuda") and int(name.partition(":")[2] or 0) >= num_cards:
        raise ValueError(f"device={name!r}: {num_cards} CUDA cards are usable here; 'auto' takes what is")
    if name == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device='mps': not usable here; 'auto' takes what is")
    return torch.device(name)


def named_dtype(name: str | None) -> torch.dtype | None:
    """The number type of a name, None for None and "auto". ValueError for any other name."""
    if name not in (None, "auto", *DTYPES):
        raise ValueError(f"dtype={name!r}; allowed are auto, {', '.join(DTYPES)}")
    return DTYPES.get(name or "auto")
