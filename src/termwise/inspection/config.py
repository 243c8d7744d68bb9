"""What an inspection is asked to measure. Loads no torch: bad input is told at once."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pydantic

from termwise.results import config_hash
from termwise.training.configuration import DEVICES, Configuration

TOP_ORDER = 8
REDUCED = "taylor:0..2@mean+w{window}s{sinks}"
ENCODER_REDUCED = "taylor:0..2@mean"
# A later command may spend more time on the same folder.
EXTENDABLE = ("budget",)


class InspectConfig(Configuration):
    """Which model, on which text, for how long. `text` empty: the source of Python's standard library.

    `reduced`: what importance is measured with; None: orders 0..2 around the mean with the slots (an encoder has none).
    """

    model: str
    text: tuple[str, ...] = ()
    column: str | None = None
    errors: Literal["strict", "replace"] = "strict"
    texts: int = pydantic.Field(4, ge=2, le=1024)
    length: int = pydantic.Field(512, ge=8)
    window: int = pydantic.Field(64, ge=1)
    sinks: int = pydantic.Field(4, ge=0)
    reduced: str | None = None
    budget: float = pydantic.Field(900.0, gt=0)
    seed: int = pydantic.Field(0, ge=0, lt=2**32)
    device: str = pydantic.Field("cpu", pattern=DEVICES)

    @pydantic.model_validator(mode="after")
    def _check_pairs(self) -> InspectConfig:
        if self.window + self.sinks >= self.length:
            raise ValueError(
                f"--window {self.window} and --sinks {self.sinks} cover a text of --length {self.length}: nothing would be "
                "reduced; give longer texts or smaller slots"
            )
        return self


def default_folder(config: InspectConfig) -> Path:
    """termwise-runs/inspect-HASH of what was asked for, its budget aside, so that more time goes on in the same folder."""
    return Path("termwise-runs") / f"inspect-{config_hash(config.model_dump(mode='json', exclude={'budget'}))}"
