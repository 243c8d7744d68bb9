"""What is allowed: a small YAML file written before the results, or the defaults."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Limits(BaseModel):
    """The bounds a candidate has to keep. A bound of None is not asked for.

    `accuracy` is the largest rise in held-out loss, nats/token; `memory` and `latency` the largest share of today's bytes
    and seconds at `context`. `machine` is (a part of) the processor's name the model will run on, `engines` must load it.
    `written` is when they were fixed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    accuracy: float = Field(default=0.05, ge=0, allow_inf_nan=False)
    memory: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    latency: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    context: int | None = Field(default=None, gt=0)
    candidate: str | None = None
    machine: str | None = None
    engines: tuple[str, ...] = ()
    written: datetime | None = None
    price_per_hour: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    requests_per_day: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    tokens_per_request: int = Field(default=256, gt=0)
    currency: str = ""


def read_limits(path: Path, **given: Any) -> Limits:
    """The limits of a file; `given` (from the command line) overrides it.

    ValueError that names the file, the field, the value and what is allowed.
    """
    raise NotImplementedError
