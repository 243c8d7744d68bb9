"""What an inspection is asked to measure. Loads no torch: bad input is told at once."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pydantic

from termwise.results import config_hash
from termwise.training.configuration import DEVICES, Configuration

TOP_ORDER = 8
DEFAULT_LENGTH, LEAST_LENGTH = 512, 8
REDUCED = "taylor:0..2@mean+w{window}s{sinks}"
ENCODER_REDUCED = "taylor:0..2@mean"
# A later command may spend more time on the same folder.
EXTENDABLE = ("budget",)


class InspectConfig(Configuration):
    """Which model, on which text, for how long. `text` empty: the source of Python's standard library.

    `length` None: 512, or the model's context where that is shorter (`fitted` puts it in).
    `reduced`: what importance is measured with; None: orders 0..2 around the mean with the slots (an encoder has none).
    """

    model: str
    text: tuple[str, ...] = ()
    column: str | None = None
    errors: Literal["strict", "replace"] = "strict"
    texts: int = pydantic.Field(4, ge=2, le=1024)
    length: int | None = pydantic.Field(None, ge=LEAST_LENGTH)
    window: int = pydantic.Field(64, ge=1)
    sinks: int = pydantic.Field(4, ge=0)
    reduced: str | None = None
    budget: float = pydantic.Field(900.0, gt=0)
    seed: int = pydantic.Field(0, ge=0, lt=2**32)
    device: str = pydantic.Field("cpu", pattern=DEVICES)

    @property
    def text_length(self) -> int:
        """Tokens of each text."""
        return self.length or DEFAULT_LENGTH


def fitted(config: InspectConfig, context: int) -> InspectConfig:
    """The settings with the length of the texts for a model of this context. ValueError where it is too short for any.

    >>> fitted(InspectConfig(model="m"), 128).length, fitted(InspectConfig(model="m"), 2048).length
    (128, 512)
    """
    if config.length is not None:
        return config
    if context < LEAST_LENGTH:
        raise ValueError(
            f"{config.model} has a context of {context}; an inspection reads texts of at least {LEAST_LENGTH} tokens"
        )
    return InspectConfig(**(config.model_dump() | {"length": min(DEFAULT_LENGTH, context)}))


def default_folder(config: InspectConfig) -> Path:
    """termwise-runs/inspect-HASH of what was asked for, its budget aside, so that more time goes on in the same folder."""
    asked = config.model_dump(mode="json", exclude={"budget"}) | {"length": config.text_length}
    return Path("termwise-runs") / f"inspect-{config_hash(asked)}"
