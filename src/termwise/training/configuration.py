"""What a training run is asked to do, checked before any work starts. Loads no torch."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

# What may change between a run and its resumption: nothing here enters the numbers of a step on one machine.
FREE_FIELDS = frozenset({"checkpoint_every", "keep", "on_nan", "log_every", "device", "threads"})
# Patterns in words, for messages.
DEVICES = r"^(auto|cpu|mps|cuda(:\d+)?)$"
_IN_WORDS = {DEVICES: "auto, cpu, mps, cuda or cuda:NUMBER"}
_Rate = Annotated[float, Field(ge=0, lt=1)]


def _dotted(place: tuple[int | str, ...]) -> str:
    return ".".join(map(str, place))


class Configuration(BaseModel):
    """A frozen pydantic model that reports all faults of its input as ONE ValueError (`Refused`) of one line.

    >>> TrainingConfig(steps=10, tokens_per_step=64, context=32, warmup=1)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    termwise.training.configuration.Refused: unknown field 'warmup'; did you mean 'warmup_steps'?; fields are ...
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise Refused(error, type(self)) from None


class Refused(ValueError):  # noqa: N818
    """A configuration with faults; `explain` says them in the names of fields, or of options on a command line."""

    def __init__(self, error: ValidationError, kind: type[BaseModel]) -> None:
        self.error, self.kind = error, kind
        super().__init__(self.explain())

    def explain(self, name_of: Callable[[tuple[int | str, ...]], str] = _dotted) -> str:
        """One line: name, value, what is allowed, the near name for a misspelt key or value."""
        told = (
            _explain_one(fault, name_of(fault["loc"]) if fault["loc"] else "", self.kind)
            for fault in self.error.errors()
        )
        return "; ".join(dict.fromkeys(told))


def _explain_one(fault: Any, name: str, kind: type[BaseModel]) -> str:
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        fields = list(kind.model_fields)
        return f"unknown field {name!r}{_near(name, fields)}; fields are {', '.join(fields)}"
    if fault["type"] == "missing":
        return f"field {name!r} is missing and has no default"
    if not name:
        return message
    context = fault.get("ctx", {})
    allowed = message.replace("Input should be", "allowed is", 1)
    if fault["type"] == "string_pattern_mismatch":
        allowed = f"allowed is {_IN_WORDS.get(context['pattern'], 'what matches ' + context['pattern'])}"
    if fault["type"] == "too_short":
        allowed = f"allowed is {context['min_length']} or more"
    expected = [word.strip("'") for word in str(context.get("expected", "")).replace(" or ", ", ").split(", ")]
    return f"{name}={fault['input']!r}: {allowed}{_near(str(fault['input']), expected)}"


def _near(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


class TrainingConfig(Configuration):
    """One run: `steps` updates of `tokens_per_step` tokens in rows of `context`, each cut into `micro_batches` parts.

    The learning rate rises linearly to `lr` over `warmup_steps` (default: a tenth of the steps, at most 100), then
    falls as a cosine and is lr * min_lr_ratio at the last step. A checkpoint is written every `checkpoint_every` steps
    (default: a tenth, at most 500) and at the end; the newest `keep` stay. `device` is "auto" (a CUDA card, else the
    processor), "cpu", "cuda", "cuda:1" or "mps"; `dtype` is "auto" (bfloat16 autocast on CUDA that has it, else
    float32), "float32" or "bfloat16". ValueError with one line for anything else.

    >>> TrainingConfig(steps=300, tokens_per_step=2048, context=256).warmup_steps
    30
    """

    steps: int = Field(ge=1)
    tokens_per_step: int = Field(ge=1)
    context: int = Field(ge=1)
    micro_batches: int = Field(default=1, ge=1)
    lr: float = Field(default=1e-3, gt=0)
    min_lr_ratio: float = Field(default=0.1, ge=0, le=1)
    warmup_steps: int = Field(default=0, ge=0)
    weight_decay: float = Field(default=0.1, ge=0)
    betas: tuple[_Rate, _Rate] = (0.9, 0.95)
    clip: float = Field(default=1.0, gt=0)
    seed: int = Field(default=0, ge=0, lt=2**32)
    checkpoint_every: int = Field(default=0, ge=1)
    keep: int = Field(default=2, ge=1)
    on_nan: Literal["stop", "skip"] = "stop"
    log_every: int = Field(default=1, ge=1)
    device: str = Field(default="auto", pattern=DEVICES)
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    threads: int = Field(default=1, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _fill_from_steps(cls, values: dict[str, Any]) -> dict[str, Any]:
        steps = values.get("steps")
        tenth = steps // 10 if isinstance(steps, int) else 0
        return {"warmup_steps": min(100, max(0, tenth)), "checkpoint_every": min(500, max(1, tenth))} | values

    @model_validator(mode="after")
    def _check_pairs(self) -> TrainingConfig:
        rows, rest = divmod(self.tokens_per_step, self.context)
        if rest or not rows:
            raise ValueError(
                f"tokens_per_step={self.tokens_per_step} is not a whole number of rows of context={self.context}; "
                f"nearest are {max(1, rows) * self.context} and {(rows + 1) * self.context}"
            )
        if self.micro_batches > rows:
            raise ValueError(
                f"micro_batches={self.micro_batches} is more than the {rows} rows of a step "
                f"(tokens_per_step / context); allowed are 1 to {rows}"
            )
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps={self.warmup_steps} must be below steps={self.steps}; 0 means no warm-up")
        return self

    def changed_fields(self, other: dict[str, Any]) -> list[str]:
        """The fields whose value in `other` (a dumped configuration) would give a different run."""
        mine = self.model_dump(mode="json")
        return [name for name in mine if name not in FREE_FIELDS and mine[name] != other.get(name)]
