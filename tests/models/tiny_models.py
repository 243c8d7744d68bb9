"""Small models for the tests of this folder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from termwise.attention.names import parse
from termwise.models import TermwiseForCausalLM, build

VOCAB = 37


def heads(*names: str) -> list[dict[str, Any]]:
    """A layer whose kv head i runs names[i]."""
    return [{"kv_heads": [i], "spec": parse(name)} for i, name in enumerate(names)]


# Name -> overrides that the plain name does not say. Weights are large (0.2), so that mistakes show.
VARIANTS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "elu1": {},
    "taylor:0..2": {},
    "taylor:0..2@mean+w8s2": {},
    "taylor:0..2@mean+w5s1h2e4": {},
    "power:2+decay": {"layer_options": {"rotary": False, "conv_size": 2, "conv_activation": "silu"}},
    "exp<5|layer+gi+ga": {"layer_options": {"conv_size": 4, "conv_activation": "silu", "blank_tokens": 3}},
    "unit|identity+gc": {},
    "identity|identity+decay": {"layer_options": {"value_step": True, "output_norm": True, "qk_norm": True}},
    "exp<5|runninggate>=1": {},
    "mixed": {
        "attention": [heads("taylor:0..2@mean+w8s2", "exp"), heads("taylor:0..2|layer+gi+ga", "drop+w8s2")],
        "layer_options": [{"qk_norm": True, "value_step": True, "output_norm": True}, {}],
    },
    "evicting": {
        "attention": [heads("drop+w8s2h4e16", "exp"), heads("taylor:0..2@mean+w8s2h4e16", "drop+w4s2e16")],
    },
}


def small(name: str = "softmax", **overrides: Any) -> TermwiseForCausalLM:
    """Two layers, four query heads over two kv heads, evaluation mode."""
    fields: dict[str, Any] = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 512, "initializer_range": 0.2,
    }  # fmt: skip
    fields |= VARIANTS.get(name, {}) | overrides
    return build(
        "softmax" if name in ("mixed", "evicting") else name, preset="tiny", vocab_size=VOCAB, seed=3, **fields
    ).eval()


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def error(got: Tensor, expected: Tensor) -> float:
    """Relative root mean square; infinite where anything is not finite."""
    got, expected = got.detach(), expected.detach()
    assert got.shape == expected.shape
    if not bool(torch.isfinite(got).all()):
        return float("inf")
    return float((got - expected).double().square().mean().sqrt() / expected.double().square().mean().sqrt())
