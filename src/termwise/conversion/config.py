"""What `termwise convert` is asked to do, checked before any work starts. Loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pydantic

from termwise.results import config_hash
from termwise.training.configuration import Configuration

MATCHING_SHARE = 0.25  # of the tuning, in time and in steps; the rest is end to end


class ConvertConfig(Configuration):
    """A conversion: which model, which plan, and how it is tuned.

    `tune` seconds or `steps` updates are shared by both stages; neither: the weights stay as they are. `labels` is the weight
    of the text's own next tokens beside the original's distribution. `lora` 0 tunes all weights.
    """

    model: str
    plan: str
    tune: float | None = pydantic.Field(None, gt=0)
    steps: int | None = pydantic.Field(None, ge=4)
    text: tuple[str, ...] = ()
    column: str | None = None
    errors: Literal["strict", "replace"] = "strict"
    lora: int = pydantic.Field(0, ge=0)
    labels: float = pydantic.Field(0.0, ge=0, le=1)
    tune_original: bool = False
    lr: float = pydantic.Field(1e-4, gt=0)
    rows: int = pydantic.Field(8, ge=1)
    context: int | None = pydantic.Field(None, ge=2)
    max_tokens: int = pydantic.Field(65_536, ge=1)
    seed: int = pydantic.Field(0, ge=0, lt=2**32)
    device: str = pydantic.Field("cpu", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")
    dtype: Literal["auto", "float32", "bfloat16"] | None = None

    @pydantic.model_validator(mode="after")
    def _check_pairs(self) -> ConvertConfig:
        if self.tune and self.steps:
            raise ValueError("--tune and --steps both say how long; give one of them")
        if self.is_tuned and not self.text:
            raise ValueError("tuning needs text: give --text FILE (what is held out of it is never trained on)")
        if self.column is not None and not self.text:
            raise ValueError(f"--column {self.column!r} is of a text; give --text FILE as well, or leave it out")
        if not self.is_tuned and (self.lora or self.labels or self.tune_original):
            raise ValueError(
                "--lora, --labels and --tune-original belong to tuning; give --tune 20m --text FILE as well"
            )
        if self.tune_original and not self.labels:
            raise ValueError(
                "--tune-original with --labels 0: against its own distribution the original has nothing to learn, its tuned "
                "loss is its loss; leave it out, or give --labels 0.5"
            )
        return self

    @property
    def is_tuned(self) -> bool:
        """Whether weights change."""
        return bool(self.tune or self.steps)


def default_folder(config: ConvertConfig) -> Path:
    """termwise-runs/convert-HASH of what was asked for."""
    return Path("termwise-runs") / f"convert-{config_hash(config.model_dump(mode='json'))}"


def resolved(config: ConvertConfig, layers: list[Any], weights: str) -> dict[str, Any]:
    """What run.json keeps: a changed plan, or an original of other weights, is another conversion.

    `weights` is `naming.fingerprint` of the original. How long `tune` is may change until steps are known.
    """
    return config.model_dump(mode="json") | {"plan_hash": config_hash(layers), "weights": weights}
