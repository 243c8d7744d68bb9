"""Tiny originals with a byte tokenizer, plans for them, and conversions in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from tests.analysis.tiny_pretrained import raw
from tests.study.micro_study import write_text

from termwise.attention.names import parse
from termwise.conversion.config import ConvertConfig
from termwise.conversion.run import convert
from termwise.data.tokenizer import ByteEncoder
from termwise.results import RunFolder

SIZES = {"num_layers": 3, "num_heads": 4, "num_kv_heads": 2}
WIDTH = 6


def original(folder: Path, family: str = "llama", *, dtype: torch.dtype = torch.float32, **overrides: Any) -> Any:
    """A saved model of a family with the byte tokenizer; returns transformers' own."""
    fields = {"vocab_size": 257, "sliding_window": None} if family == "mistral" else {"vocab_size": 257}
    model = raw(family, **(fields | overrides))
    ByteEncoder().save(folder / "tokenizer")
    for path in (folder / "tokenizer").iterdir():
        path.rename(folder / path.name)
    (folder / "tokenizer").rmdir()
    model.to(dtype).save_pretrained(folder)
    return model.float()


def group(heads: list[int], name: str) -> dict[str, Any]:
    return {"kv_heads": heads, "spec": parse(name).to_dict()}


MIXED = [
    [group([0], "exp"), group([1], "taylor:0..2@mean+w8s2")],
    [group([0, 1], "exp")],
    [group([1], "drop+w8s2"), group([0], "taylor:0..2@mean+w8s2")],
]


def plan(folder: Path, layers: Any = MIXED, **changes: Any) -> Path:
    """A plan.json for `original(..., "llama")`."""
    folder.mkdir(parents=True, exist_ok=True)
    model = {"folder": "tiny", "family": "llama", "head_dim": WIDTH, **SIZES}
    document = {
        "schema": 1, "model": model, "context": 64, "target": {"max_state": 0.25}, "cache_dtype": "bfloat16", "layers": layers,
        "predicted": {"loss": 0.02}, "measured": {"loss": 0.03},
    }  # fmt: skip
    path = folder / "plan.json"
    path.write_text(json.dumps(document | changes))
    return path


def run(out: Path, console: Console | None = None, **fields: Any) -> RunFolder:
    """The conversion of these settings."""
    out.mkdir(parents=True, exist_ok=True)
    config = ConvertConfig(**fields)
    return convert(config, out, arguments={}, console=console or Console(quiet=True))


def text(folder: Path, num_words: int = 4000) -> str:
    """Documents of a few lines, so that some are held out whole."""
    path = write_text(folder, num_words=num_words)
    words = path.read_text().split()
    rows = [json.dumps({"text": " ".join(words[i : i + 40])}) for i in range(0, len(words), 40)]
    made = folder / "text.jsonl"
    made.write_text("\n".join(rows))
    return str(made)


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0))
