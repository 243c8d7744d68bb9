"""What is known of one candidate beside what is used today."""

from __future__ import annotations

from dataclasses import dataclass, field

from termwise.report.decision.figures import MISSING, Figure, Pair
from termwise.report.flaws import Flaw


@dataclass(frozen=True)
class Checks:
    """Outcomes of `termwise verify` on the candidate.

    `has_soak`: a text as long as the context was streamed and nothing in it failed. `is_whole`: the verification came to its
    end, so that checks without an outcome were left out for a reason.
    """

    num_passed: int = 0
    num_failed: int = 0
    num_not_measured: int = 0
    has_soak: bool = False
    failed: tuple[str, ...] = ()
    is_whole: bool = True

    @property
    def were_run(self) -> bool:
        """Whether all of them were made, or one that was failed."""
        return self.num_failed > 0 or (self.num_passed > 0 and self.is_whole)


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

    `accuracy_context`: tokens of the texts on which the loss was measured; None where no record says. `crossing`: the context
    from which on a decoded token is faster than today. `is_chosen`: a plan's own choice among its points. `sources`: the runs
    all this comes from; `flaws`: what is wrong with them; `unidentified`: those of them
    that do not say which weights they were made on, where there are several.
    """

    candidate: str
    today: str
    context: int | None = None
    accuracy_context: int | None = None
    accuracy: Pair = field(default_factory=Pair)
    memory: Pair = field(default_factory=Pair)
    latency: Pair = field(default_factory=Pair)
    crossing: Figure = MISSING
    slots: Figure = MISSING
    needs_slots: bool = False
    checks: Checks = field(default_factory=Checks)
    complexity: Complexity = field(default_factory=Complexity)
    machine: str = ""
    is_demonstration: bool = False
    is_chosen: bool = False
    sources: tuple[str, ...] = ()
    flaws: tuple[Flaw, ...] = ()
    unidentified: tuple[str, ...] = ()
