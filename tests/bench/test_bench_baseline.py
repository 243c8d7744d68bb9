"""The baseline computes what softmax attention is, with grouped heads, from a cache that is never copied."""

from __future__ import annotations

import pytest
import torch

from termwise.attention.forms import attend
from termwise.attention.spec import AttentionSpec
from termwise.bench.baseline import FusedAttention, fused
from termwise.bench.inputs import Shape, piece, plain_tensors


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_prefill_and_steps_are_softmax(kv_heads):
    shape = Shape(2, 4, kv_heads, 8, 6, torch.float32, torch.device("cpu"))
    plain = plain_tensors(shape, 20)
    exact, _ = attend(**plain, spec=AttentionSpec(), form="reference")
    attention = FusedAttention(shape, 20)
    places = attention.key.data_ptr(), attention.value.data_ptr()
    assert torch.allclose(attention.prefill(**piece(plain, 0, 12)).transpose(1, 2), exact[:, :12], atol=1e-6)
    for start in range(12, 20):
        out = attention.step(**piece(plain, start, start + 1), start=start)
        assert torch.allclose(out.flatten(1, 2), exact[:, start], atol=1e-6)
    assert places == (attention.key.data_ptr(), attention.value.data_ptr())
    assert attention.nbytes == 4 * 2 * kv_heads * 20 * (8 + 6)
    assert torch.allclose(fused(**plain).transpose(1, 2), exact, atol=1e-6)
