"""generate(): greedy, sampling, beams, padding on either side, chunked prefill, drafts, a second call."""

from __future__ import annotations

import pytest
import torch
from tiny_models import VARIANTS, VOCAB, small, tokens

SOME = ["softmax", "taylor:0..2@mean+w8s2", "power:2+decay", "exp<5|layer+gi+ga", "unit|identity+gc", "mixed"]


def greedy(model, ids, count):
    """Greedy continuation by full forward passes, without any cache."""
    for _ in range(count):
        with torch.no_grad():
            ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1:].argmax(dim=-1)], dim=1)
    return ids


def padded(rows, side):
    width = max(map(len, rows))
    ids, mask = torch.full((len(rows), width), 7), torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        place = slice(width - len(row), width) if side == "left" else slice(0, len(row))
        ids[i, place], mask[i, place] = row, 1
    return ids, mask


@pytest.mark.parametrize("name", VARIANTS)
def test_greedy_equals_full_forward_passes(name):
    model, ids = small(name), tokens(2, 11)
    assert torch.equal(model.generate(ids, max_new_tokens=9, do_sample=False), greedy(model, ids, 9))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", SOME)
def test_padded_prompts_continue_as_if_alone(name, side):
    model = small(name)
    rows = [tokens(n, seed=n) for n in (3, 12, 1, 7)]
    ids, mask = padded(rows, side)
    out = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False)
    assert torch.equal(out[:, :12], ids)
    for row, found in zip(rows, out, strict=True):
        assert torch.equal(found[12:], greedy(model, row[None], 8)[0, len(row) :])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("chunk", [1, 5])
def test_chunked_prefill_of_padded_prompts(chunk, side):
    model = small("exp<5|layer+gi+ga")
    ids, mask = padded([tokens(n, seed=n) for n in (3, 12)], side)
    whole = model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False)
    in_chunks = model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False, prefill_chunk_size=chunk)
    assert torch.equal(in_chunks, whole)


def log_likelihood(model, ids, start):
    with torch.no_grad():
        logs = model(ids, use_cache=False).logits.log_softmax(dim=-1)
    return logs[:, start - 1 : -1].gather(2, ids[:, start:, None]).sum(dim=(1, 2))


@pytest.mark.parametrize("name", SOME)
def test_beam_search_equals_a_fresh_computation(name):
    """Same beams without a cache, and the reported scores are those of a full forward pass over the result."""
    model = small(name)
    ids, mask = padded([tokens(n, seed=n) for n in (4, 9)], "left")
    settings = dict(
        max_new_tokens=7,
        num_beams=3,
        num_return_sequences=2,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    out = model.generate(ids, attention_mask=mask, **settings)
    fresh = model.generate(ids, attention_mask=mask, use_cache=False, **settings)
    assert torch.equal(out.sequences, fresh.sequences)
    torch.testing.assert_close(
        out.sequences_scores[2:] * 7, log_likelihood(model, out.sequences[2:], 9), atol=1e-4, rtol=1e-4
    )


def test_sampling_depends_on_the_seed_alone():
    model, ids = small("taylor:0..2"), tokens(2, 6)
    runs = []
    for use_cache in (True, False):
        torch.manual_seed(1)
        runs.append(
            model.generate(ids, max_new_tokens=8, do_sample=True, top_k=5, use_cache=use_cache, num_return_sequences=2)
        )
    assert torch.equal(*runs)


@pytest.mark.parametrize("name", SOME)
def test_a_second_call_continues_from_the_cache(name):
    model, ids = small(name), tokens(1, 10)
    first = model.generate(ids, max_new_tokens=5, do_sample=False, return_dict_in_generate=True)
    longer = torch.cat([first.sequences, tokens(1, 4, seed=9)], dim=1)
    assert first.cache.get_seq_length() == 14
    second = model.generate(longer, cache=first.cache, max_new_tokens=6, do_sample=False)
    assert torch.equal(second, greedy(model, longer, 6))


def test_a_second_call_of_padded_prompts_continues_from_the_cache():
    model = small("exp<5|layer+gi+ga")
    rows = [tokens(n, seed=n) for n in (3, 8)]
    ids, mask = padded(rows, "right")
    first = model.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False, return_dict_in_generate=True)
    more, more_mask = padded([tokens(n, seed=n) for n in (5, 2)], "right")
    longer = torch.cat([first.sequences, more], dim=1)
    whole_mask = torch.cat([mask, torch.ones(2, 4, dtype=torch.long), more_mask], dim=1)
    out = model.generate(longer, attention_mask=whole_mask, cache=first.cache, max_new_tokens=5, do_sample=False)
    for i, row in enumerate(rows):
        alone = longer[i][whole_mask[i] == 1][None]
        assert torch.equal(alone[0, : len(row)], row)
        assert torch.equal(out[i, longer.shape[1] :], greedy(model, alone, 5)[0, alone.shape[1] :])


@pytest.mark.parametrize("name", VARIANTS)
def test_prompt_lookup_equals_greedy(name):
    model = small(name)
    ids = tokens(1, 6).repeat(1, 4)
    expected = greedy(model, ids, 14)
    assert torch.equal(model.generate(ids, max_new_tokens=14, do_sample=False, prompt_lookup_num_tokens=5), expected)


@pytest.mark.parametrize("name", ["softmax", "exp<5|layer+gi+ga", "mixed"])
def test_assisted_decoding_equals_greedy(name):
    model, assistant, ids = small(name), small("elu1", num_hidden_layers=1), tokens(1, 9)
    assert torch.equal(
        model.generate(ids, max_new_tokens=12, do_sample=False, assistant_model=assistant), greedy(model, ids, 12)
    )


def test_padding_after_the_end_of_a_sequence():
    """One sequence ends early, the other goes on undisturbed."""
    model, ids = small("taylor:0..2"), tokens(2, 6)
    expected = greedy(model, ids, 10)
    end = int(expected[0, 8])
    out = model.generate(ids, max_new_tokens=10, do_sample=False, eos_token_id=end, pad_token_id=0)
    stop = expected[1, 6:].tolist().index(end) + 1 if end in expected[1, 6:].tolist() else 10
    assert torch.equal(out[1, : 6 + stop], expected[1, : 6 + stop])
    assert int(out.max()) < VOCAB


def test_other_caches_are_refused_by_name():
    with pytest.raises(ValueError, match="cache_implementation='static' is not supported"):
        small().generate(tokens(1, 3), cache_implementation="static", max_new_tokens=2)
