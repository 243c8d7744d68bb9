"""What a verification is asked for, checked before torch is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from termwise.results import config_hash

DTYPES = ("all", "float32", "bfloat16")
SOAKED = ("float32", "bfloat16")
QUICK_SOAK = 1024
LEAST_SOAK = 512
STAGES = ("float64", "even", "float32", "bfloat16")
QUICK_STAGES = ("float64", "float32", "bfloat16")


@dataclass(frozen=True)
class VerifyConfig:
    """What is verified on which text.

    `soak`: tokens that are streamed; `dtype`: one precision beside float64, or all; `budget`: seconds of one call, None: all of it.
    """

    model: str
    text: tuple[str, ...] = ()
    column: str | None = None
    errors: str = "strict"
    soak: int = 8192
    quick: bool = False
    dtype: str = "all"
    device: str = "cpu"
    seed: int = 0
    budget: float | None = None

    def __post_init__(self) -> None:
        for name, allowed in (("dtype", DTYPES), ("errors", ("strict", "replace"))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r}; allowed are {', '.join(allowed)}")
        if self.soak and not LEAST_SOAK <= self.soak <= 2**24:
            raise ValueError(f"--soak {self.soak}; allowed are 0 (none) and {LEAST_SOAK} to 16m tokens, e.g. 8k")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed={self.seed}; allowed are whole numbers from 0 to {2**32 - 1}")

    @property
    def stages(self) -> tuple[str, ...]:
        """In which precisions, float64 first."""
        return tuple(
            stage
            for stage in (QUICK_STAGES if self.quick else STAGES)
            if self.dtype in ("all", stage) or stage in ("float64", "even")
        )

    @property
    def soak_length(self) -> int:
        """Tokens that are streamed."""
        return min(self.soak, QUICK_SOAK) if self.quick else self.soak

    @property
    def soaked(self) -> tuple[str, ...]:
        """In which precisions a long text is streamed."""
        return tuple(dtype for dtype in SOAKED if self.soak and self.dtype in ("all", dtype))


def resolved(config: VerifyConfig) -> dict[str, Any]:
    """The settings with what the model's files are now. ValueError for a model or a text that is not there.

    Without the budget: a call with another one goes on with what earlier ones left.
    """
    from termwise.data.sources import check_text
    from termwise.models.naming import find_model, fingerprint

    check_text(config.text or None, config.column)
    found, folder = asdict(config) | {"text": list(config.text)}, find_model(config.model).folder
    del found["budget"]
    return found | {"weights": None if folder is None else fingerprint(folder)}


def default_folder(settings: Mapping[str, Any]) -> Path:
    """termwise-runs/verify-HASH of what was asked for and of the model's files."""
    return Path("termwise-runs") / f"verify-{config_hash(dict(settings))}"
