"""What is known of one candidate beside what is used today."""

from __future__ import annotations

from dataclasses import dataclass, field

from termwise.report.decision.figures import MISSING, Figure, Pair


@dataclass(frozen=True)
class Checks:
    """Outcomes of `termwise verify` on the candidate. `has_soak`: its long stream was run and nothing in it failed."""

    num_passed: int = 0
    num_failed: int = 0
    num_not_measured: int = 0
    has_soak: bool = False
    failed: tuple[str, ...] = ()

    @property
    def were_run(self) -> bool:
        """Whether any check has an outcome."""
        return self.num_passed + self.num_failed > 0


@dataclass(frozen=True)
class Complexity:
    """What the candidate adds to a system, as counts. None and () are "not counted", never zero."""

    new_dependencies: tuple[str, ...] | None = None
    own_kernels: int | None = None
    engines: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    tuning_hours: float | None = None
    minutes_back: float | None = None


@dataclass(frozen=True)
class Evidence:
    """All that weighs on one candidate.

    `accuracy.change` is candidate - today in nats/token (above 0 is worse). `memory` is bytes of state a sequence and
    `latency` seconds a decoded token, both at `context`; their `change` is candidate / today. `slots` is candidate -
    the untrained slots-only baseline of equal bytes in nats/token (below 0: the candidate is better);
    `needs_slots` is False where no such baseline exists, as for variants trained from scratch.
    """

    candidate: str
    today: str
    context: int | None = None
    accuracy: Pair = field(default_factory=Pair)
    memory: Pair = field(default_factory=Pair)
    latency: Pair = field(default_factory=Pair)
    slots: Figure = MISSING
    needs_slots: bool = False
    checks: Checks = field(default_factory=Checks)
    complexity: Complexity = field(default_factory=Complexity)
    machine: str = ""
    is_demonstration: bool = False
