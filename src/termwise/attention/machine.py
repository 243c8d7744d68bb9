"""The constants of this machine that the choice of a form is made with: usual ones, or those measured and kept."""

from __future__ import annotations

import functools
import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from termwise.attention.backends.compiled import cache_folder
from termwise.attention.cost import TERMS

SCHEMA = 1
# Seconds for each term of `cost`, one thread, float32.
USUAL: dict[str, float] = {
    "parallel_call": 0.00058, "parallel_products": 2.3e-11, "parallel_scores": 8.8e-10, "parallel_spill": 0.0,
    "parallel_pages": 7.6e-09, "chunked_call": 0.0, "chunked_blocks": 0.00077, "chunked_products": 1.2e-10,
    "chunked_scores": 1.1e-09, "reads": 4.7e-11, "folds": 4.1e-12, "features": 4.9e-10,
}  # fmt: skip
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Machine:
    """Seconds of each term in `cost.TERMS`. ValueError for a missing or unknown term and for what is no number from 0 on.

    >>> Machine().seconds["reads"] > 0
    True
    """

    seconds: Mapping[str, float] = field(default_factory=lambda: dict(USUAL))
    source: str = "usual constants"

    def __post_init__(self) -> None:
        wrong = sorted(set(self.seconds) ^ set(TERMS))
        if wrong:
            raise ValueError(f"constants {', '.join(wrong)} are missing or unknown; expected are {', '.join(TERMS)}")
        for name, value in self.seconds.items():
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value) or value < 0:
                raise ValueError(f"constant {name} is {value!r}; allowed are numbers from 0 on")

    def save(self, path: Path, **about: Any) -> None:
        """Keep the constants with what was said of how they were measured."""
        from termwise.results import atomic_write_text

        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {"schema": SCHEMA, "seconds": dict(self.seconds), "about": about}
        atomic_write_text(path, json.dumps(kept, indent=1) + "\n")
        this_machine.cache_clear()

    @classmethod
    def load(cls, path: Path) -> Machine:
        """The constants of a file. ValueError for anything that is none."""
        kept = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(kept, dict) or kept.get("schema") != SCHEMA or not isinstance(kept.get("seconds"), dict):
            raise ValueError(f"not the constants of a machine in schema {SCHEMA}")
        return cls(kept["seconds"], source=f"measured, {path}")


def machine_file() -> Path:
    """Where `termwise bench --calibrate` keeps the constants."""
    return cache_folder() / "machine.json"


@functools.lru_cache(maxsize=1)
def this_machine() -> Machine:
    """The constants kept for this machine, read once; the usual ones where there are none or the file is damaged, aloud."""
    path = machine_file()
    try:
        return Machine.load(path)
    except FileNotFoundError:
        return Machine()
    except (OSError, ValueError) as error:
        _log.warning(
            "%s is not used (%s): form='auto' goes by usual constants; termwise bench --calibrate measures it anew",
            path,
            error,
        )
        return Machine()
