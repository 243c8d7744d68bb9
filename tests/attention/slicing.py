"""Arguments of `attend` cut along time or batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

PER_TOKEN = (
    "query",
    "key",
    "value",
    "input_gate",
    "output_gate",
    "log_decay",
    "key_mask",
    "query_mask",
    "running_gate_score",
)


def _each(arguments: dict, change: Callable[[Tensor], Tensor]) -> dict:
    out = {
        name: change(t) if name in PER_TOKEN and t is not None else t
        for name, t in arguments.items()
        if name != "parameters"
    }
    learned = {name: change(t) if name in PER_TOKEN else t for name, t in arguments.get("parameters", {}).items()}
    return {**out, "parameters": learned}


def tokens(arguments: dict, start: int, stop: int) -> dict:
    return _each(arguments, lambda t: t[:, start:stop])


def rows(arguments: dict, start: int, stop: int) -> dict:
    return _each(arguments, lambda t: t[start:stop])


def permuted(arguments: dict, order: Tensor) -> dict:
    return _each(arguments, lambda t: t[order])


def detached(arguments: dict) -> dict:
    return _each(arguments, lambda t: t.detach().clone())


def placed(arguments: dict, places: list[Tensor], length: int, fill: float) -> dict:
    """Row b's tokens at positions `places[b]` of rows of `length`, everything else `fill` (false in masks)."""

    def one(t: Tensor) -> Tensor:
        out = torch.full((t.shape[0], length, *t.shape[2:]), False if t.dtype == torch.bool else fill, dtype=t.dtype)
        return torch.stack([out[b].index_copy(0, place, t[b, : len(place)]) for b, place in enumerate(places)])

    return _each(arguments, one)
