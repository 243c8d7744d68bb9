"""The loop on termwise's own model: resumed bit by bit, NaN named by head, the result loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from toy_training import CONTEXT, TOKENS, VOCAB, log_lines, make_batch, make_config

from termwise.models.build import build, load
from termwise.training.faults import TrainingDiverged
from termwise.training.loop import train


def make_real_model(name: str = "taylor:0..2") -> Any:
    return build(name, preset="recall", vocab_size=VOCAB, seed=0, num_key_value_heads=1)


def test_a_resumed_run_is_bit_identical_and_its_model_loads(tmp_path: Path) -> None:
    def stop(line: dict[str, Any]) -> None:
        if line["step"] == 5:
            raise LookupError

    config = make_config(steps=8)
    model = make_real_model()
    train(model, make_batch, config, tmp_path / "whole")
    with pytest.raises(LookupError):
        train(make_real_model(), make_batch, config, tmp_path / "cut", on_step=stop)
    train(make_real_model(), make_batch, config, tmp_path / "cut")
    for name in ("checkpoints/8/model.safetensors", "checkpoints/8/optimizer.safetensors", "model/model.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert log_lines(tmp_path / "cut") == log_lines(tmp_path / "whole")
    loaded, _ = load(tmp_path / "whole" / "model")
    ids = torch.arange(CONTEXT)[None]
    assert torch.equal(loaded.eval()(ids).logits, model.eval()(ids).logits)


@pytest.mark.parametrize(
    ("name", "row", "head"),
    [("self_attn.q_proj.weight", 40, 1), ("self_attn.k_proj.weight", 31, 0), ("mlp.up_proj.weight", 3, None)],
)
def test_a_bad_weight_is_named_with_its_head(tmp_path: Path, name: str, row: int, head: int | None) -> None:
    model = make_real_model()
    model.get_parameter(f"model.layers.1.{name}").data[row] = torch.nan
    with pytest.raises(TrainingDiverged) as caught:
        train(model, make_batch, make_config(), tmp_path)
    assert (caught.value.layer, caught.value.head) == (1, head)
    assert caught.value.tensor == f"weight model.layers.1.{name}"


def test_a_nan_inside_attention_is_named_where_it_comes_out(tmp_path: Path) -> None:
    model = make_real_model()

    def poison(module: Any, arguments: Any, keywords: Any) -> Any:
        hidden = arguments[0].clone()
        hidden[..., TOKENS // 2, -1] = torch.nan
        return (hidden, *arguments[1:]), keywords

    model.model.layers[0].self_attn.o_proj.register_forward_pre_hook(poison, with_kwargs=True)
    with pytest.raises(TrainingDiverged) as caught:
        train(model, make_batch, make_config(), tmp_path)
    assert (caught.value.layer, caught.value.head, caught.value.micro_batch) == (0, 1, 0)
    assert caught.value.tensor == "input of model.layers.0.self_attn.o_proj"
