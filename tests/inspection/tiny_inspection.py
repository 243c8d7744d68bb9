"""Tiny model folders with a byte tokenizer, a text, and an inspection of seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from tests.analysis.tiny_pretrained import raw

from termwise.inspection.config import InspectConfig
from termwise.inspection.run import run_inspect

ASKED: dict[str, Any] = {"texts": 3, "length": 48, "window": 6, "sinks": 2, "budget": 3600.0}


def tiny_folder(path: Path, name: str = "llama", **overrides: Any) -> Path:
    """A saved model of 256 bytes as symbols, and its tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    raw(name, vocab_size=256, **overrides).save_pretrained(path)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(path)
    return path


def write_text(path: Path, num_words: int = 600) -> Path:
    """Two documents of made-up words."""
    path.mkdir(parents=True, exist_ok=True)
    for name, step in (("a.txt", 7), ("b.txt", 11)):
        words = [f"word{(n * step) % 29}" + ("." if n % 9 == 8 else "") for n in range(num_words)]
        (path / name).write_text(" ".join(words) + "\n")
    return path


def config(model: Path, text: Path, **overrides: Any) -> InspectConfig:
    return InspectConfig(model=str(model), text=(str(text),), **(ASKED | overrides))


def inspected(asked: InspectConfig, out: Path) -> str:
    """Run it; what it said."""
    console = Console(record=True, width=400, force_terminal=False, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    run_inspect(asked, out, arguments={"model": asked.model}, console=console)
    return console.export_text()
