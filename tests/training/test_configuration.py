"""A broken configuration gets one line with the field, the value, what is allowed and the near name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from termwise.training.configuration import TrainingConfig

GOOD = {"steps": 100, "tokens_per_step": 96, "context": 12}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"warmup_step": 3}, ["unknown field 'warmup_step'", "did you mean 'warmup_steps'?", "fields are steps"]),
        ({"lr": -1}, ["lr=-1", "allowed is greater than 0"]),
        ({"lr": float("nan")}, ["lr=nan", "allowed is a finite number"]),
        ({"steps": "many"}, ["steps='many'", "valid integer"]),
        ({"on_nan": "skipp"}, ["on_nan='skipp'", "'stop' or 'skip'", "did you mean 'skip'?"]),
        ({"betas": (0.9, 1.0)}, ["betas.1=1.0", "less than 1"]),
        ({"device": "gpu"}, ["device='gpu'"]),
        ({"keep": 0}, ["keep=0", "greater than or equal to 1"]),
        ({"context": 10}, ["tokens_per_step=96", "context=10", "nearest are 90 and 100"]),
        ({"micro_batches": 9}, ["micro_batches=9", "8 rows", "allowed are 1 to 8"]),
        ({"warmup_steps": 100}, ["warmup_steps=100", "steps=100"]),
        ({"lr": 0, "keep": 0}, ["lr=0", "keep=0"]),
    ],
)
def test_one_line_says_what_is_wrong_and_what_is_allowed(changes: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        TrainingConfig(**(GOOD | changes))
    message = str(caught.value)
    assert [word for word in words if word not in message] == []
    assert "\n" not in message
    assert "pydantic" not in message


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ValueError, match=r"^field 'context' is missing"):
        TrainingConfig(steps=1, tokens_per_step=4)


def test_validation_of_loaded_json_speaks_the_same_way() -> None:
    with pytest.raises(ValueError, match="did you mean 'seed'"):
        TrainingConfig.model_validate(GOOD | {"sead": 1})


def test_defaults_follow_the_number_of_steps() -> None:
    short, long = (TrainingConfig(**(GOOD | {"steps": steps})) for steps in (1, 100_000))
    assert (short.warmup_steps, short.checkpoint_every) == (0, 1)
    assert (long.warmup_steps, long.checkpoint_every) == (100, 500)


def test_a_configuration_survives_json_and_names_changed_fields() -> None:
    config = TrainingConfig(**GOOD)
    dumped = config.model_dump(mode="json")
    assert TrainingConfig(**dumped) == config
    assert config.changed_fields(dumped) == []
    changed = dumped | {"lr": 1.0, "betas": [0.5, 0.6], "keep": 7, "checkpoint_every": 9, "threads": 2}
    assert config.changed_fields(changed) == ["lr", "betas"]


def test_a_configuration_is_checked_without_torch() -> None:
    code = "import sys, termwise.training.configuration; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
