"""A prompt alone, padded, in a batch or packed gives the same; nothing leaks between documents or from the future."""

from __future__ import annotations

import pytest
import torch
from tiny_models import VARIANTS, VOCAB, error, small, tokens

from termwise.models import TermwiseCache

TOLERANCE = 2e-5
LENGTHS = (5, 1, 70, 12)


def rows_of(model, lengths=LENGTHS):
    rows = [tokens(n, seed=n) for n in lengths]
    return rows, [model(row[None], use_cache=False).logits[0] for row in rows]


def places(lengths, width, side, holes=False):
    masks = torch.zeros(len(lengths), width, dtype=torch.bool)
    for i, n in enumerate(lengths):
        if side == "left":
            masks[i, width - n :] = True
        elif side == "right":
            masks[i, :n] = True
        else:  # anywhere, also inside
            masks[i, torch.randperm(width, generator=torch.Generator().manual_seed(i))[:n]] = True
    return masks


@pytest.mark.parametrize("side", ["left", "right", "scattered"])
@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_padded_equals_alone_with_nan_under_the_padding(name, side):
    model = small(name)
    rows, alone = rows_of(model)
    mask = places(LENGTHS, 73, side)
    embeds = torch.full((len(rows), 73, 32), float("nan"))
    for i, row in enumerate(rows):
        embeds[i, mask[i]] = model.model.embed_tokens(row)
    for use_cache in (False, True):
        logits = model(inputs_embeds=embeds, attention_mask=mask.long(), use_cache=use_cache).logits
        for i, expected in enumerate(alone):
            assert error(logits[i, mask[i]], expected) < TOLERANCE


@pytest.mark.parametrize("name", ["softmax", "taylor:0..2@mean+w8s2", "exp<5|layer+gi+ga", "power:2+decay", "mixed"])
def test_nan_under_the_padding_reaches_no_gradient(name):
    model = small(name)
    row = tokens(9)
    mask = torch.zeros(2, 12, dtype=torch.bool)
    mask[0, 3:] = mask[1, :9] = True
    embeds = torch.full((2, 12, 32), float("nan"))
    labels = torch.full((2, 12), -100)
    labels[mask] = row.repeat(2)
    embeds[mask] = model.model.embed_tokens(row).detach().repeat(2, 1)
    embeds.requires_grad_()
    out = model(inputs_embeds=embeds, attention_mask=mask.long(), labels=labels)
    alone = model(row[None], labels=row[None])
    assert error(out.loss, alone.loss) < TOLERANCE
    names = [n for n, _ in model.named_parameters() if "embed_tokens" not in n and "lm_head" not in n]
    weights = [p for n, p in model.named_parameters() if n in names]
    expected = torch.autograd.grad(alone.loss, weights)
    got = torch.autograd.grad(out.loss, [*weights, embeds])
    for a, b in zip(got, expected, strict=False):
        assert error(a, b) < 1e-4 or float((a - b).abs().max()) < 1e-7
    assert bool((got[-1][~mask] == 0).all())


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["softmax", "taylor:0..2", "exp<5|layer+gi+ga", "power:2+decay", "mixed"])
@torch.no_grad()
def test_padded_prefill_then_decoding(name, side):
    """The convolution state takes the last real tokens, positions go on from the real count."""
    model, more = small(name), tokens(3, 6, seed=4)
    lengths = (5, 1, 9)
    mask = places(lengths, 9, side)
    ids = torch.full((3, 9), 7)
    for i, n in enumerate(lengths):
        ids[i, mask[i]] = tokens(n, seed=n)
    cache = TermwiseCache(2)
    model(ids, attention_mask=mask.long(), cache=cache)
    steps = [model(more[:, :2], cache=cache, attention_mask=torch.ones(3, 2)).logits]
    steps += [model(more[:, t : t + 1], cache=cache).logits for t in range(2, 6)]
    assert cache.positions.tolist() == [n + 6 + model.config.blank_tokens for n in lengths]
    for i, n in enumerate(lengths):
        alone = model(torch.cat([tokens(n, seed=n), more[i]])[None], use_cache=False).logits[0, n:]
        assert error(torch.cat(steps, dim=1)[i], alone) < TOLERANCE


@pytest.mark.parametrize("lengths", [(5, 1, 70, 12), (16, 16, 16)])
@pytest.mark.parametrize("name", VARIANTS)
def test_packed_equals_separate_gradients_too(name, lengths):
    model = small(name)
    rows = [tokens(n, seed=n + i) for i, n in enumerate(lengths)]
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    packed = model(torch.cat(rows)[None], cu_seqlens=bounds).logits[0]
    alone = torch.cat([model(row[None], use_cache=False).logits[0] for row in rows])
    assert error(packed, alone) < TOLERANCE
    direction = torch.randn(alone.shape, generator=torch.Generator().manual_seed(0))
    parameters = list(model.parameters())
    got, expected = (torch.autograd.grad((x * direction).sum(), parameters) for x in (packed, alone))
    for a, b in zip(got, expected, strict=True):
        assert error(a, b) < 1e-4


