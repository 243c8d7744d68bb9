"""What every step of an inspection works with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from termwise.inspection.config import InspectConfig
from termwise.results import RunFolder

if TYPE_CHECKING:
    from termwise.analysis.passages import Passages
    from termwise.analysis.pretrained import Pretrained
    from termwise.attention.spec import AttentionSpec, Local

Say = Callable[[str], None]


@dataclass
class Inspection:
    """Everything a run of the command works with. `recordings`, `figures` and `exact` grow text by text."""

    config: InspectConfig
    folder: RunFolder
    say: Say
    pretrained: Pretrained
    passages: Passages
    spec: AttentionSpec
    local: Local | None
    started: float
    recordings: list[Any] = field(default_factory=list)
    figures: list[Any] = field(default_factory=list)
    spoken: float = 0.0

    @property
    def has_loss(self) -> bool:
        """Whether the model is a language model; an encoder's measure is the change of its final hidden state."""
        return self.pretrained.head is not None

    @property
    def exact(self) -> list[float]:
        """The model's own loss on each text."""
        return [figure.loss for figure in self.figures]

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self.config.budget - (time.monotonic() - self.started)
