"""What a load costs a month on a machine paid by the hour: arithmetic on given numbers and one measured time."""

from __future__ import annotations

from dataclasses import dataclass

from termwise.report.decision.evidence import Evidence
from termwise.report.decision.figures import Figure
from termwise.report.decision.limits import Limits

DAYS = 30
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Cost:
    """A month of decoding, today and with the candidate; None where the time was not measured."""

    today: float | None
    candidate: float | None

    @property
    def change(self) -> float | None:
        """What the candidate adds; below 0 where it saves."""
        return None if self.today is None or self.candidate is None else self.candidate - self.today


def monthly(evidence: Evidence, limits: Limits) -> Cost | None:
    """The cost of the load in `limits`; None without a price or a load, or where no time of a whole model was measured."""
    if limits.price_per_hour is None or limits.requests_per_day is None or is_attention_alone(evidence):
        return None
    found = Cost(_month(evidence.latency.today, limits), _month(evidence.latency.candidate, limits))
    return None if found.candidate is None else found


def is_attention_alone(evidence: Evidence) -> bool:
    """Whether the time is of attention alone: what a whole model takes for a token was not measured."""
    return evidence.latency.change.why == "decision.why.attention_alone"


def _month(latency: Figure, limits: Limits) -> float | None:
    if latency.value is None or limits.price_per_hour is None or limits.requests_per_day is None:
        return None
    tokens = limits.requests_per_day * limits.tokens_per_request * DAYS
    return tokens * latency.value / SECONDS_PER_HOUR * limits.price_per_hour
