"""What one run says about one candidate; claims about the same candidate are merged into its evidence."""

from __future__ import annotations

from dataclasses import dataclass, field

from termwise.report.decision.evidence import Checks, Complexity
from termwise.report.decision.figures import MISSING, Figure, Pair


@dataclass(frozen=True)
class Claim:
    """What a run knows. `names` are all that the candidate is called in records, its own name first.

    `is_candidate`: the run was made to compare it with what is used today, so it is put up for decision on its own.
    """

    names: tuple[str, ...]
    source: str
    command: str
    today: str = ""
    is_candidate: bool = False
    is_chosen: bool = False
    context: int | None = None
    accuracy: Pair = field(default_factory=Pair)
    memory: Pair = field(default_factory=Pair)
    latency: Pair = field(default_factory=Pair)
    slots: Figure = MISSING
    needs_slots: bool = False
    checks: Checks | None = None
    complexity: Complexity | None = None
    machine: str = ""
    is_demonstration: bool = False

    @property
    def name(self) -> str:
        """What it is called."""
        return self.names[0]
