"""Which models open, and what is said of the others."""

from __future__ import annotations

import json

import pytest
import torch
from tests.analysis.tiny_pretrained import SHAPES, raw, tiny, tokens

from termwise.analysis.pretrained import FAMILIES, checked_family, open_pretrained
from termwise.analysis.replaying import run


@pytest.mark.parametrize("name", SHAPES)
def test_a_saved_folder_opens_as_it_was(name, tmp_path):
    model = raw(name)
    model.save_pretrained(tmp_path)
    found = open_pretrained(tmp_path)
    assert type(found.model) is type(model) and found.tokenizer is None
    assert (found.num_layers, found.num_heads) == (3, 4) and found.family in FAMILIES
    assert len(found.layers) == len(found.attentions) == len(found.outputs) == 3
    with torch.no_grad():
        assert torch.equal(run(found, tokens(2, 9)), run(tiny(name), tokens(2, 9)))
    assert found.model.dtype == torch.float32 and not found.model.training


def test_half_precision_weights_are_computed_in_fp32(tmp_path):
    raw("llama").half().save_pretrained(tmp_path)
    assert open_pretrained(tmp_path).model.dtype == torch.float32


def test_heads_of_other_tasks_are_left_out_of_an_encoder(tmp_path):
    from transformers import BertForMaskedLM

    model = BertForMaskedLM(raw("bert").config)
    model.save_pretrained(tmp_path)
    assert open_pretrained(tmp_path).head is None


def change(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model_type": "gemma2"}, "'gemma2'.*supported are llama, mistral, qwen2, qwen3, smollm3, gpt2, bert"),
        ({"model_type": "gpt_oss"}, "not supported; supported are llama"),
        ({"model_type": "lama"}, "did you mean 'llama'"),
        ({"auto_map": {"AutoModel": "evil.Model"}}, "never run"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized .gptq.; save it dequantized"),
        ({"is_decoder": True}, "as a decoder"),
        ({"position_embedding_type": "relative_key"}, "adds terms to the scores"),
        ({"intermediate_size": 48}, "do not fit config.json"),
    ],
)
def test_what_cannot_be_looked_into_is_refused_by_name(fields, said, tmp_path):
    raw("llama").save_pretrained(tmp_path)
    change(tmp_path, **fields)
    with pytest.raises(ValueError, match=said):
        open_pretrained(tmp_path)


def test_a_planted_module_does_not_run(tmp_path):
    raw("llama").save_pretrained(tmp_path)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    change(tmp_path, auto_map={"AutoModelForCausalLM": "evil.Model", "AutoConfig": "evil.Config"})
    with pytest.raises(ValueError, match="never run"):
        open_pretrained(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_old_weights_are_refused_with_the_line_that_converts_them(tmp_path):
    raw("gpt2").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(raw("gpt2").state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin, a pickle") as refused:
        open_pretrained(tmp_path)
    line = str(refused.value).split('python -c "')[1].removesuffix('"')
    exec(line, {})
    with torch.no_grad():
        assert torch.equal(run(open_pretrained(tmp_path), tokens(1, 5)), run(tiny("gpt2"), tokens(1, 5)))


def test_names_without_a_folder_say_the_way_out(tmp_path):
    with pytest.raises(ValueError, match="hf download org/name --local-dir"):
        open_pretrained("hf:org/name")
    with pytest.raises(ValueError, match="its weights would be random"):
        open_pretrained("softmax")
    with pytest.raises(ValueError, match=r"no config\.json"):
        open_pretrained(tmp_path)


def test_several_gguf_files_and_broken_ones_are_named(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"a\.gguf cannot be read"):
        open_pretrained(tmp_path)
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match="2 GGUF files; name one"):
        open_pretrained(tmp_path)


def test_cut_weights_are_told(tmp_path):
    raw("llama").save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match="cannot be read"):
        open_pretrained(tmp_path)


def test_every_family_is_checked():
    assert [checked_family({"model_type": family}, "it") for family in FAMILIES] == list(FAMILIES)
