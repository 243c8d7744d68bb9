"""plan.json and plan.safetensors: what each kv head of a model keeps, and what that was measured to cost.

plan.json    {"schema": 1, "model": {...}, "context", "target", "cache_dtype", "layers": [[{"kv_heads", "spec"}, ...], ...],
              "predicted": {...}, "measured": {...}}
plan.safetensors, where specs have several centers: "layers.{i}.centers.{g}" (m, d) fp32 for kv head g of layer i.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from termwise.attention.spec import AttentionSpec
from termwise.models.groups import layer_groups
from termwise.results import atomic_write_text

SCHEMA = 1
JSON, TENSORS = "plan.json", "plan.safetensors"
Layers = tuple[tuple[AttentionSpec, ...], ...]  # one spec for each kv head of each layer


@dataclass(frozen=True, eq=False)
class Plan:
    """A plan as its file holds it; `termwise convert` reads it. `model`: folder, family, hashes and sizes; `centers` by (layer, kv head)."""

    model: dict[str, Any]
    context: int
    target: dict[str, float]
    cache_dtype: str
    layers: Layers
    centers: Mapping[tuple[int, int], Tensor]
    predicted: dict[str, Any]
    measured: dict[str, Any]


def write_plan(plan: Plan, folder: Path) -> Path:
    """Write plan.json, and plan.safetensors before it where there are centers; both whole or not at all."""
    from safetensors.torch import save_file

    tensors = {f"layers.{layer}.centers.{head}": c.float().contiguous() for (layer, head), c in plan.centers.items()}
    if tensors:
        beside = folder / f"{TENSORS}.part"
        save_file(tensors, beside)
        os.replace(beside, folder / TENSORS)
    told = {
        "schema": SCHEMA, "model": plan.model, "context": plan.context, "target": plan.target,
        "cache_dtype": plan.cache_dtype, "layers": [_groups(layer) for layer in plan.layers],
        "predicted": plan.predicted, "measured": plan.measured,
    }  # fmt: skip
    atomic_write_text(folder / JSON, json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    return folder / JSON


def _groups(layer: Sequence[AttentionSpec]) -> list[dict[str, Any]]:
    """Heads of equal specs as one group."""
    heads = [{"kv_heads": [head], "spec": spec} for head, spec in enumerate(layer)]
    return [group.to_dict() for group in layer_groups(heads, len(layer))]
