"""From measured values to records, and back to what is already there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from termwise.analysis.options import EXACT as EXACT_SPEC
from termwise.analysis.options import CacheDtype, served_bytes
from termwise.analysis.terms import CENTERS, num_distances
from termwise.attention.spec import AttentionSpec
from termwise.inspection.config import InspectConfig
from termwise.inspection.planning import Place, Rung
from termwise.results import Record, RunFolder, config_hash, now
from termwise.statistics.intervals import over_texts

EXACT = "exact"
SERVED: CacheDtype = "bfloat16"  # the precision in which caches are served
REDUCED_METRICS = (
    ("variation", "total_variation", "1"), ("error", "output_error", "relative"), ("negative", "negative_weight", "share"),
    ("vanishing", "vanishing_sums", "share"), ("top", "top_weight", "share"),
)  # fmt: skip
SCORE_METRICS = (
    ("mean", "score_mean", "1"), ("spread", "score_spread", "1"), ("above", "score_above_mean", "1"),
    ("below", "score_below_mean", "1"), ("first", "first_token_weight", "share"), ("top_exact", "top_weight", "share"),
)  # fmt: skip


class Recording:
    """Makes the records of one inspection. `measure` is the loss of a language model, or what stands for it in an encoder."""

    def __init__(self, folder: RunFolder, config: InspectConfig, *, has_loss: bool) -> None:
        self._folder, self._config = folder, config
        self.metric, self.unit = ("loss", "nats/token") if has_loss else ("hidden_change", "relative change")

    def exact(self, losses: Sequence[float], expected: Sequence[float] | None) -> list[Record]:
        """The model as it is, text by text, and what it expects to lose."""
        found = self._by_text("loss", self.metric, {"variant": EXACT}, losses)
        return found + (self._by_text("loss", "expected_loss", {"variant": EXACT}, expected) if expected else [])

    def rung(self, rung: Rung, losses: Sequence[float], exact: Sequence[float], seconds: float) -> list[Record]:
        """One model of the ladder: loss by text, their mean, and the rise over the exact model with its interval."""
        return [
            *self._by_text("loss", self.metric, rung.subject, losses),
            self._rise("loss", rung.subject, losses, exact, rung.spec.short_name, seconds),
        ]

    def rise(
        self, place: Place, losses: Sequence[float], exact: Sequence[float], spec: str, seconds: float
    ) -> list[Record]:
        """What one kv head or one layer is worth."""
        return [self._rise("importance", place.subject, losses, exact, spec, seconds)]

    def unmeasured(self, place: Place, reason: str) -> Record:
        """A place that the budget did not reach."""
        return self._record(
            "importance", "rise", place.subject, None, unit=self.unit, status="not_measured", reason=reason
        )

    def unmeasured_rung(self, rung: Rung, reason: str) -> Record:
        """A rung that the budget did not reach."""
        return self._record("loss", "rise", rung.subject, None, unit=self.unit, status="not_measured", reason=reason)

    def sizes(self, specs: Iterable[AttentionSpec], head_dim: int, context: int) -> Iterator[Record]:
        """Bytes that one kv head keeps of one sequence by each spec, and as a whole cache, at lengths up to the model's context."""
        lengths = {self._config.text_length, context} | {2**n for n in range(9, 24) if 2**n < context}
        for spec in dict.fromkeys(specs):
            for length in sorted(lengths):
                size = (length, head_dim, head_dim, SERVED)
                subject = {"variant": spec.short_name, "length": length, "whole": served_bytes(EXACT_SPEC, *size)}
                method = f"arithmetic, slots and cache in {SERVED}"
                kept = served_bytes(spec, *size)
                yield self._record("memory", "kept_bytes", subject, kept, unit="B", method=method)

    def terms(self, means: Sequence[Mapping[str, torch.Tensor]], num_texts: int) -> Iterator[Record]:
        """Scores and terms of every layer and kv head; `means`: one a layer, over all texts."""
        for layer, figures in enumerate(means):
            for kv_head in range(len(figures["mean"])):
                place, n = {"layer": layer, "kv_head": kv_head}, num_texts
                own = {name: value[kv_head] for name, value in figures.items()}
                for name, metric, unit in SCORE_METRICS:
                    yield self._record("score", metric, place, own[name], unit=unit, n=n)
                for low, high, share in self._distances(own["distances"]):
                    subject = place | {"distance_low": low, "distance_high": high}
                    yield self._record("score", "distance_weight", subject, share, unit="share", n=n)
                yield from self._orders(place, own, n)

    def _orders(self, place: dict[str, int], own: Mapping[str, torch.Tensor], n: int) -> Iterator[Record]:
        for c, center in enumerate(CENTERS):
            for order, size in enumerate(own["magnitude"][c]):
                subject = place | {"order": order, "center": center}
                yield self._record("term", "magnitude", subject, size, unit="share of the output's norm", n=n)
            for slots in range(own["error"].shape[1]):
                for order in range(own["error"].shape[2]):
                    subject = place | {"order": order, "center": center, "slots": self.slots if slots else None}
                    for name, metric, unit in REDUCED_METRICS:
                        yield self._record("term", metric, subject, own[name][c, slots, order], unit=unit, n=n)

    def proxies(self, name: str, values: torch.Tensor, unit: str, spec: str, n: int) -> Iterator[Record]:
        """A proxy (layers, kv heads) of what a head is worth."""
        for layer, row in enumerate(values):
            for kv_head, value in enumerate(row):
                subject = {"layer": layer, "kv_head": kv_head}
                yield self._record("importance", name, subject, value, unit=unit, n=n, method=spec)

    @property
    def slots(self) -> str:
        """The exact slots of this inspection, as names have them."""
        return f"w{self._config.window}s{self._config.sinks}"

    def _distances(self, shares: torch.Tensor) -> Iterator[tuple[int, int, float]]:
        """(low, high, share): low <= distance < high."""
        for n in range(num_distances(self._config.text_length)):
            yield (0, 1, float(shares[0])) if n == 0 else (2 ** (n - 1), 2**n, float(shares[n]))

    def _by_text(self, kind: str, metric: str, subject: Mapping[str, Any], losses: Sequence[float]) -> list[Record]:
        mean = self._record(kind, metric, subject, sum(losses) / len(losses), unit=self.unit, n=len(losses))
        each = [
            self._record(kind, metric, {**subject, "text": n}, loss, unit=self.unit) for n, loss in enumerate(losses)
        ]
        return [*each, mean]

    def _rise(
        self,
        kind: str,
        subject: Mapping[str, Any],
        losses: Sequence[float],
        exact: Sequence[float],
        spec: str,
        seconds: float,
    ) -> Record:
        """The mean rise over the exact model, paired by text."""
        rises = [loss - own for loss, own in zip(losses, exact, strict=True)]
        bounds: dict[str, Any] = {}
        if interval := over_texts(rises):
            bounds = {"low": interval.low, "high": interval.high, "level": interval.level}
        method = f"{spec}; {interval.method}" if interval else spec
        return self._record(
            kind, "rise", subject, sum(rises) / len(rises), unit=self.unit, n=len(rises), baseline=EXACT, method=method,
            seconds=seconds, **bounds,
        )  # fmt: skip

    def _record(self, kind: str, metric: str, subject: Mapping[str, Any], value: Any, **rest: Any) -> Record:
        return Record(
            run_id=self._folder.run["run_id"], kind=kind, subject=dict(subject), metric=metric,
            value=None if value is None else float(value), started=now(),
            config_hash=config_hash(self._config.model_dump(mode="json", exclude={"budget"})), **rest,
        )  # fmt: skip


def done_rungs(records: Iterable[Record]) -> set[str]:
    """Variants of the ladder that have their rise."""
    return {r.subject["variant"] for r in records if r.kind == "loss" and r.metric == "rise" and r.value is not None}


def done_places(records: Iterable[Record]) -> set[Place]:
    """Heads and layers that have their rise."""
    found = (r.subject for r in records if r.kind == "importance" and r.metric == "rise" and r.value is not None)
    return {Place(subject["layer"], subject.get("kv_head")) for subject in found}
