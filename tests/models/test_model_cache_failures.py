"""A call that fails in the middle leaves the cache exactly as it was; the same call again is as if nothing had happened."""

from __future__ import annotations

import pytest
import torch
from tiny_models import VARIANTS, small, tokens

from termwise.models import TermwiseCache


def contents(cache):
    """Every tensor and number a cache holds, by place."""
    found = {"positions": cache.positions, "num_sound": cache.num_sound}
    for i, layer in enumerate(cache.layers):
        for name, value in vars(layer).items():
            parts = {"": value}
            if name == "states":
                parts = {f"{g}.{part}": t for g, state in enumerate(value) for part, t in state.tensors.items()}
            found |= {(i, name, part): held for part, held in parts.items()}
    return found


def frozen(cache):
    """Contents with the tensors copied, so that a change in place would show."""

    def copied(value):
        if isinstance(value, tuple):
            return tuple(copied(v) for v in value)
        return value.clone() if isinstance(value, torch.Tensor) else value

    return {place: copied(value) for place, value in contents(cache).items()}


def assert_same(cache, before):
    now = contents(cache)
    assert now.keys() == before.keys()
    for place, value in before.items():
        tensors = value if isinstance(value, tuple) else (value,)
        held = now[place] if isinstance(value, tuple) else (now[place],)
        assert len(held) == len(tensors), place
        for got, expected in zip(held, tensors, strict=True):
            same = torch.equal(got, expected) if isinstance(expected, torch.Tensor) else got == expected
            assert same, place


def fail_once(module, error):
    """The module's next call raises, after its arguments were computed."""

    def hook(*_):
        handle.remove()
        raise error

    handle = module.register_forward_hook(hook)


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_a_failed_call_changes_nothing(name, error):
    """In the second layer's MLP, at the last norm or at the logits; from an empty cache, for one token and for several."""
    model, ids = small(name), tokens(2, 140)
    places = model.model.layers[1].mlp, model.model.norm, model.lm_head
    undisturbed, cache, start = TermwiseCache(2), TermwiseCache(2), 0
    for i, size in enumerate((130, 1, 1, 8)):
        piece, before = ids[:, start : start + size], frozen(cache)
        expected = model(piece, cache=undisturbed).logits
        fail_once(places[i % 3], error)
        with pytest.raises(type(error)):
            model(piece, cache=cache)
        assert_same(cache, before)
        assert torch.equal(model(piece, cache=cache).logits, expected)
        start += size
    assert_same(cache, frozen(undisturbed))


@torch.no_grad()
def test_the_backbone_alone_keeps_the_promise_too():
    model, ids = small("taylor:0..2@mean+w8s2").model, tokens(2, 20)
    cache = model(ids, use_cache=True).cache
    before = frozen(cache)
    fail_once(model.layers[1].self_attn, RuntimeError("out of memory"))
    with pytest.raises(RuntimeError):
        model(ids[:, :3], cache=cache)
    assert_same(cache, before)


@torch.no_grad()
def test_a_refused_crop_or_selection_changes_no_layer():
    """The second layer holds no window, so that it could be cropped where the first one cannot, and the other way round."""
    for specs in (("taylor:0..2", "softmax"), ("softmax", "taylor:0..2")):
        model = small("softmax", attention=[small(name).config.specs[0] for name in specs])
        cache = model(tokens(2, 300), use_cache=True).cache
        before = frozen(cache)
        with pytest.raises(ValueError, match="cannot be taken back"):
            cache.crop(-200)
        assert_same(cache, before)
        with pytest.raises(IndexError):
            cache.batch_select_indices(torch.tensor([0, 7]))
        assert_same(cache, before)


@torch.no_grad()
def test_generation_goes_on_after_ctrl_c():
    """The cache then stands at the last whole step, from which the same text follows."""
    model, ids = small("taylor:0..2@mean+w8s2"), tokens(1, 12)
    expected = model.generate(ids, max_new_tokens=10, do_sample=False, eos_token_id=None)
    cache, steps = TermwiseCache(2), []

    def interrupt(*_):
        steps.append(0)
        if len(steps) == 5:
            raise KeyboardInterrupt

    handle = model.model.layers[1].register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.generate(ids, max_new_tokens=10, do_sample=False, eos_token_id=None, cache=cache)
    handle.remove()
    seen = cache.get_seq_length()
    assert seen == 12 + 3  # the prompt and three more tokens went in, the fourth did not
    again = model.generate(expected[:, : seen + 1], max_new_tokens=22 - seen - 1, do_sample=False, eos_token_id=None, cache=cache)  # fmt: skip
    assert torch.equal(again, expected)
