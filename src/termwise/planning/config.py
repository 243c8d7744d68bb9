"""What a plan is asked to meet. Loads no torch: bad input is told at once."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pydantic

from termwise.results import config_hash
from termwise.training.configuration import DEVICES, Configuration

# A later command may spend more time on the same folder.
EXTENDABLE = ("budget",)


class PlanConfig(Configuration):
    """Which model, at which context, under which target.

    `source`: a model, or the folder of an inspection, whose model and text are taken. `length` None: texts as long as the
    context. The first of `planning_texts` gives the centers, the others choose; `texts` others report. `longer`: tokens of one
    more text that the chosen plan is evaluated on. `dtype`: of the model in evaluations of whole plans.
    """

    source: str
    context: int = pydantic.Field(ge=16)
    max_loss: float | None = pydantic.Field(None, gt=0)
    max_state: float | None = pydantic.Field(None, gt=0, lt=1)
    cache_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    text: tuple[str, ...] = ()
    column: str | None = None
    errors: Literal["strict", "replace"] = "strict"
    texts: int = pydantic.Field(8, ge=2, le=1024)
    planning_texts: int = pydantic.Field(3, ge=2, le=64)
    length: int | None = pydantic.Field(None, ge=16)
    shares: tuple[float, ...] = pydantic.Field((0.05, 0.10, 0.25), min_length=1)
    longer: int | None = pydantic.Field(None, ge=16)
    anchors: int = pydantic.Field(8, ge=0, le=1000)
    budget: float = pydantic.Field(7200.0, gt=0)
    seed: int = pydantic.Field(0, ge=0, lt=2**32)
    device: str = pydantic.Field("cpu", pattern=DEVICES)
    dtype: Literal["float32", "bfloat16"] = "float32"

    @pydantic.model_validator(mode="after")
    def _check_pairs(self) -> PlanConfig:
        if (self.max_loss is None) == (self.max_state is None):
            given = "both --max-loss and --max-state" if self.max_loss is not None else "no target"
            raise ValueError(f"{given}; give one of them, e.g. --max-state 25% or --max-loss 0.05 (nats a token)")
        if self.length is not None and self.length > self.context:
            raise ValueError(
                f"--length {self.length} is beyond --context {self.context}; texts are at most as long as it"
            )
        if self.longer is not None and self.longer <= self.context:
            raise ValueError(
                f"--longer {self.longer} is not beyond --context {self.context}; give more tokens than the context, or leave it out"
            )
        wrong = [share for share in self.shares if not 0 < share < 1]
        if wrong:
            raise ValueError(f"--shares {wrong[0]}: shares of the cache lie above 0 and below 100%, e.g. 5%,10%,25%")
        return self

    @property
    def text_length(self) -> int:
        """Tokens of each text."""
        return self.length or self.context

    @property
    def every_share(self) -> tuple[float, ...]:
        """The budgets of the front, the target's own among them, in order."""
        own = () if self.max_state is None else (self.max_state,)
        return tuple(sorted({*self.shares, *own}))


def default_folder(config: PlanConfig) -> Path:
    """termwise-runs/plan-HASH of what was asked for, its budget aside, so that more time goes on in the same folder."""
    return Path("termwise-runs") / f"plan-{config_hash(config.model_dump(mode='json', exclude={'budget'}))}"


def parse_share(text: str, option: str) -> float:
    """A share as it is typed. ValueError for anything else.

    >>> parse_share("25%", "--max-state"), parse_share("0.1", "--max-state")
    (0.25, 0.1)
    """
    try:
        number = float(text.strip().removesuffix("%"))
    except ValueError:
        raise ValueError(f"{option} {text!r} is no share; allowed are like 25% or 0.25") from None
    share = number / 100 if text.strip().endswith("%") else number
    if not 0 < share < 1:
        raise ValueError(f"{option} {text!r}: a share lies above 0 and below 100%; allowed are like 25% or 0.25")
    return share


def parse_shares(text: str) -> tuple[float, ...]:
    """Shares with commas, in order and once each.

    >>> parse_shares("25%,5%")
    (0.05, 0.25)
    """
    return tuple(sorted({parse_share(part, "--shares") for part in text.split(",")}))


def parse_context(text: str) -> int:
    """Tokens as they are typed; "4k" is 4,096. ValueError for anything else.

    >>> parse_context("4k"), parse_context("1000")
    (4096, 1000)
    """
    number, is_thousands = text.strip().lower().removesuffix("k"), text.strip().lower().endswith("k")
    if not (number.isascii() and number.isdigit()):
        raise ValueError(f"{text!r} is no number of tokens; allowed are like 4k or 4096")
    return int(number) * (1024 if is_thousands else 1)
