"""The schedule reaches its ends; norms, biases and embeddings do not decay."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from toy_training import make_config, make_model

from termwise.training.optimizer import decay_groups, learning_rate, make_optimizer


@pytest.mark.parametrize("steps", [1, 2, 7, 1000])
@pytest.mark.parametrize("ratio", [0.0, 0.1, 1.0])
def test_the_rate_is_exactly_its_end_value_at_the_last_step(steps: int, ratio: float) -> None:
    config = make_config(steps=steps, lr=3e-4, min_lr_ratio=ratio, warmup_steps=min(5, steps - 1))
    assert learning_rate(steps, config) == 3e-4 * ratio


def test_the_rate_rises_in_a_line_and_falls_without_a_jump() -> None:
    config = make_config(steps=200, lr=1.0, min_lr_ratio=0.1, warmup_steps=20)
    rates = [learning_rate(step, config) for step in range(1, 201)]
    assert rates[:20] == pytest.approx([step / 20 for step in range(1, 21)])
    assert max(rates) == rates[19] == 1.0
    falls = [before - after for before, after in itertools.pairwise(rates[19:])]
    assert all(0 <= fall < 0.01 for fall in falls)
    assert rates[109] == pytest.approx(0.55)


def test_only_matrices_that_are_no_embedding_and_no_norm_decay() -> None:
    class HeadNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(2, 4))

    model = make_model()
    model.heads, model.frozen = HeadNorm(), nn.Linear(3, 3).requires_grad_(False)
    model.norm_weight, model.blank_tokens = nn.Parameter(torch.ones(2, 4)), nn.Parameter(torch.ones(2, 8))
    decayed, undecayed = decay_groups(model)
    assert {name.rsplit(".", 2)[-2] for name in decayed} == {"q_proj", "k_proj", "v_proj", "o_proj", "mlp"}
    assert {"embed_tokens.weight", "heads.gain", "norm_weight", "blank_tokens", "layers.0.mlp.bias"} <= undecayed.keys()
    # The tied head is the embedding, once; what is frozen is nowhere.
    assert not [name for name in (*decayed, *undecayed) if "lm_head" in name or "frozen" in name]
    optimizer = make_optimizer(model, make_config(weight_decay=0.3))
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.0]


def test_a_model_without_trainable_weights_is_refused() -> None:
    with pytest.raises(ValueError, match="no trainable parameter"):
        make_optimizer(make_model().requires_grad_(False), make_config())
