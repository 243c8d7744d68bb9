"""A folder of a family that transformers knows: its own class must give the same logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from termwise.evaluation.judging import PROMISED, Outcome
from termwise.evaluation.tracing import Errors
from termwise.models.gguf import gguf_file, read_gguf

COMPARED = 128  # tokens


def own_class(model: Any, folder: Path | None, text: Tensor) -> Outcome:
    """Logits of the model against those of transformers' own class on the same files, both in float32."""
    reason = _why_not(folder)
    if reason:
        return Outcome(None, status="excluded", reason=reason)
    assert folder is not None
    ids = text[:COMPARED][None].cpu()
    theirs = _theirs(folder)
    with torch.no_grad():
        expected = theirs(ids, use_cache=False).logits[0]
        found = model(ids.to(model.device), use_cache=False).logits[0].cpu()
    del theirs
    errors = Errors.of([found], [expected], 0, torch.arange(ids.shape[1]))
    value = float(errors.values.square().mean().sqrt())
    limit = PROMISED[torch.float32] * model.config.num_hidden_layers
    method = f"{ids.shape[1]} tokens, float32"
    if value <= limit:
        return Outcome(value, limit, method=method)
    first = int((errors.values[:, 0] > limit).nonzero()[0])
    reason = f"the logits differ from those of transformers' own class from position {first} on: relative RMS {value:.2g}, allowed is {limit:.2g}"
    return Outcome(value, limit, "failed", reason, where={"layer": "logits", "position": first})


def _theirs(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    if (file := gguf_file(folder)) is not None:
        return read_gguf(file, lambda config: None)[0].eval()
    return AutoModelForCausalLM.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False, use_safetensors=True, dtype=torch.float32
    ).eval()


def _why_not(folder: Path | None) -> str | None:
    if folder is None:
        return "a model built from a name has no original"
    if gguf_file(folder) is not None:
        return None
    kind = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    if kind == "termwise":
        return "the folder is of termwise's own kind: no other class reads it"
    return None
