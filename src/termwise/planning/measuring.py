"""Centers and proxies of a model's kv heads, each kept in a file as soon as it is there.

Axes: L layers, G kv heads, O options, m centers, d key width.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from termwise.analysis.pretrained import Pretrained
from termwise.analysis.proxy import Proxies, layer_keys, proxies
from termwise.attention.centers import calibrate_centers
from termwise.attention.spec import AttentionSpec

Centers = dict[tuple[int, int, int], Tensor]


def measured_centers(
    pretrained: Pretrained,
    ids: Tensor,
    options: Sequence[AttentionSpec],
    path: Path,
    seed: int,
    after_layer: Callable[[int], Any],
) -> Centers:
    """(layer, kv head, number) -> (m, d) for every number of centers among the options, from the keys of one text; or from `path`."""
    if not path.exists():
        numbers = sorted({spec.kernel.centers for spec in options if spec.kernel.centers > 1})
        found = {}
        for layer, key in enumerate(layer_keys(pretrained, ids)):
            for head in range(pretrained.num_kv_heads):
                for number in numbers:
                    found[f"{layer}.{head}.{number}"] = calibrate_centers(key[:, head], number, seed)
            after_layer(layer)
        _save(found, path)
    return {_place(name): centers for name, centers in load_file(path).items()}


def measured_proxies(
    pretrained: Pretrained,
    ids: Tensor,
    options: Sequence[AttentionSpec],
    centers: Centers,
    path: Path,
    seed: int,
    after_layer: Callable[[int], Any],
) -> Proxies:
    """Proxies of every option on one text; or from `path`."""
    if not path.exists():
        found = proxies(pretrained, ids, options, centers, seed, after_layer)
        _save({"rise": found.rise, "change": found.change}, path)
    held = load_file(path)
    return Proxies(held["rise"], held["change"])


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    """Written whole or not at all. An empty file of tensors is one too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, beside)
    os.replace(beside, path)


def _place(name: str) -> tuple[int, int, int]:
    layer, head, number = map(int, name.split("."))
    return layer, head, number
