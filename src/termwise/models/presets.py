"""Sizes of models trained from scratch: fields of TermwiseConfig. Every number is Llama's unless given here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from termwise.attention.refusals import nearest


@dataclass(frozen=True)
class Preset:
    """One size; `context` is the length it is trained on."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    context: int
    tokenizer: str
    tie_word_embeddings: bool = True
    rms_norm_eps: float = 1e-5
    initializer_range: float = 0.02

    def fields(self) -> dict[str, Any]:
        """Fields of TermwiseConfig."""
        found = asdict(self)
        del found["tokenizer"]
        found["max_position_embeddings"] = found.pop("context")
        return found


PRESETS: dict[str, Preset] = {
    # 0.81 M parameters with 257 symbols: minutes on a laptop.
    "tiny": Preset(128, 336, 4, 4, context=256, tokenizer="bytes"),
    # 10.0 M with 4096 symbols.
    "small": Preset(320, 864, 7, 5, context=1024, tokenizer="bpe:4096"),
    # The published setting (arXiv 2507.23632): Llama 2's shape, 275 M with 32,000 symbols, for GPUs.
    "paper": Preset(1024, 2048, 20, 16, context=1024, tokenizer="bpe:32000", tie_word_embeddings=False),
    # The recall task: two layers are what an induction circuit needs. At width 64 weights of 0.02 leave softmax guessing for
    # thousands of steps (0.38 right after 2,400); with 0.06 it is right everywhere after some 400.
    "recall": Preset(64, 128, 2, 2, context=32, tokenizer="symbols", tie_word_embeddings=False, initializer_range=0.06),
}


def preset(name: str) -> Preset:
    """The preset of a name; ValueError naming the nearest one otherwise.

    >>> preset("tiny").context
    256
    """
    if name not in PRESETS:
        allowed = [known for known in PRESETS if known != "recall"]
        raise ValueError(f"no preset {name!r}{nearest(name, allowed)}; allowed are {', '.join(allowed)}")
    return PRESETS[name]
