"""The converted folder: config.json with the specs, safetensors, the tokenizer, a model card. Complete or invisible."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from termwise.models.causal_lm import TermwiseForCausalLM
from termwise.results import sync_folder
from termwise.training.checkpoint import sync_file

SHARD = "4GB"
# What a tokenizer may consist of; code is never among it.
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "chat_template.jinja",
)  # fmt: skip


def write_tokenizer(tokenizer: Any, source: Path, target: Path) -> None:
    """The files of a folder's tokenizer as they are; one read from a GGUF file is saved."""
    target.mkdir(parents=True, exist_ok=True)
    files = [source / name for name in TOKENIZER_FILES if source.is_dir() and (source / name).is_file()]
    for path in files:
        shutil.copyfile(path, target / path.name)
    if not files and tokenizer is not None:
        tokenizer.save_pretrained(target)


def write_model(
    model: TermwiseForCausalLM, dtype: torch.dtype, tokenizer: tuple[Any, Path], card: str, target: Path
) -> None:
    """TARGET, whole or not there: written beside it under another name, on disk, then renamed.

    Weights are cast to `dtype`, that of the original. Errors: OSError (disk).
    """
    temporary, old = (target.parent / f".{target.name}.{os.getpid()}.{end}" for end in ("tmp", "old"))
    for left in target.parent.glob(f".{target.name}.*"):
        shutil.rmtree(left)
    cast: Any = model
    cast.to(dtype).save_pretrained(temporary, max_shard_size=SHARD)
    write_tokenizer(*tokenizer, temporary)
    (temporary / "README.md").write_text(card, encoding="utf-8")
    for path in temporary.rglob("*"):
        sync_file(path)
    sync_folder(temporary)
    if target.exists():
        os.rename(target, old)
    os.rename(temporary, target)
    sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)
