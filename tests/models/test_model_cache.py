"""Decoding from states equals the full forward pass; states stay small; rollback, branches and batches behave."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny_models import VARIANTS, error, small, tokens
from transformers import DynamicCache

from termwise.attention.catalogue import catalogue
from termwise.models import TermwiseCache

TOLERANCE = 2e-5  # fp32, two layers; measured 1e-6 to 6e-6


def run_in_pieces(model, ids, sizes, **kwargs):
    """Logits of a sequence handed over in pieces, through one cache."""
    cache, outputs, start = TermwiseCache(model.config.num_hidden_layers), [], 0
    for size in sizes:
        outputs.append(model(ids[:, start : start + size], cache=cache, **kwargs).logits)
        start += size
    return torch.cat(outputs, dim=1), cache


@pytest.mark.parametrize(("prefill", "steps"), [(1, 12), (64, 4), (125, 8)])  # keys are folded at 128
@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_cached_decode_equals_full_forward(name, prefill, steps):
    model, ids = small(name), tokens(2, prefill + steps)
    full = model(ids, use_cache=False).logits
    in_pieces, _ = run_in_pieces(model, ids, [prefill] + [1] * steps)
    assert error(in_pieces, full) < TOLERANCE


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_chunked_prefill_equals_full_forward(name):
    model, ids = small(name), tokens(2, 140)
    in_pieces, cache = run_in_pieces(model, ids, [2, 63, 65, 7, 3])
    assert error(in_pieces, model(ids, use_cache=False).logits) < TOLERANCE
    assert cache.get_seq_length() == 140


@torch.no_grad()
def test_every_name_of_the_catalogue_decodes_as_it_reads():
    ids, refused = tokens(1, 14), []
    for name in catalogue.names():
        model = small(name, num_hidden_layers=1)
        full = model(ids, use_cache=False).logits
        try:
            in_pieces, _ = run_in_pieces(model, ids, [9, 1, 1, 3])
        except ValueError as message:
            refused.append((name, str(message)))
            continue
        assert error(in_pieces, full) < 1e-4, name
    assert [name for name, _ in refused] == ["softmax_taylor_80terms"]
    assert "features" in refused[0][1]


@torch.no_grad()
def test_a_state_too_large_to_hold_is_refused_before_decoding():
    model, ids = small("softmax_taylor_80terms"), tokens(1, 5)
    assert model(ids).cache is None
    for call in (lambda: model(ids, use_cache=True), lambda: model.generate(ids, max_new_tokens=2)):
        with pytest.raises(ValueError, match=r"features.*use_cache=False"):
            call()
    assert model.generate(ids, max_new_tokens=2, use_cache=False).shape == (1, 7)


@pytest.mark.parametrize("name", ["softmax", "taylor:0..2@mean+w8s2", "exp<5|layer+gi+ga"])
@torch.no_grad()
def test_layers_may_differ(name):
    specs = [small(name).config.specs[0], small("elu1").config.specs[0]]
    options = [{"conv_size": 3}, {"rotary": False}]
    model, ids = small("softmax", attention=specs, layer_options=options), tokens(2, 70)
    in_pieces, _ = run_in_pieces(model, ids, [66, 1, 1, 1, 1])
    assert error(in_pieces, model(ids, use_cache=False).logits) < TOLERANCE


@pytest.mark.parametrize(
    "name", ["taylor:0..2", "taylor:0..2@mean+w8s2", "elu1", "power:2+decay", "exp<5|layer+gi+ga", "softmax"]
)
@torch.no_grad()
def test_state_is_of_constant_size_for_finite_kernels(name):
    """Live bytes after 300 and 1,516 tokens (the buffer's phase is the same: 64 divides the difference)."""
    model = small(name)
    _, cache = run_in_pieces(model, tokens(1, 300), [299, 1])
    early = cache.nbytes
    assert early == sum(
        sum(state.nbytes for state in layer.states) + sum(t.numel() * t.element_size() for t in layer.past)
        for layer in cache.layers
    )
    model(tokens(1, 1215), cache=cache)
    model(tokens(1, 1), cache=cache)
    assert cache.get_seq_length() == 1516
    is_finite = model.config.specs[0].is_constant_size
    assert (cache.nbytes == early) if is_finite else (cache.nbytes > 4 * early)


@torch.no_grad()
def test_a_decode_step_never_sees_the_prefix(monkeypatch):
    """One token in: every layer is called with one query and one key, whatever the length so far."""
    from termwise.models import layers

    seen = []
    attend = layers.attend

    def watched(query, key, value, spec, **kwargs):
        seen.append((query.shape[1], key.shape[1]))
        return attend(query, key, value, spec, **kwargs)

    monkeypatch.setattr(layers, "attend", watched)
    model = small("taylor:0..2")
    model.generate(tokens(1, 100), max_new_tokens=6, do_sample=False)
    assert seen == [(100, 100)] * 2 + [(1, 1)] * 2 * 5


@torch.no_grad()
def test_rotary_positions_above_256_in_bfloat16():
    """Positions are no bfloat16 numbers: a decode step at 300 equals the full forward as closely as one at 8."""
    model = small("softmax").to(torch.bfloat16)
    ids = tokens(1, 301)
    full = model(ids, use_cache=False).logits[:, -1].float()
    cache = model(ids[:, :300]).cache
    step = model(ids[:, 300:], cache=cache).logits[:, -1].float()
    exact = copy.deepcopy(model).float()
    exact_logits = exact(ids, use_cache=False).logits[:, -1]
    assert error(step, exact_logits) < 2 * max(error(full, exact_logits), 4e-3)


@torch.no_grad()
def test_a_cache_branches():
    model, ids = small("taylor:0..2@mean+w8s2"), tokens(1, 40)
    _, cache = run_in_pieces(model, ids, [40])
    branch = cache.copy()
    first = model(tokens(1, 5, seed=1), cache=branch).logits
    model(tokens(1, 5, seed=2), cache=cache)
    assert (branch.get_seq_length(), cache.get_seq_length()) == (45, 45)
    _, fresh = run_in_pieces(model, ids, [40])
    assert torch.equal(model(tokens(1, 5, seed=1), cache=fresh).logits, first)


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_crop_takes_tokens_back(name):
    model, ids = small(name), tokens(2, 90)
    cache = TermwiseCache(2)
    cache.activate_past_recording()
    model(ids[:, :70], cache=cache)
    model(tokens(2, 9, seed=5), cache=cache)
    cache.crop(-9)
    assert cache.get_seq_length() == 70
    assert error(model(ids[:, 70:], cache=cache).logits, model(ids, use_cache=False).logits[:, 70:]) < TOLERANCE


@torch.no_grad()
def test_crop_to_a_length_and_to_nothing():
    model, ids = small("exp<5|layer+gi+ga"), tokens(1, 20)
    cache = TermwiseCache(2)
    cache.activate_past_recording()
    model(ids, cache=cache)
    cache.crop(12)
    assert cache.get_seq_length() == 12
    assert error(model(ids[:, 12:], cache=cache).logits, model(ids, use_cache=False).logits[:, 12:]) < TOLERANCE
    cache.crop(-20)
    assert error(model(ids, cache=cache).logits, model(ids, use_cache=False).logits) < TOLERANCE


@torch.no_grad()
def test_crop_says_what_it_cannot_do():
    model = small("taylor:0..2", layer_options={"conv_size": 4})
    _, cache = run_in_pieces(model, tokens(1, 200), [200])
    with pytest.raises(ValueError, match="activate_past_recording"):
        cache.crop(-3)
    plain = small("taylor:0..2")
    _, cache = run_in_pieces(plain, tokens(1, 300), [300])
    with pytest.raises(ValueError, match="rollback"):
        cache.crop(-150)
    mask = torch.ones(1, 10, dtype=torch.long)
    mask[0, -2:] = 0
    padded = plain(tokens(1, 10), attention_mask=mask).cache
    with pytest.raises(ValueError, match="padding stands among them"):
        padded.crop(-1)


@torch.no_grad()
def test_batches_of_a_cache_are_picked_and_repeated():
    model, ids = small("power:2+decay"), tokens(3, 30)
    _, cache = run_in_pieces(model, ids, [30])
    cache.batch_select_indices(torch.tensor([2, 0]))
    cache.batch_repeat_interleave(2)
    more = tokens(4, 3, seed=1)
    whole = torch.cat([ids[[2, 2, 0, 0]], more], dim=1)
    assert error(model(more, cache=cache).logits, model(whole, use_cache=False).logits[:, 30:]) < TOLERANCE
    cache.reset()
    assert error(model(whole, cache=cache).logits, model(whole, use_cache=False).logits) < TOLERANCE


@torch.no_grad()
def test_the_cache_is_made_returned_and_accepted_under_both_names():
    model, ids = small(), tokens(1, 8)
    out = model(ids)
    assert isinstance(out.cache, TermwiseCache)
    assert model(ids, use_cache=False).cache is None
    full = model(tokens(1, 9), use_cache=False).logits[:, -1]
    step = model(tokens(1, 9)[:, 8:], past_key_values=model(tokens(1, 9)[:, :8]).cache).logits[:, -1]
    assert error(step, full) < TOLERANCE


@torch.no_grad()
def test_wrong_caches_are_refused():
    model = small()
    with pytest.raises(ValueError, match="DynamicCache"):
        model(tokens(1, 3), cache=DynamicCache())
    for wrong in (DynamicCache(), ((torch.zeros(1), torch.zeros(1)),)):
        with pytest.raises(ValueError, match="pass a TermwiseCache"):
            model.generate(tokens(1, 3), cache=wrong, max_new_tokens=1)
    cache = model(tokens(2, 3)).cache
    with pytest.raises(ValueError, match="holds 2 sequences, the call has 1"):
        model(tokens(1, 3), cache=cache)
    with pytest.raises(ValueError, match="cu_seqlens with a filled cache"):
        model(tokens(1, 6), cache=model(tokens(1, 3)).cache, cu_seqlens=torch.tensor([0, 3, 6]))
    dynamic = small(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    cache = dynamic(tokens(1, 512)).cache
    with pytest.raises(ValueError, match="changes its frequencies beyond 512"):
        dynamic(tokens(1, 1), cache=cache)


@torch.no_grad()
def test_a_cache_that_reads_bfloat16_copies():
    """Every layer with moments keeps a copy and reads it; logits stay close; a layer without moments goes on as before."""
    model, ids, logits = small("taylor:0..2"), tokens(1, 300), {}
    for reads_half in (False, True):
        cache = TermwiseCache(model.config.num_hidden_layers, reads_half)
        model(ids[:, :200], cache=cache)
        steps = [model(ids[:, t : t + 1], cache=cache).logits[0, 0] for t in range(200, 300)]
        logits[reads_half] = torch.stack(steps)
        assert [layer.states[0].half is not None for layer in cache.layers] == [reads_half] * len(cache.layers)
    assert 1e-6 < error(logits[True], logits[False]) < 1e-2
    softmax = small("softmax")
    cache = TermwiseCache(softmax.config.num_hidden_layers, reads_half=True)
    softmax(ids, cache=cache)
    assert cache.layers[0].states[0].half is None
