"""What a model folder holds, looked at before anything is built of it: what is wrong is told with the file it stands in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


def read_config(folder: Path) -> dict[str, Any]:
    """The fields of config.json. ValueError for what is no JSON object."""
    path = folder / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(
            f"{path}: a {type(found).__name__}, where a JSON object with the model's fields is expected; copy it again"
        )
    return found


@contextmanager
def reading_config(folder: Path) -> Iterator[None]:
    """Inside, what a value of config.json makes transformers raise, of whatever type, becomes a ValueError that names the file."""
    try:
        yield
    except (ValueError, OSError):
        raise
    except Exception as error:  # its checks of types and sizes raise classes of their own, arithmetic on bad sizes any
        told = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
        raise ValueError(
            f"{folder / 'config.json'} describes no model ({told}); correct it, or copy it again"
        ) from error


def check_finite(model: torch.nn.Module, where: Path) -> None:
    """ValueError for weights that hold NaN or infinity: every figure of such a model would be one of its damage."""
    for name, weights in model.named_parameters():
        if not bool(torch.isfinite(weights).all()):
            raise ValueError(
                f"{where}: {name} holds NaN or infinity, so the weights are damaged; copy or save the model again"
            )
