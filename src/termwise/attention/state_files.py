"""States as files: tensors in safetensors, the spec as JSON in its header."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from termwise.attention.spec import AttentionSpec

if TYPE_CHECKING:
    from termwise.attention.state import AttentionState

NOT_TENSORS = ("spec", "scale", "slot_scale", "room", "past")


def save_state(state: AttentionState, path: str | Path) -> None:
    """Write everything but a recorded past."""
    from safetensors.torch import save_file

    header = {"format": "termwise.state", "schema": "1", "spec": json.dumps(state.spec.to_dict())}
    header |= {"scale": repr(state.scale), "slot_scale": repr(state.slot_scale)}
    save_file({name: t.detach().contiguous().clone() for name, t in state.tensors.items()}, str(path), metadata=header)


def load_state(kind: type[AttentionState], path: str | Path, device: str | torch.device) -> AttentionState:
    """A state written by `save_state`. ValueError for anything else."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt", device=str(device)) as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"{path}: no complete safetensors file ({error}); states are written by AttentionState.save"
        ) from None
    if header.get("format") != "termwise.state" or header.get("schema") != "1":
        raise ValueError(
            f"{path}: not a termwise state of schema 1 (format {header.get('format')!r}, schema {header.get('schema')!r})"
        )
    spec = AttentionSpec.from_dict(json.loads(header["spec"]))
    names = [f.name for f in dataclasses.fields(kind) if f.name not in NOT_TENSORS]
    values: dict[str, Any] = {name: tensors.get(name) for name in names}
    return kind(spec, float(header["scale"]), float(header["slot_scale"]), **values)
