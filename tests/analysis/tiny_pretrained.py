"""Tiny random models of every supported family, in transformers' own classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from termwise.analysis.pretrained import Pretrained, described

VOCAB = 40
LENGTH = 13

_SHARED: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
_GROUPED = _SHARED | {"num_key_value_heads": 2, "intermediate_size": 32, "max_position_embeddings": 64}
_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}

# Every family, and what sets its attention apart. Weights are large, so that mistakes show.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", _GROUPED),
    "mistral": ("MistralForCausalLM", _GROUPED | {"sliding_window": 20, "head_dim": 8}),
    "qwen2": ("Qwen2ForCausalLM", _GROUPED),
    "qwen3": ("Qwen3ForCausalLM", _GROUPED | {"head_dim": 8}),
    "smollm3": ("SmolLM3ForCausalLM", _GROUPED | {"no_rope_layers": [1, 0, 1]}),
    "gpt2": ("GPT2LMHeadModel", _SHARED | {"n_positions": 64}),
    "gpt2 by layer": ("GPT2LMHeadModel", _SHARED | {"n_positions": 64, "scale_attn_by_inverse_layer_idx": True}),
    "gpt2 unscaled": ("GPT2LMHeadModel", _SHARED | {"n_positions": 64, "scale_attn_weights": False}),
    "bert": ("BertModel", _SHARED | {"intermediate_size": 32, "max_position_embeddings": 64}),
}


def raw(name: str, **overrides: Any) -> Any:
    """The model itself."""
    import transformers

    class_name, fields = SHAPES[name]
    own = getattr(transformers, class_name)
    special = {} if name == "bert" else _IDS
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        config = own.config_class(**(special | fields | {"initializer_range": 0.3} | overrides))
        config._attn_implementation = "sdpa"
        extra = {"add_pooling_layer": False} if name == "bert" else {}
        return own(config, **extra).eval()


def tiny(name: str, **overrides: Any) -> Pretrained:
    """The model with its parts laid open."""
    return described(raw(name, **overrides), None, Path(name))


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCAB, shape, generator=torch.Generator().manual_seed(seed))
