"""Held-out losses of the models of a conversion, document by document, and their differences in pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from termwise.conversion.texts import Texts
from termwise.evaluation import held_out_loss
from termwise.results import Record, RunFolder, now
from termwise.statistics.intervals import OVER_DOCUMENTS, bootstrap

NATS = "nats/token"
ORIGINAL, CONVERTED, TUNED, ORIGINAL_TUNED = "original", "converted", "converted, tuned", "original, tuned"
WINDOW, SLOTS = "window of equal bytes", "slots alone"
LEVEL = 0.95
Documents = dict[str, tuple[float, int]]
"""document -> (sum of nats, number of tokens)"""


class Losses:
    """Scores each model once: what a folder's records hold already is read back."""

    def __init__(self, folder: RunFolder, texts: Texts, common: Mapping[str, Any]) -> None:
        self.folder, self.texts, self.common = folder, texts, common
        self.known = read_losses(folder)

    def measure(self, name: str, model: Any) -> float:
        """The held-out loss of a model in nats/token, with one record for each document."""
        if name not in self.known:
            started = now()
            found = held_out_loss(model, self.texts.scored, context=self.texts.context)
            documents = {str(d.document): (d.sum_nats, d.num_tokens) for d in found.per_document}
            rest = {"started": started, "n": found.num_tokens}
            records = [
                self._record(name, "held_out_document", nats / tokens, NATS, document=document, n=tokens)
                for document, (nats, tokens) in documents.items()
            ]
            if np.isfinite(found.bits_per_byte):
                records.append(self._record(name, "held_out_bits", found.bits_per_byte, "bits/byte", **rest))
            # The total last: where it stands, all documents do.
            self.folder.append(*records, self._record(name, "held_out_nats", found.nats_per_token, NATS, **rest))
            self.known[name] = documents
        return mean(self.known[name])

    def leave_out(self, name: str, reason: str) -> None:
        """Say why a model has no loss."""
        if name not in self.known:
            record = {"status": "not_measured", "reason": reason}
            self.folder.append(self._record(name, "held_out_nats", None, NATS, **record))

    def _record(self, name: str, metric: str, value: float | None, unit: str, **rest: Any) -> Record:
        subject = {"variant": name} | ({"document": rest.pop("document")} if "document" in rest else {})
        return Record(kind="loss", subject=subject, metric=metric, value=value, unit=unit, **self.common, **rest)

    def differences(self) -> Iterator[Record]:
        """Every model less the original, and the tuned ones less the tuned original, with intervals over documents."""
        for baseline in (ORIGINAL, ORIGINAL_TUNED):
            for name in self.known:
                if name == baseline or baseline not in self.known or (baseline == ORIGINAL_TUNED and name != TUNED):
                    continue
                value, low, high = difference(self.known[name], self.known[baseline])
                bounds: dict[str, Any] = {
                    "low": low,
                    "high": high,
                    "level": None if low is None else LEVEL,
                    "method": OVER_DOCUMENTS,
                }
                yield Record(
                    kind="loss", subject={"variant": name}, metric="difference", value=value, unit=NATS, baseline=baseline,
                    n=len(self.known[name]), **bounds, **self.common,
                )  # fmt: skip

    def recovery(self) -> tuple[float, float | None, float | None] | None:
        """1 - (converted, tuned - original, tuned) / (converted - original) with the bootstrap interval over documents, which draws both
        differences together; None where a loss is missing or nothing was lost.

        Where the original was not tuned it stands for itself: against its own distribution it has nothing to learn.
        """
        if any(name not in self.known for name in (ORIGINAL, CONVERTED, TUNED)):
            return None
        base = ORIGINAL_TUNED if ORIGINAL_TUNED in self.known else ORIGINAL
        lost, left = (
            _between(self.known[CONVERTED], self.known[ORIGINAL]),
            _between(self.known[TUNED], self.known[base]),
        )
        if lost.sum() <= 0:
            return None
        interval = bootstrap(left[None], lost)[0].interval(LEVEL)
        value = 1 - float(left.sum() / lost.sum())
        return (value, None, None) if interval is None else (value, 1 - interval.high, 1 - interval.low)


def mean(documents: Documents) -> float:
    """Token-weighted mean, nats/token."""
    return sum(nats for nats, _ in documents.values()) / sum(tokens for _, tokens in documents.values())


def difference(one: Documents, other: Documents) -> tuple[float, float | None, float | None]:
    """Mean difference in nats/token with the bootstrap interval over documents, which has no bounds for too few of them."""
    nats, tokens = _between(one, other), np.array([float(one[name][1]) for name in sorted(one)])
    interval = bootstrap(nats[None], tokens)[0].interval(LEVEL)
    value = float(nats.sum() / tokens.sum())
    return (value, None, None) if interval is None else (value, interval.low, interval.high)


def read_losses(folder: RunFolder) -> dict[str, Documents]:
    """The losses in a folder's records, whole ones alone: a model whose total is there has all its documents."""
    found: dict[str, Documents] = {}
    totals = set()
    for record in folder.records():
        name = str(record.subject.get("variant"))
        if record.metric == "held_out_document" and record.value is not None and record.n:
            found.setdefault(name, {})[str(record.subject["document"])] = (record.value * record.n, record.n)
        if record.metric == "held_out_nats" and record.value is not None:
            totals.add(name)
    return {name: documents for name, documents in found.items() if name in totals}


def _between(one: Documents, other: Documents) -> np.ndarray:
    """Nats of each document, one model's less another's, in the order of their names."""
    return np.array([one[name][0] - other[name][0] for name in sorted(one)])
