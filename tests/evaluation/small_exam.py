"""Small models and a stage that is ready, for the tests of agreement."""

from __future__ import annotations

from typing import Any

import torch

from termwise.evaluation.exam import Exam, Sizes
from termwise.models import build


def small(name: str, **overrides: Any):
    """Two layers, four query heads over two kv heads of width 4."""
    fields: dict[str, Any] = {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.3,
    }  # fmt: skip
    return build(name, preset="tiny", vocab_size=29, seed=3, **fields | overrides).eval()


def examined(model: Any, stage: str = "float64") -> Exam:
    """A stage that is ready; what is exact is computed here."""
    sizes = Sizes.of(model.config.groups)
    text = torch.randint(29, (sizes.num_tokens,), generator=torch.Generator().manual_seed(1))
    exam = Exam(model, text, stage, seed=0)
    with exam.at_work():
        exam.prepare()
    return exam