@pytest.mark.parametrize("lengths", [(5, 3, 12), (8, 8, 8)])
@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_changing_one_document_leaves_the_others_bit_identical(name, lengths):
    model, ids = small(name), tokens(1, sum(lengths))
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    before = model(ids, cu_seqlens=bounds).logits[0]
    changed = ids.clone()
    changed[0, bounds[1] : bounds[2]] = (ids[0, bounds[1] : bounds[2]] + 1) % VOCAB
    after = model(changed, cu_seqlens=bounds).logits[0]
    same = (before == after).all(dim=-1)
    assert same[: bounds[1]].all()
    assert same[bounds[2] :].all()
    assert not same[bounds[1] : bounds[2]].any()


@pytest.mark.parametrize("use_cache", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_causality_is_bit_identical(name, use_cache):
    model, ids = small(name), tokens(2, 80)
    before = model(ids, use_cache=use_cache).logits
    for place in (3, 63, 64, 79):
        changed = ids.clone()
        changed[:, place] = (changed[:, place] + 1) % VOCAB
        after = model(changed, use_cache=use_cache).logits
        assert torch.equal(after[:, :place], before[:, :place])
        assert not torch.equal(after[:, place], before[:, place])


@torch.no_grad()
def test_packed_documents_continue_as_a_batch():
    model, lengths = small("exp<5|layer+gi+ga"), (5, 1, 12)
    rows, more = [tokens(n, seed=n) for n in lengths], tokens(3, 4, seed=8)
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    cache = model(torch.cat(rows)[None], cu_seqlens=bounds, use_cache=True).cache
    steps = torch.cat([model(more[:, t : t + 1], cache=cache).logits for t in range(4)], dim=1)
    for i, row in enumerate(rows):
        alone = model(torch.cat([row, more[i]])[None], use_cache=False).logits[0, len(row) :]
        assert error(steps[i], alone) < TOLERANCE


@torch.no_grad()
def test_positions_that_restart_are_boundaries():
    """As transformers' flattening collator hands them over."""
    model, ids = small("power:2+decay"), tokens(1, 12)
    bounds = torch.tensor([0, 5, 12])
    positions = torch.cat([torch.arange(5), torch.arange(7)])[None]
    assert torch.equal(model(ids, position_ids=positions).logits, model(ids, cu_seqlens=bounds).logits)
    assert torch.equal(
        model(ids, position_ids=positions, cu_seq_lens_q=bounds).logits, model(ids, cu_seqlens=bounds).logits
    )
    with pytest.raises(ValueError, match="restart inside a row of a batch of 2"):
        model(ids.repeat(2, 1), position_ids=positions.repeat(2, 1))


@torch.no_grad()
def test_given_positions_are_used():
    model, ids = small("softmax"), tokens(1, 9)
    shifted = torch.arange(9)[None] + 5
    base = model(ids).logits
    assert error(model(ids, position_ids=shifted).logits, base) < TOLERANCE  # rotary sees differences alone
    assert error(model(ids, position_ids=shifted * 2).logits, base) > 1e-2
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1]])
    alone = model(ids[:, 2:], position_ids=torch.arange(7)[None] * 2).logits
    padded = model(ids, attention_mask=mask, position_ids=torch.tensor([[0, 0, 0, 2, 4, 6, 8, 10, 12]])).logits
    assert error(padded[:, 2:], alone) < TOLERANCE


@torch.no_grad()
def test_grouped_heads_repeat_not_tile():
    """Query heads 0, 1 read kv head 0: equal to one kv head a query head with weights repeated in place."""
    model = small("taylor:0..2")
    wide = small("taylor:0..2", num_key_value_heads=4)
    weights = model.state_dict()
    for name in weights:
        if "k_proj" in name or "v_proj" in name:
            weights[name] = weights[name].unflatten(0, (2, 8)).repeat_interleave(2, dim=0).flatten(0, 1)
    wide.load_state_dict(weights)
    assert error(wide(tokens(2, 9)).logits, model(tokens(2, 9)).logits) < TOLERANCE


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        ([0, 5], "from 0 to the number of tokens, 9"),
        ([1, 9], "must rise from 0"),
        ([0, 5, 5, 9], "without an empty document"),
        ([0.0, 9.0], "whole numbers"),
    ],
)
def test_wrong_boundaries_are_refused(bounds, says):
    with pytest.raises(ValueError, match=says):
        small()(tokens(1, 9), cu_seqlens=torch.tensor(bounds))


def test_wrong_calls_are_refused():
    model, ids = small(), tokens(2, 9)
    for kwargs, says in (
        ({"cu_seqlens": torch.tensor([0, 9])}, "batch 1"),
        ({"attention_mask": torch.ones(2, 8)}, r"attention_mask has shape \(2, 8\)"),
        ({"attention_mask": torch.ones(2, 1, 9, 9)}, "attention_mask has shape"),
        ({"inputs_embeds": torch.zeros(2, 9, 32)}, "exactly one"),
        ({"atention_mask": torch.ones(2, 9)}, "did you mean 'attention_mask'"),
        ({"position_ids": torch.arange(8).repeat(2, 1)}, r"position_ids has shape \(2, 8\)"),
        ({"output_attentions": True}, "output_attentions=True is not supported"),
        ({"cache": TermwiseCache(2), "use_cache": False}, "use_cache=False with a cache"),
    ):
        with pytest.raises(ValueError, match=says):
            model(ids, **kwargs)
    with pytest.raises(ValueError, match="at least one token"):
        model(ids[:, :0])
    with pytest.raises(ValueError, match="exclude each other"):
        model(tokens(1, 9), cu_seqlens=torch.tensor([0, 9]), attention_mask=torch.tensor([[0] + [1] * 8]))
