"""A tiny model folder with a byte tokenizer, a text, and a plan of seconds."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console
from tests.analysis.tiny_pretrained import raw

from termwise.planning.config import PlanConfig
from termwise.planning.run import run_plan

CONTEXT = 256
ASKED: dict[str, Any] = {
    "context": CONTEXT, "max_state": 0.5, "shares": (0.4, 0.5), "texts": 3, "planning_texts": 2, "anchors": 3, "longer": 300,
}  # fmt: skip


def tiny_folder(path: Path, name: str = "llama", **overrides: Any) -> Path:
    """A saved model of 256 bytes as symbols with 512 positions, and its tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    positions = {"n_positions": 512} if name == "gpt2" else {"max_position_embeddings": 512}
    raw(name, vocab_size=256, **(positions | overrides)).save_pretrained(path)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(path)
    return path


def write_text(path: Path, num_words: int = 3000) -> Path:
    """Two documents of made-up words."""
    path.mkdir(parents=True, exist_ok=True)
    for name, step in (("a.txt", 7), ("b.txt", 11)):
        words = [f"word{(n * step) % 29}" + ("." if n % 9 == 8 else "") for n in range(num_words)]
        (path / name).write_text(" ".join(words) + "\n")
    return path


def config(model: Path, text: Path, **overrides: Any) -> PlanConfig:
    return PlanConfig(source=str(model), text=(str(text),), **(ASKED | overrides))


def planned(asked: PlanConfig, out: Path) -> str:
    """Run it; what it said."""
    said = io.StringIO()
    run_plan(asked, out, arguments={"source": asked.source}, console=Console(file=said, width=400))
    return said.getvalue()
