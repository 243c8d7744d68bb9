"""What every step of a plan works with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from termwise.attention.spec import AttentionSpec
from termwise.planning.config import PlanConfig
from termwise.planning.opening import Opened
from termwise.results import RunFolder

Say = Callable[[str], None]


@dataclass
class Planning:
    """Everything a run of the command works with."""

    config: PlanConfig
    folder: RunFolder
    say: Say
    opened: Opened
    options: tuple[AttentionSpec, ...]
    shares: tuple[float, ...]
    started: float

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self.config.budget - (time.monotonic() - self.started)

    def part(self, name: str) -> Path:
        """Where a measured part is kept."""
        return self.folder.path / "parts" / f"{name}.safetensors"
