"""Checkpoints that are complete or invisible.

    checkpoints/STEP/model.safetensors, optimizer.safetensors, state.json, manifest.json

Files are written and fsynced under a temporary name; manifest.json, with size and SHA-256 of each (and of itself
without the field `digest`), comes last; then the folder is renamed and its parent fsynced. No file is a pickle, and
none is ever read as one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor, nn

from termwise.results import SCHEMA, canonical_json, check_schema, sync_folder

FILES = ("model.safetensors", "optimizer.safetensors", "state.json")
PICKLES = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt", ".joblib")
_log = logging.getLogger(__name__)


class DamagedCheckpoint(ValueError):  # noqa: N818
    """A checkpoint folder that is not what its manifest says, or has none."""


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint in memory. `state` is JSON: step, seconds, loss, config, config_hash, random, tied."""

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]

    @property
    def step(self) -> int:
        """Updates done."""
        return int(self.state["step"])


def model_tensors(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The state dict with every shared tensor once, and the other names of shared ones: tied name -> kept name."""
    kept: dict[str, Tensor] = {}
    first_name: dict[tuple[Any, ...], str] = {}
    tied: dict[str, str] = {}
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f"state of {type(model).__name__} holds {name!r}, a {type(tensor).__name__}; only tensors")
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        if tensor.numel() and key in first_name:
            tied[name] = first_name[key]
        else:
            first_name[key] = name
            kept[name] = tensor.detach()
    return kept, tied


def load_model_tensors(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Copy the saved weights into a model of the same shape; ties stay ties. ValueError naming what does not fit."""
    tensors = checkpoint.model | {name: checkpoint.model[kept] for name, kept in checkpoint.state["tied"].items()}
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"the checkpoint at step {checkpoint.step} is of another model: {reason}; use another folder"
        ) from None


