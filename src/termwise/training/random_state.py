"""The random states of python, numpy and torch as JSON, and back bit by bit."""

from __future__ import annotations

import base64
import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed python, numpy and torch (all devices)."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def capture() -> dict[str, Any]:
    """Every random state of this process, as JSON values.

    >>> state = capture(); first = torch.rand(1); restore(state); torch.equal(first, torch.rand(1))
    True
    """
    version, words, gauss = random.getstate()
    legacy = np.random.get_state(legacy=False)
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "python": [version, list(words), gauss],
        "numpy": {**legacy, "state": {**legacy["state"], "key": legacy["state"]["key"].tolist()}},
        "torch": _text(torch.get_rng_state()),
        "cuda": [_text(state) for state in cuda],
    }


def restore(state: dict[str, Any]) -> None:
    """Set what `capture` gave. CUDA states are set for the cards that exist here."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    legacy = state["numpy"]
    key = np.array(legacy["state"]["key"], dtype=np.uint32)
    np.random.set_state({**legacy, "state": {**legacy["state"], "key": key}})
    torch.set_rng_state(_tensor(state["torch"]))
    if torch.cuda.is_available():
        for card, text in zip(range(torch.cuda.device_count()), state["cuda"], strict=False):
            torch.cuda.set_rng_state(_tensor(text), card)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Whatever is drawn inside, the states outside go on as if nothing had been."""
    before = capture()
    try:
        yield
    finally:
        restore(before)


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
