"""The tensors that are measured: seeded, with scores of spread about one, and whatever else a spec declares.

Shapes: B batch, T tokens, H query heads, G kv heads, d key width, e value width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from termwise.attention.forms import choose_form
from termwise.attention.spec import CALIBRATED, AttentionSpec
from termwise.bench.config import BenchConfig
from termwise.models.devices import named_dtype, usable_device

PER_TOKEN = ("query", "key", "value", "input_gate", "output_gate", "log_decay")


@dataclass(frozen=True)
class Shape:
    """Everything of the measured tensors but their length, and by which clock their time is told."""

    batch: int
    heads: int
    kv_heads: int
    key_width: int
    value_width: int
    dtype: torch.dtype
    device: torch.device
    clock: Literal["wall", "cpu"] = "wall"

    @classmethod
    def of(cls, config: BenchConfig) -> Shape:
        """The shape a configuration asks for. ValueError for a device that is not here."""
        dtype = named_dtype(config.dtype)
        assert dtype is not None
        return cls(
            config.batch, config.heads, config.kv_heads, config.key_width, config.value_width, dtype,
            usable_device(config.device), config.clock,
        )  # fmt: skip


def tensors(
    spec: AttentionSpec, shape: Shape, length: int, seed: int = 0, shared: dict[str, Tensor] | None = None
) -> dict[str, Any]:
    """Arguments of `attend` but the spec: query (B, T, H, d), key and value (B, T, G, .), gates, decay, parameters.

    `shared`: query, key and value that are there already; those of one seed are the same for every spec.
    """
    make = torch.Generator().manual_seed(seed + 1)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=make)

    heads, kv_heads = shape.heads, shape.kv_heads
    per_key = (shape.batch, length, kv_heads)
    found: dict[str, Any] = dict(shared or plain_tensors(shape, length, seed))
    if spec.input_gate is True:
        found["input_gate"] = torch.sigmoid(normal(*per_key))
    if spec.output_gate is not None:
        found["output_gate"] = torch.sigmoid(normal(shape.batch, length, heads))
    if spec.log_decay:
        found["log_decay"] = -torch.nn.functional.softplus(normal(*per_key) - 4)
    found = {name: tensor.to(shape.device, shape.dtype) for name, tensor in found.items()}
    parameters = _parameters(spec, shape, length, make)
    return found | ({"parameters": parameters} if parameters else {})


def plain_tensors(shape: Shape, length: int, seed: int = 0) -> dict[str, Tensor]:
    """Query (B, T, H, d), key (B, T, G, d) and value (B, T, G, e), which is all that fused attention takes."""
    make = torch.Generator().manual_seed(seed)
    sizes = {
        "query": (shape.heads, shape.key_width), "key": (shape.kv_heads, shape.key_width),
        "value": (shape.kv_heads, shape.value_width),
    }  # fmt: skip
    found = {name: torch.randn(shape.batch, length, *size, generator=make) for name, size in sizes.items()}
    return {name: tensor.to(shape.device, shape.dtype) for name, tensor in found.items()}


def _parameters(spec: AttentionSpec, shape: Shape, length: int, make: torch.Generator) -> dict[str, Tensor]:
    """Learned tensors as they are before training: weights one, biases zero, scores random. Centers are random keys."""
    sizes = {"heads": shape.heads, "kv_heads": shape.kv_heads, "key_width": shape.key_width}
    found = {}
    for name, axes in spec.parameters(shape.value_width).items():
        size = [sizes[axis] if isinstance(axis, str) else axis for axis in axes]
        if name in CALIBRATED:
            found[name] = torch.randn(*size, generator=make)
        else:
            found[name] = torch.zeros(size) if "bias" in name else torch.ones(size)
    if spec.needs_running_gate:
        found["running_gate_score"] = torch.randn(shape.batch, length, shape.kv_heads, generator=make)
    return {name: tensor.to(shape.device) for name, tensor in found.items()}


def piece(given: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
    """The same arguments for the tokens start..stop-1."""
    found = {name: value[:, start:stop] if name in PER_TOKEN else value for name, value in given.items()}
    if "parameters" in given:
        found["parameters"] = {
            name: value[:, start:stop] if name == "running_gate_score" else value
            for name, value in given["parameters"].items()
        }
    return found


def form_of(
    spec: AttentionSpec, shape: Shape, length: int, *, depth: int = 0, hands_back: bool = True
) -> tuple[str, str]:
    """The form `attend` takes for `length` tokens after `depth` earlier ones, and why."""
    return choose_form(
        spec, num_queries=length, num_keys=length, key_width=shape.key_width, value_width=shape.value_width,
        has_state=depth > 0, has_decay=spec.log_decay, heads=shape.batch * shape.heads,
        kv_heads=shape.batch * shape.kv_heads, output_final_state=hands_back,
    )  # fmt: skip
