"""A GGUF file of a tiny Llama with a byte tokenizer, as llama.cpp's converter would name its parts."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

WIDTH, HEADS, KV_HEADS, LAYERS, INNER = 32, 4, 2, 2, 64


def write_tiny_gguf(path: Path, architecture: str = "llama") -> None:
    tokens = [*map(chr, range(33, 127)), "ab", "<end>"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 95 + [3])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(95)
    writer.add_eos_token_id(95)
    random, kv_width = np.random.default_rng(0), WIDTH // HEADS * KV_HEADS
    shapes = {"token_embd": (len(tokens), WIDTH), "output": (len(tokens), WIDTH), "output_norm": (WIDTH,)}
    for i in range(LAYERS):
        parts = {
            "attn_q": (WIDTH, WIDTH), "attn_k": (kv_width, WIDTH), "attn_v": (kv_width, WIDTH),
            "attn_output": (WIDTH, WIDTH), "attn_norm": (WIDTH,), "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH),
            "ffn_down": (WIDTH, INNER), "ffn_norm": (WIDTH,),
        }  # fmt: skip
        shapes |= {f"blk.{i}.{name}": shape for name, shape in parts.items()}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", (0.2 * random.standard_normal(shape)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
