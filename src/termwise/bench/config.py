"""What a benchmark is asked to measure. Loads no torch: bad input is told at once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import pydantic

from termwise.results import config_hash
from termwise.training.configuration import Configuration

Measure = Literal["prefill", "decode", "memory", "training", "step", "generate"]
ATTENTION_MEASURES: tuple[Measure, ...] = ("prefill", "decode", "memory", "training")
MODEL_MEASURES: tuple[Measure, ...] = ("step", "generate")
DEFAULT_LENGTHS = (1024, 4096, 16384, 65536)
# Fields of an existing folder that a later command may extend.
EXTENDABLE = ("variants", "lengths", "measures")
BASELINE = "sdpa"


class BenchConfig(Configuration):
    """Which variants and models, at which lengths, in which shape. `measures` empty: what each kind of subject has."""

    variants: tuple[str, ...]
    lengths: tuple[int, ...] = pydantic.Field(DEFAULT_LENGTHS, min_length=1)
    measures: tuple[Measure, ...] = ()
    heads: int = pydantic.Field(8, ge=1, le=1024)
    kv_heads: int = pydantic.Field(8, ge=1, le=1024)
    key_width: int = pydantic.Field(64, ge=1, le=1024)
    value_width: int = pydantic.Field(64, ge=1, le=1024)
    batch: int = pydantic.Field(1, ge=1, le=1024)
    dtype: Literal["float32", "bfloat16"] = "float32"
    threads: int = pydantic.Field(1, ge=1, le=1024)
    repeats: int = pydantic.Field(5, ge=2, le=1000)
    half_state: bool = False
    clock: Literal["wall", "cpu"] = "wall"
    seed: int = pydantic.Field(0, ge=0, lt=2**32)
    device: str = pydantic.Field("cpu", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")

    @pydantic.model_validator(mode="before")
    @classmethod
    def _fill(cls, values: dict) -> dict:
        """kv heads are the heads, the value width is the key width, unless given."""
        given = {name: value for name, value in values.items() if value is not None}
        if not given.get("variants"):
            raise ValueError("nothing to measure; name variants or model folders, e.g. termwise bench taylor:0..2")
        given["variants"] = tuple(dict.fromkeys(given["variants"]))
        heads, width = given.get("heads", 8), given.get("key_width", 64)
        return {"kv_heads": heads, "value_width": width} | given

    @pydantic.model_validator(mode="after")
    def _check_pairs(self) -> BenchConfig:
        if self.heads % self.kv_heads:
            raise ValueError(
                f"--heads {self.heads} over --kv-heads {self.kv_heads}: the kv heads must divide the heads"
            )
        if self.clock == "cpu" and (
            self.device != "cpu" or self.threads > 1 or set(self.measures) & set(MODEL_MEASURES)
        ):
            raise ValueError(
                f"--clock cpu with --device {self.device}, --threads {self.threads}, --measures {','.join(self.measures) or 'as usual'}: "
                "the time of one thread tells what attention takes on a CPU; use --clock wall for models, threads and other devices"
            )
        if self.half_state and self.dtype != "bfloat16":
            raise ValueError(
                f"--half-state with --dtype {self.dtype}: a state read from a bfloat16 copy is compared with a bfloat16 cache; "
                "add --dtype bfloat16"
            )
        for length in self.lengths:
            if not 2 <= length <= 2**20:
                raise ValueError(f"--lengths {length}; allowed are 2 to 1m tokens, e.g. 512,4k,64k")
        return self


def parse_lengths(text: str, option: str = "--lengths") -> tuple[int, ...]:
    """Lengths as they are typed, in order and once each: "1k" is 1,024. ValueError for anything else.

    >>> parse_lengths("512,4k,1k,4k")
    (512, 1024, 4096)
    """
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)([km]?)", part.strip().lower())
        if not match:
            raise ValueError(f"{option} {text!r}: {part.strip()!r} is no length; allowed are like 512,1k,4k,64k")
        found.append(int(match[1]) * {"": 1, "k": 1024, "m": 1024**2}[match[2]])
    return tuple(sorted(set(found)))


def default_folder(config: BenchConfig) -> Path:
    """termwise-runs/bench-HASH of what was asked for."""
    return Path("termwise-runs") / f"bench-{config_hash(config.model_dump(mode='json'))}"
