"""Held-out loss: every token counts once, whatever the batch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from termwise.evaluation.scoring import check_causal, logits_of, rows_that_fit, scoring

NOT_SCORED = -100
POOL = 64  # batches of windows sorted by length at a time, so that little is padding


class DocumentLoss(NamedTuple):
    """What one document (or block of one) contributes."""

    document: int
    sum_nats: float
    num_tokens: int
    num_bytes: float


@dataclass(frozen=True, eq=False)
class LossResult:
    """Held-out loss of one model on one text.

    `bits_per_byte` = sum of nats / (ln 2 * bytes of the scored text); `by_position`: mean nats at each place of the
    context, NaN where nothing was scored.
    """

    nats_per_token: float
    bits_per_byte: float
    num_tokens: int
    num_bytes: float
    per_document: list[DocumentLoss]
    by_position: np.ndarray


def held_out_loss(
    model: Any,
    tokens: Any,
    *,
    context: int,
    num_rows: int = 8,
    token_bytes: np.ndarray | None = None,
    max_tokens: int | None = None,
) -> LossResult:
    """Mean negative log likelihood of a text, over all its tokens that have a predecessor in their document.

        loss = sum over scored tokens of -log p(token | what stands before it in its window) / number of scored tokens

    `tokens`: a part of a text (`tokens.windows(context)` gives windows that do not overlap). Independent of `num_rows`.
    `token_bytes`: bytes of text each id stands for, by default the tokenizer's own; where a tokenizer has none, a document
    counts its bytes in proportion to its scored tokens. `max_tokens` stops after the window that reaches it. Errors:
    ValueError for a model that sees the future, logits that are not finite, a vocabulary too small, nothing to score.
    """
    vocab_size = model.config.vocab_size
    if getattr(tokens, "vocab_size", vocab_size) > vocab_size:
        raise ValueError(
            f"the text has {tokens.vocab_size} symbols, the model {vocab_size}; evaluate it with the tokenizer it was trained on"
        )
    check_causal(model, length=context, vocab_size=vocab_size)
    if token_bytes is None:
        token_bytes = tokens.token_bytes(vocab_size)
    total = _Totals(context, token_bytes)
    rows = rows_that_fit(num_rows, context, vocab_size)
    with scoring(model) as device:
        for windows in _batches(_first(tokens.windows(context), max_tokens), rows):
            total.add(windows, _nats(model, windows, device))
    return total.result(tokens)


def _first(windows: Iterable[Any], max_tokens: int | None) -> Iterator[Any]:
    taken = 0
    for window in windows:
        if max_tokens is not None and taken >= max_tokens:
            return
        taken += int((window.labels != NOT_SCORED).sum())
        yield window


def _batches(windows: Iterator[Any], num_rows: int) -> Iterator[list[Any]]:
    """Lists of at most `num_rows` windows of similar length."""
    pool: list[Any] = []
    for window in windows:
        pool.append(window)
        if len(pool) == POOL * num_rows:
            yield from _cut(pool, num_rows)
            pool = []
    yield from _cut(pool, num_rows)


def _cut(pool: list[Any], num_rows: int) -> Iterator[list[Any]]:
    pool = sorted(pool, key=lambda w: len(w.input_ids))
    for start in range(0, len(pool), num_rows):
        yield pool[start : start + num_rows]


def _nats(model: Any, windows: list[Any], device: torch.device) -> np.ndarray:
    """(rows, longest) negative log likelihoods, 0 where not scored."""
    lengths = [len(w.input_ids) for w in windows]
    ids = np.zeros((len(windows), max(lengths)), dtype=np.int64)
    labels = np.full(ids.shape, NOT_SCORED, dtype=np.int64)
    for row, window in enumerate(windows):
        ids[row, : lengths[row]], labels[row, : lengths[row]] = window.input_ids, window.labels
    mask = None if min(lengths) == max(lengths) else torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]
    logits = logits_of(model, torch.from_numpy(ids).to(device), None if mask is None else mask.long().to(device))
    nats = F.cross_entropy(
        logits.transpose(1, 2), torch.from_numpy(labels).to(device), ignore_index=NOT_SCORED, reduction="none"
    )
    found = nats.double().cpu().numpy()
    if not np.isfinite(found).all():
        row = int(np.argwhere(~np.isfinite(found))[0, 0])
        raise ValueError(
            f"the model's logits are not finite in document {windows[row].document} from token {windows[row].start}; it gets no score"
        )
    return found


class _Totals:
    """Sums in float64: by document and by position."""

    def __init__(self, context: int, token_bytes: np.ndarray | None) -> None:
        self.token_bytes = token_bytes
        self.documents: dict[int, list[float]] = {}  # nats, tokens, bytes
        self.nats, self.counts = np.zeros(context), np.zeros(context, dtype=np.int64)

    def add(self, windows: list[Any], nats: np.ndarray) -> None:
        for window, row in zip(windows, nats, strict=True):
            is_scored = window.labels != NOT_SCORED
            length = len(is_scored)
            self.nats[:length] += row[:length]
            self.counts[:length] += is_scored
            sums = self.documents.setdefault(int(window.document), [0.0, 0, 0.0])
            sums[0] += float(row[:length].sum())
            sums[1] += int(is_scored.sum())
            if self.token_bytes is not None:
                sums[2] += float(self.token_bytes[window.labels[is_scored]].sum())

    def result(self, tokens: Any) -> LossResult:
        num_tokens = int(self.counts.sum())
        if num_tokens == 0:
            raise ValueError("nothing to score: no document of the held-out part has two tokens; give more text")
        if self.token_bytes is None:
            for document, sums in self.documents.items():
                sums[2] = float(tokens.document_bytes[document]) * sums[1] / float(tokens.document_lengths[document])
        per_document = [
            DocumentLoss(d, nats, int(count), size) for d, (nats, count, size) in sorted(self.documents.items())
        ]
        total, num_bytes = math.fsum(d.sum_nats for d in per_document), math.fsum(d.num_bytes for d in per_document)
        with np.errstate(invalid="ignore"):
            by_position = self.nats / self.counts
        bits = total / math.log(2) / num_bytes if num_bytes else math.nan
        return LossResult(total / num_tokens, bits, num_tokens, num_bytes, per_document, by_position)
