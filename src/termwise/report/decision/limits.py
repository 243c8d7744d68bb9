"""What is allowed: a small YAML file written before the results, or the defaults."""

from __future__ import annotations

import datetime
import difflib
import re
import reprlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, field_validator

NUMBERS = (
    "accuracy", "memory", "latency", "context", "price_per_hour", "requests_per_day", "tokens_per_request",
)  # fmt: skip
MOST_TOKENS = 2**24
# What a field may hold, as its message says it; the bounds are those of the fields below.
ALLOWED = {
    "accuracy": "numbers from 0 to 10 (nats/token), e.g. 0.05",
    "memory": "numbers above 0, at most 1000 (0.5: half of today's bytes), e.g. 0.5",
    "latency": "numbers above 0, at most 1000 (1.0: today's time), e.g. 1.0",
    "context": "whole numbers of tokens from 1 to 16m, e.g. 4096 or 4k",
    "candidate": "names as the records have them, e.g. plan:25%",
    "machine": "parts of a processor's name, e.g. EPYC",
    "engines": "names, one or a list of them, e.g. [transformers]",
    "written": "dates and times like 2026-01-31T09:00+09:00",
    "price_per_hour": "numbers from 0 to 1e9, e.g. 1.2",
    "requests_per_day": "numbers above 0, at most 1e12, e.g. 20000",
    "tokens_per_request": "whole numbers from 1 to 16777216, e.g. 300",
    "currency": "texts of at most 20 letters, e.g. USD",
}
LINES = "allowed are lines like accuracy: 0.05"


class Limits(BaseModel):
    """The bounds a candidate has to keep. A bound of None is not asked for.

    `accuracy` is the largest rise in held-out loss, nats/token; `memory` and `latency` the largest share of today's bytes
    and seconds at `context`. `machine` is (a part of) the processor's name the model will run on, `engines` must load it.
    `candidate` stands on the manager's page. `written` is when they were fixed: without a zone it is UTC, a day alone its end.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    accuracy: float = Field(default=0.05, ge=0, le=10, allow_inf_nan=False)
    memory: float | None = Field(default=None, gt=0, le=1000, allow_inf_nan=False)
    latency: float | None = Field(default=None, gt=0, le=1000, allow_inf_nan=False)
    context: int | None = Field(default=None, gt=0, le=MOST_TOKENS)
    candidate: str | None = Field(default=None, min_length=1)
    machine: str | None = Field(default=None, min_length=1)
    engines: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    written: AwareDatetime | None = None
    price_per_hour: float | None = Field(default=None, ge=0, le=1e9, allow_inf_nan=False)
    requests_per_day: float | None = Field(default=None, gt=0, le=1e12, allow_inf_nan=False)
    tokens_per_request: int = Field(default=256, gt=0, le=MOST_TOKENS)
    currency: str = Field(default="", max_length=20)

    @field_validator(*NUMBERS, mode="before")
    @classmethod
    def _is_no_answer(cls, value: Any) -> Any:
        """YAML reads yes and no as truth values, which would count as 1 and 0."""
        if isinstance(value, bool):
            raise ValueError("no number")
        return value

    @field_validator("context", mode="before")
    @classmethod
    def _in_thousands(cls, value: Any) -> Any:
        """As lengths are typed elsewhere: 4k is 4,096, 1m is 1,048,576."""
        found = re.fullmatch(r"(\d{1,9})([km])", value.strip().lower()) if isinstance(value, str) else None
        return int(found[1]) * {"k": 1024, "m": 1024**2}[found[2]] if found else value

    @field_validator("candidate", "machine", mode="before")
    @classmethod
    def _without_blanks(cls, value: Any) -> Any:
        """A blank alone stands in the name of every processor."""
        return value.strip() if isinstance(value, str) else value

    @field_validator("engines", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("written", mode="before")
    @classmethod
    def _with_its_zone(cls, value: Any) -> Any:
        if isinstance(value, str):
            try:
                day_alone = len(value.strip()) == len("2026-01-31")
                value = datetime.date.fromisoformat(value) if day_alone else datetime.datetime.fromisoformat(value)
            except ValueError:
                pass
        if value is None:
            return None
        if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
            value = datetime.datetime.combine(value, datetime.time.max)
        # Near the ends of the calendar another zone's day does not exist.
        if isinstance(value, datetime.datetime) and datetime.MINYEAR < value.year < datetime.MAXYEAR:
            return value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
        raise ValueError("no date")


def read_limits(path: Path | None = None, **given: Any) -> Limits:
    """The limits of a file, of the defaults without one; what is `given` (by the command line) and not None overrides it.

    ValueError in one line that names the file (or the option), the field, the value and what is allowed.
    """
    values = {} if path is None else _read(path)
    options = {name: value for name, value in given.items() if value is not None}
    try:
        return Limits(**(values | options))
    except ValidationError as error:
        told = dict.fromkeys(_explained(fault, path, values, options) for fault in error.errors())
        raise ValueError("; ".join(told)) from None


def fixed_before(limits: Limits, created: Iterable[str]) -> bool | None:
    """Whether the limits were written before the first of these times (`created` of the runs); None where that is not known.

    >>> fixed_before(Limits(written="2026-01-31T09:00+09:00"), ["2026-01-31T00:00:01+00:00"])
    True
    """
    times = [time for time in map(_time, created) if time is not None]
    return None if limits.written is None or not times else limits.written < min(times)


def _time(text: Any) -> datetime.datetime | None:
    """A time of run.json; None for what is none."""
    try:
        found = datetime.datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


def _read(path: Path) -> dict[str, Any]:
    """The fields of a YAML file, each once."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8-sig")
        node, found = yaml.compose(text, Loader=yaml.SafeLoader), yaml.safe_load(text)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file; give --limits a YAML file, {LINES}") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); give --limits a YAML file, {LINES}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: no UTF-8 text from byte {error.start} on; {LINES}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1} is" if mark is not None else "is"
        raise ValueError(f"{path}: {line} not YAML; {LINES}") from None
    except ValueError:
        raise ValueError(
            f"{path}: holds a date or a number that does not exist; {LINES}, written: 2026-01-31"
        ) from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        what = "a list" if isinstance(found, list) else "a single value"
        raise ValueError(f"{path}: holds {what}, where fields are expected; {LINES}")
    names = [str(key.value) for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{path}: {twice} stands there twice; leave one of them")
    return {str(name): value for name, value in found.items()}


def _explained(fault: Any, path: Path | None, values: dict[str, Any], options: dict[str, Any]) -> str:
    """One fault: where, the field, its whole value, what is allowed and what to do, the near name of a misspelt key."""
    field = str(fault["loc"][0])
    where = f"--{field.replace('_', '-')} " if field in options else f"{path}: {field}=" if path else f"{field}="
    if fault["type"] == "extra_forbidden":
        known = list(Limits.model_fields)
        near = difflib.get_close_matches(field, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"{path or 'limits'}: unknown field {field!r}{hint}; fields are {', '.join(known)}"
    value = (values | options)[field]
    return f"{where}{reprlib.repr(value)}: allowed are {ALLOWED[field]}; correct it or leave it out"