def save(root: Path, checkpoint: Checkpoint, *, keep: int) -> Path:
    """Write ROOT/STEP, then remove all but the newest `keep`. OSError if it fails: what was there is as it was."""
    step = checkpoint.step
    temporary, final = root / f".{step}.{os.getpid()}.tmp", root / str(step)
    try:
        temporary.mkdir(parents=True)
        contiguous = [{k: v.contiguous() for k, v in d.items()} for d in (checkpoint.model, checkpoint.optimizer)]
        safetensors.torch.save_file(contiguous[0], temporary / FILES[0])
        safetensors.torch.save_file(contiguous[1], temporary / FILES[1])
        (temporary / FILES[2]).write_text(json.dumps(checkpoint.state, allow_nan=False), encoding="utf-8")
        files = {}
        for name in FILES:
            sync_file(temporary / name)
            files[name] = {"size": (temporary / name).stat().st_size, "sha256": _digest(temporary / name)}
        manifest = temporary / "manifest.json"
        manifest.write_text(_manifest_text({"schema": SCHEMA, "step": step, "files": files}), encoding="utf-8")
        sync_file(manifest)
        sync_folder(temporary)
        discard(final)
        os.rename(temporary, final)
        sync_folder(root)
    except (OSError, safetensors.SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        left = max(steps(root), default=None)
        good = "there is no earlier one" if left is None else f"the one at step {left} is untouched"
        raise OSError(f"the checkpoint at step {step} could not be written to {root} ({error}); {good}") from error
    for old in steps(root)[:-keep]:
        discard(root / str(old))
    return final


def steps(root: Path) -> list[int]:
    """The steps that have a checkpoint folder, whole or not, rising."""
    return sorted(int(entry.name) for entry in root.glob("[0-9]*") if entry.name.isdigit()) if root.is_dir() else []


def latest(root: Path, *, say: bool = True) -> Checkpoint | None:
    """The newest checkpoint that is whole, or None. What is damaged is passed over, aloud; a pickle is refused by name.

    Reads every byte and compares it with the manifest. ValueError for a pickle and for a newer schema.
    """
    refuse_pickles(root)
    found = steps(root)
    for index in range(len(found) - 1, -1, -1):
        try:
            return load(root / str(found[index]))
        except DamagedCheckpoint as damage:
            if say:
                instead = (
                    f"the one at step {found[index - 1]} is used"
                    if index
                    else "none is left, so the run starts at step 0"
                )
                _log.warning("%s; %s", damage, instead)
    return None


def load(path: Path) -> Checkpoint:
    """Read one checkpoint, checked byte by byte. DamagedCheckpoint says which file is wrong, and how."""
    for name, (size, digest) in _read_manifest(path).items():
        file = path / name
        if not file.is_file() or file.stat().st_size != size:
            found = f"{file.stat().st_size} bytes" if file.is_file() else "missing"
            raise DamagedCheckpoint(f"{path} is damaged: {name} is {found}, its manifest says {size} bytes")
        if _digest(file) != digest:
            raise DamagedCheckpoint(f"{path} is damaged: {name} is not what its manifest's SHA-256 says")
    state = json.loads((path / FILES[2]).read_text(encoding="utf-8"))
    model, optimizer = (safetensors.torch.load_file(path / name) for name in FILES[:2])
    return Checkpoint(model, optimizer, state)


def refuse_pickles(root: Path) -> None:
    """ValueError naming the first file under `root` that other tools would unpickle."""
    for path in sorted(root.rglob("*")) if root.is_dir() else ():
        if path.suffix.lower() in PICKLES:
            raise ValueError(
                f"{path}: pickles can run code and are never read; allowed are {', '.join(FILES)}; remove it"
            )


def discard(path: Path) -> None:
    """Remove a checkpoint folder so that no moment shows half of it."""
    if path.exists():
        trash = path.with_name(f".{path.name}.{os.getpid()}.trash")
        os.rename(path, trash)
        shutil.rmtree(trash, ignore_errors=True)


def clean(root: Path, *, last_step: int) -> None:
    """Remove what killed processes left under temporary names, and the folders past the step that was taken up."""
    for left in (*root.glob(".*.tmp"), *root.glob(".*.trash")):
        shutil.rmtree(left, ignore_errors=True)
    for step in steps(root):
        if step > last_step:
            discard(root / str(step))


def check_space(folder: Path, needed: int) -> None:
    """OSError unless the disk has `needed` bytes free for checkpoints and the model."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            f"{folder}: checkpoints and model need {needed / 1e6:.1f} MB, the disk has {free / 1e6:.1f} MB free "
            f"({os.strerror(errno.ENOSPC)}); free some, lower keep, or give another --out"
        )


def num_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors' elements."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _manifest_text(fields: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(canonical_json(fields).encode()).hexdigest()
    return json.dumps({**fields, "digest": digest}, indent=1) + "\n"


def _read_manifest(path: Path) -> dict[str, tuple[int, str]]:
    try:
        text = (path / "manifest.json").read_bytes().decode()
        fields = {name: value for name, value in json.loads(text).items() if name != "digest"}
    except FileNotFoundError:
        raise DamagedCheckpoint(f"{path} is incomplete: it has no manifest.json") from None
    except (ValueError, AttributeError) as error:
        raise DamagedCheckpoint(f"{path} is damaged: manifest.json does not read ({error})") from None
    # Compared as text, so that even a changed space is seen; before the schema, which a flipped bit may have raised.
    if text != _manifest_text(fields) or fields.get("step") != int(path.name):
        raise DamagedCheckpoint(f"{path} is damaged: manifest.json is not as it was written")
    check_schema(fields.get("schema"), str(path / "manifest.json"))
    return {name: (fields["files"][name]["size"], fields["files"][name]["sha256"]) for name in FILES}


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_file(path: Path) -> None:
    """Put a written file on disk."""
    with open(path, "r+b") as file:
        os.fsync(file.fileno())
