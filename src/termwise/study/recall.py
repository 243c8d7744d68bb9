"""Recall: the steps a small model of a variant needs until it looks up every pair it has seen."""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from termwise.study.grid import RunConfig

REACHED = 0.99
SLOWEST = 3
"""A variant that needs more than so many times the median step of those that reached it counts as not reached."""

PRESET, BATCH, LENGTH, LEARNING_RATE, WARMUP = "recall", 32, 32, 1e-3, 50
# Weights three times as large as a language model's: at width 64 softmax else stays for long where it only guesses.
INITIAL_RANGE = 0.06
MAX_STEPS = 1500
CHECK_EVERY = 25
TEST_BATCHES, TEST_BATCH = 4, 64


class _Reached(Exception):  # noqa: N818
    """Ends the training loop from inside once nothing is left to learn."""


def recall_config(config: RunConfig, max_steps: int = MAX_STEPS) -> RunConfig:
    """The recall run that belongs to a training run: same variant and seed, the task's own sizes."""
    fields = config.model_dump() | {
        "kind": "recall", "preset": PRESET, "steps": max_steps, "tokens_per_step": BATCH * LENGTH, "context": LENGTH, "lr": None,
    }  # fmt: skip
    return RunConfig(**fields)


def measure_recall(folder: Path, config: RunConfig) -> dict[str, Any]:
    """Train on the recall task until `REACHED` or the steps are used up: accuracy by step, and by distance at the end."""
    from termwise.data.synthetic import RECALL_VOCAB, recall
    from termwise.study.run import new_model, training_config
    from termwise.training.loop import train

    model = new_model(config, RECALL_VOCAB, initializer_range=INITIAL_RANGE)
    training = training_config(
        config, lr=LEARNING_RATE, min_lr_ratio=1.0, warmup_steps=WARMUP, checkpoint_every=CHECK_EVERY, keep=1
    )

    def look(line: dict[str, Any]) -> None:
        if line.get("evaluation", {}).get("accuracy", 0.0) >= REACHED:
            raise _Reached

    try:
        train(
            model,
            lambda step: recall(config.seed, step, BATCH, length=LENGTH),
            training,
            folder,
            evaluate=lambda model: {"accuracy": test_accuracy(model)},
            on_step=look,
        )
    except _Reached:
        model.save_pretrained(folder / "model")
    shutil.rmtree(folder / "checkpoints")
    return {
        "curve": read_curve(folder / "log.jsonl"), "max_steps": config.steps, "by_distance": test_by_distance(model),
    }  # fmt: skip


def read_curve(log: Path) -> list[tuple[int, float]]:
    """(step, accuracy) of every look, from the log."""
    lines = (json.loads(line) for line in log.read_text(encoding="utf-8").splitlines())
    return [(line["step"], line["evaluation"]["accuracy"]) for line in lines if "evaluation" in line]


def test_accuracy(model: Any) -> float:
    """Share of queried keys answered rightly on sequences that no training step sees."""
    from termwise.evaluation import recall_accuracy

    return recall_accuracy(model, num_batches=TEST_BATCHES, batch=TEST_BATCH)


def test_by_distance(model: Any) -> list[tuple[int, int, float, int]]:
    """(low, high, accuracy, queries): the same sequences apart by how far back the key was last seen."""
    from termwise.evaluation import recall_by_distance

    found = recall_by_distance(model, num_batches=TEST_BATCHES, batch=TEST_BATCH)
    return [(one.low, one.high, one.accuracy, one.num_queries) for one in found]


def steps_to_recall(curve: Sequence[Sequence[float]]) -> int | None:
    """The first step at which `REACHED` was there.

    >>> steps_to_recall([(25, 0.2), (50, 1.0)])
    50
    """
    return next((int(step) for step, accuracy in curve if accuracy >= REACHED), None)


def allowed_steps(curves: Iterable[Sequence[Sequence[float]]]) -> int | None:
    """Three times the median step of the variants that reached it; None when none did.

    >>> allowed_steps([[(300, 1.0)], [(400, 0.99)], [(900, 0.4)]])
    1050
    """
    reached = [step for curve in curves if (step := steps_to_recall(curve)) is not None]
    return round(SLOWEST * statistics.median(reached)) if reached else None
