"""Replaced by the definition of softmax attention, every family gives its own logits; a replay gives the whole run."""

from __future__ import annotations

import pytest
import torch
from tests.analysis.tiny_pretrained import LENGTH, SHAPES, VOCAB, tiny, tokens
from torch import Tensor

from termwise.analysis.pretrained import Pretrained
from termwise.analysis.replacing import replaced
from termwise.analysis.replaying import record, replay, run


def by_definition(pretrained: Pretrained):
    """softmax(scale q.k) v over the visible keys, written out; also keeps what it was given."""
    seen: list[tuple[int, tuple[int, ...], tuple[int, ...], float]] = []

    def compute(layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        seen.append((layer, tuple(query.shape), tuple(key.shape), scale))
        shared = query.shape[2] // key.shape[2]
        key, value = key.repeat_interleave(shared, dim=2), value.repeat_interleave(shared, dim=2)
        scores = torch.einsum("bthd,bshd->bhts", query, key) * scale
        if pretrained.is_causal:
            late = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + key.shape[1] - query.shape[1])
            scores = scores.masked_fill(late, -torch.inf)
        return torch.einsum("bhts,bshe->bthe", scores.softmax(dim=-1), value)

    return compute, seen


@pytest.fixture(params=SHAPES)
def model(request) -> Pretrained:
    with torch.no_grad():
        yield tiny(request.param)


def test_the_definition_gives_the_models_own_result(model):
    ids = tokens(3, LENGTH)
    own = run(model, ids)
    compute, seen = by_definition(model)
    with replaced(model, compute):
        found = run(model, ids)
    torch.testing.assert_close(found, own, rtol=1e-5, atol=2e-5)
    shape = (model.num_heads, model.head_dim)
    assert [layer for layer, *_ in seen] == list(range(model.num_layers))
    assert {query for _, query, *_ in seen} == {(3, LENGTH, *shape)}
    assert {key for *_, key, _ in seen} == {(3, LENGTH, model.num_kv_heads, model.head_dim)}


def test_none_keeps_the_models_own_attention_and_nothing_is_left_behind(model):
    ids = tokens(2, LENGTH)
    own = run(model, ids)
    with replaced(model, lambda *_: None):
        assert torch.equal(run(model, ids), own)
        with replaced(model, lambda layer, q, k, v, scale: torch.zeros_like(q) if layer == 1 else None):
            assert (run(model, ids) - own).abs().max() > 1e-3
        assert torch.equal(run(model, ids), own)
    assert model.model.config._attn_implementation == "sdpa"
    assert torch.equal(run(model, ids), own)


def test_later_tokens_change_nothing_before_them(model):
    ids = tokens(1, LENGTH)
    changed = ids.clone()
    changed[:, -1] = (changed[:, -1] + 1) % VOCAB
    compute, _ = by_definition(model)
    for how in (compute, lambda *_: None):
        with replaced(model, how):
            before, after = run(model, ids), run(model, changed)
        same = torch.equal(before[:, :-1], after[:, :-1])
        assert same == model.is_causal


def test_padding_is_refused_where_the_mask_would_be_lost(model):
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, :4] = 0
    with replaced(model, by_definition(model)[0]), pytest.raises(ValueError, match="equal length"):
        model.model(input_ids=tokens(2, LENGTH), attention_mask=mask)


def test_a_replay_from_any_layer_is_the_whole_run(model):
    ids = tokens(2, LENGTH)
    recorded = record(model, ids)
    assert torch.equal(recorded.result, run(model, ids))
    for first in range(model.num_layers):
        torch.testing.assert_close(replay(model, recorded, first), recorded.result, rtol=0, atol=0)
    with pytest.raises(ValueError, match="layers 0 to 2"):
        replay(model, recorded, 3)


def test_a_replay_with_one_layer_replaced_is_the_run_with_that_layer_replaced(model):
    ids = tokens(2, LENGTH)
    recorded = record(model, ids)
    for layer in range(model.num_layers):
        with replaced(model, lambda n, q, k, v, scale, one=layer: q * 0.5 if n == one else None):
            torch.testing.assert_close(replay(model, recorded, layer), run(model, ids), rtol=0, atol=0)


def test_a_sliding_window_is_the_longest_text():
    model = tiny("mistral")
    assert model.context == model.window == 20
    compute, _ = by_definition(model)
    with torch.no_grad(), replaced(model, compute):
        torch.testing.assert_close(run(model, tokens(1, 20)), model.model(tokens(1, 20)).logits)
        with pytest.raises(ValueError, match="sliding window of 20"):
            run(model, tokens(1, 21))
        with pytest.raises(ValueError, match="see the last 20 only"):
            model.model(tokens(1, 21))


def test_cached_steps_reach_the_function_with_all_keys():
    model = tiny("llama")
    ids = tokens(1, LENGTH)
    compute, seen = by_definition(model)
    with torch.no_grad(), replaced(model, compute):
        whole = run(model, ids)
        first = model.model(input_ids=ids[:, :-1], use_cache=True)
        last = model.model(input_ids=ids[:, -1:], past_key_values=first.past_key_values)
    torch.testing.assert_close(last.logits[:, -1], whole[:, -1], rtol=1e-5, atol=2e-5)
    assert seen[-1][1][1] == 1 and seen[-1][2][1] == LENGTH


def test_a_wrong_shape_is_told():
    model = tiny("llama")
    with replaced(model, lambda layer, q, k, v, scale: q[:, :1]), pytest.raises(ValueError, match="is expected"):
        run(model, tokens(1, LENGTH))
