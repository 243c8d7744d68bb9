"""GGUF files load with the logits of transformers' own reading; what cannot be read is told."""

from __future__ import annotations

import pytest
import torch
from tiny_gguf import write_tiny_gguf
from transformers import AutoModelForCausalLM

from termwise.models import load
from termwise.models.naming import find_model, trained_folder
from termwise.models.streaming import generate_text


@torch.no_grad()
def test_a_folder_and_a_file_give_the_model_and_its_tokenizer(tmp_path, capfd):
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype="float32")
    assert "GGUF tensors" in capfd.readouterr().err
    for place in (tmp_path, path):
        model, tokenizer = load(place)
        ids = tokenizer("abcab", return_tensors="pt")["input_ids"]
        assert torch.equal(model(ids).logits, theirs(ids).logits)
        assert model.config.specs[0].short_name == "exp" and model.config.num_key_value_heads == 2
        assert find_model(str(place)).folder == place == trained_folder(str(place))
    assert "GGUF tensors" not in capfd.readouterr().err


def test_text_is_written_from_a_gguf_file_and_it_saves_as_ours(tmp_path):
    write_tiny_gguf(tmp_path / "tiny.gguf")
    told = generate_text(tmp_path, "abc", max_tokens=5, temperature=0)
    assert told["tokens"] == 5
    assert told["state_bytes"] > 0
    model, _ = load(tmp_path)
    model.save_pretrained(tmp_path / "ours")
    again, _ = load(tmp_path / "ours")
    ids = torch.tensor([[1, 5, 9]])
    assert torch.equal(again(ids).logits, model(ids).logits)


def test_what_cannot_be_read_is_told(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"a\.gguf cannot be read"):
        load(tmp_path)
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match="2 GGUF files; name one"):
        load(tmp_path)
    write_tiny_gguf(tmp_path / "gemma.gguf", "gemma2")
    with pytest.raises(ValueError, match="gemma"):
        load(tmp_path / "gemma.gguf")
