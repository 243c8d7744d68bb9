"""Folders of other families load with the logits of transformers' own models."""

from __future__ import annotations

import json

import pytest
import torch
from tiny_models import VOCAB, tokens
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from termwise.models import TermwiseConfig, TermwiseForCausalLM, load

SHAPE = dict(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=64, initializer_range=0.2, bos_token_id=1, eos_token_id=2, pad_token_id=0,
)  # fmt: skip

ROPES = {
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1e4},
    "longrope": {
        "rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1e4,
        "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0],
    },
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16, "rope_theta": 1e4,
    },
}  # fmt: skip


CASES = {
    "llama": (LlamaConfig(**SHAPE), LlamaForCausalLM),
    "llama-tied": (LlamaConfig(**SHAPE, tie_word_embeddings=True), LlamaForCausalLM),
    "llama-biases": (LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True), LlamaForCausalLM),
    "llama-head-dim": (LlamaConfig(**SHAPE, head_dim=16), LlamaForCausalLM),
    "llama-gelu": (LlamaConfig(**SHAPE, hidden_act="gelu"), LlamaForCausalLM),
    **{
        f"llama-{name}": (LlamaConfig(**SHAPE, rope_parameters=dict(rope)), LlamaForCausalLM)
        for name, rope in ROPES.items()
    },
    "mistral": (MistralConfig(**SHAPE, sliding_window=None), MistralForCausalLM),
    "qwen2": (Qwen2Config(**SHAPE), Qwen2ForCausalLM),
    "qwen3": (Qwen3Config(**SHAPE, head_dim=8), Qwen3ForCausalLM),
    "smollm3": (SmolLM3Config(**SHAPE, no_rope_layer_interval=2), SmolLM3ForCausalLM),
}


@pytest.fixture
def family_folder(request, tmp_path):
    config, kind = CASES[request.param]
    torch.manual_seed(0)
    theirs = kind(config).eval()
    with torch.no_grad():  # biases and norms are zeros and ones otherwise
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    theirs.save_pretrained(tmp_path)
    return tmp_path, theirs


@pytest.mark.parametrize("family_folder", CASES, indirect=True)
def test_logits_equal_those_of_transformers(family_folder):
    folder, theirs = family_folder
    ours, tokenizer = load(folder)
    assert tokenizer is None
    for length in (7, 40, 80):  # 80 is beyond max_position_embeddings: dynamic and longrope change there
        ids = tokens(2, length)
        with torch.no_grad():
            torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("family_folder", ["llama-tied", "qwen2", "smollm3"], indirect=True)
def test_generation_equals_that_of_transformers(family_folder):
    folder, theirs = family_folder
    ours, _ = load(folder)
    ids = tokens(2, 9)
    expected = theirs.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=None)
    assert torch.equal(ours.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=None), expected)


@pytest.mark.parametrize("family_folder", ["llama", "qwen3"], indirect=True)
def test_a_loaded_family_saves_as_ours(family_folder, tmp_path):
    folder, _ = family_folder
    ours, _ = load(folder)
    ours.save_pretrained(tmp_path / "again")
    again, _ = load(tmp_path / "again")
    ids = tokens(1, 9)
    assert json.loads((tmp_path / "again" / "config.json").read_text())["model_type"] == "termwise"
    assert torch.equal(again(ids).logits, ours(ids).logits)


def test_another_spec_goes_into_a_family_folder(tmp_path):
    LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(tmp_path)
    from termwise.attention.names import parse

    model = TermwiseForCausalLM.from_pretrained(tmp_path, attention=parse("taylor:0..2@mean"))
    assert model.config.specs[0].short_name == "taylor:0..2@mean"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model_type": "mixtral"}, "architecture 'mixtral'"),
        ({"model_type": "gpt2"}, "supported are termwise, llama, mistral, qwen2, qwen3, smollm3"),
        ({"model_type": "mistral", "sliding_window": 16}, "sliding_window=16"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}, "sliding_window=16"),
        ({"model_type": "llama", "attention_dropout": 0.1}, "attention_dropout=0.1"),
        ({"model_type": "llama", "auto_map": {"AutoModel": "evil.py"}}, "never run"),
        ({"model_type": "llama", "partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
    ],
)  # fmt: skip
def test_what_cannot_be_represented_is_named(fields, says):
    with pytest.raises(ValueError, match=says):
        TermwiseConfig.from_dict({**SHAPE, **fields})
