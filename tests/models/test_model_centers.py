"""Models whose heads keep far keys in groups around centers: constants of the model, saved with it, never trained."""

from __future__ import annotations

import pytest
import torch
from tiny_models import error, heads, small, tokens

from termwise.models import TermwiseForCausalLM

NAME = "taylor:0@mean4+w8s2h4e16"
CENTERS = [f"model.layers.{i}.self_attn.centers" for i in range(2)]


def test_centers_are_held_and_not_trained():
    model = small(NAME)
    held = dict(model.named_parameters())[CENTERS[0]]
    assert held.shape == (2, 4, 8)
    assert not held.requires_grad
    text = tokens(2, 60)
    model.train()(text, labels=text).loss.backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == CENTERS


@pytest.mark.parametrize("fields", [{}, {"attention": [heads(NAME, "exp"), heads("exp", "taylor:0..1@mean3+w8h4e16")]}])
def test_generation_is_that_of_the_whole_text_past_many_evictions(fields):
    model = small("softmax" if fields else NAME, **fields)
    with torch.no_grad():
        text = model.generate(tokens(2, 40), max_new_tokens=40, do_sample=False, eos_token_id=None)
        choices = model(text).logits[:, 39:-1].argmax(dim=-1)
    assert text.shape == (2, 80)
    assert torch.equal(text[:, 40:], choices)


def test_centers_are_saved_with_the_model_and_matter(tmp_path):
    model, text = small(NAME), tokens(1, 60)
    model.save_pretrained(tmp_path)
    again = TermwiseForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        expected = model(text).logits
        assert torch.equal(again(text).logits, expected)
        again.get_parameter(CENTERS[0]).mul_(-1)
        assert error(again(text).logits, expected) > 1e-6
