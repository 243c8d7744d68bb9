"""One measured value, and the schema that all files of a run carry."""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
from dataclasses import dataclass
from typing import Any

from termwise.results.environment import versions
from termwise.results.files import canonical_json

SCHEMA = 1
KINDS = ("train", "loss", "recall", "score", "term", "importance", "speed", "memory", "check", "plan")
STATUSES = ("ok", "failed", "excluded", "not_measured")
# The last version of termwise that reads each schema other than this one.
_READERS: dict[int, str] = {}


def check_schema(found: Any, where: str) -> None:
    """ValueError unless `found` is the schema this version reads; the message says which version reads it."""
    if found == SCHEMA and not isinstance(found, bool):
        return
    ours = f"termwise {versions().get('termwise', 'as installed')} reads schema {SCHEMA}"
    if isinstance(found, int) and found > SCHEMA:
        raise ValueError(f"{where}: schema {found} was written by a newer termwise; {ours}: update termwise to read it")
    if found in _READERS:
        raise ValueError(f"{where}: schema {found} is too old; {ours}; termwise {_READERS[found]} reads schema {found}")
    raise ValueError(f"{where}: schema {found!r} was never written by termwise; {ours}")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One measured value, with all that is needed to judge it. `value` is None exactly when status is not "ok".

    `unit` is spelled out ("nats/token", "bits/byte", "s", "B", "tokens/s"), `low` and `high` bound an interval of
    `level`, `n` counts what was averaged, `baseline` names the variant compared with. ValueError for NaN and infinity.

    >>> record = Record(run_id="study-1", kind="loss", subject={"variant": "softmax", "seed": 0},
    ...                 metric="held-out loss", value=2.25, unit="nats/token")
    >>> Record.from_json(record.to_json()) == record
    True
    """

    schema: int = SCHEMA
    run_id: str
    kind: str
    subject: dict[str, Any]
    metric: str
    value: float | None
    unit: str
    low: float | None = None
    high: float | None = None
    level: float | None = None
    n: int | None = None
    method: str | None = None
    baseline: str | None = None
    status: str = "ok"
    reason: str | None = None
    started: str | None = None
    seconds: float | None = None
    form: str | None = None
    config_hash: str | None = None

    def __post_init__(self) -> None:
        for name, allowed in (("kind", KINDS), ("status", STATUSES)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"record: {name}={getattr(self, name)!r}; allowed are {', '.join(allowed)}")
        for name in ("value", "low", "high", "level", "seconds"):
            object.__setattr__(self, name, _number(name, getattr(self, name)))
        if (self.value is None) == (self.status == "ok"):
            raise ValueError(
                f"record: value={self.value!r} with status={self.status!r}; a value stands exactly where status is ok"
            )
        if self.status != "ok" and not self.reason:
            raise ValueError(f"record: status={self.status!r} needs a reason")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"record: low={self.low!r} is above high={self.high!r}")
        canonical_json(self.subject)

    def to_json(self) -> str:
        """One line of JSON with every field, in the order of the class."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, where: str = "record") -> Record:
        """Read one line. ValueError for another schema (naming the version that reads it) or unknown fields."""
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise ValueError(f"{where}: not a JSON object")
        check_schema(fields.get("schema"), where)
        try:
            return cls(**fields)
        except TypeError as error:
            raise ValueError(f"{where}: not a record of schema {SCHEMA} ({error})") from error


def _number(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"record: {name}={value!r}; allowed are a number and None")
    if not math.isfinite(value):
        raise ValueError(f"record: {name}={value!r} is no measured value; use None, status='failed' and a reason")
    return int(value) if isinstance(value, numbers.Integral) else float(value)
