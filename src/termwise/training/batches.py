"""One step's batch cut into parts at document boundaries, so that accumulation and processes change no number."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class BatchLike(Protocol):
    """What `batches(step)` returns: documents packed along one row, labels already shifted, -100 = not scored."""

    @property
    def input_ids(self) -> np.ndarray: ...

    @property
    def labels(self) -> np.ndarray: ...

    @property
    def cu_seqlens(self) -> np.ndarray: ...


@dataclass(frozen=True)
class Part:
    """Some whole documents of a batch, in the same layout. `first_document` is the number of its first in the batch."""

    input_ids: np.ndarray
    labels: np.ndarray
    cu_seqlens: np.ndarray
    first_document: int


def check_batch(batch: BatchLike, tokens: int, context: int, where: str) -> None:
    """ValueError unless shapes, boundaries and sizes are those the configuration announced and something is scored."""
    ids, labels, boundaries = batch.input_ids, batch.labels, batch.cu_seqlens
    if ids.shape != (1, tokens) or labels.shape != (1, tokens):
        raise ValueError(
            f"{where}: input_ids {ids.shape}, labels {labels.shape}; allowed is (1, tokens_per_step) = (1, {tokens})"
        )
    lengths = np.diff(boundaries)
    if len(boundaries) < 2 or boundaries[0] != 0 or boundaries[-1] != tokens or (lengths <= 0).any():
        raise ValueError(f"{where}: cu_seqlens must rise strictly from 0 to {tokens}; given {boundaries!r}")
    if lengths.max() > context:
        raise ValueError(f"{where}: a document of {lengths.max()} tokens; at most context={context} are allowed")
    if not (labels != -100).any():
        raise ValueError(f"{where}: no label is scored (all are -100); a step needs at least one")


def split(batch: BatchLike, num_parts: int, where: str = "batch") -> list[Part]:
    """Cut at the document boundaries nearest to equal sizes. ValueError with fewer documents than parts.

    >>> from types import SimpleNamespace
    >>> ids = np.arange(6)[None]
    >>> parts = split(SimpleNamespace(input_ids=ids, labels=ids, cu_seqlens=np.array([0, 2, 3, 6])), 2)
    >>> [part.input_ids[0].tolist() for part in parts], parts[1].cu_seqlens.tolist()
    ([[0, 1, 2], [3, 4, 5]], [0, 3])
    """
    boundaries = np.asarray(batch.cu_seqlens)
    num_documents, num_tokens = len(boundaries) - 1, int(boundaries[-1])
    if num_documents < num_parts:
        raise ValueError(
            f"{where}: {num_documents} documents cannot be shared by {num_parts} parts (micro_batches x processes); "
            f"use fewer parts or more rows a step"
        )
    cuts = [0]
    for part in range(1, num_parts):
        nearest = int(np.abs(boundaries - num_tokens * part / num_parts).argmin())
        cuts.append(min(max(nearest, cuts[-1] + 1), num_documents - (num_parts - part)))
    cuts.append(num_documents)
    return [_part(batch, boundaries, first, last) for first, last in itertools.pairwise(cuts)]


def _part(batch: BatchLike, boundaries: np.ndarray, first: int, last: int) -> Part:
    start, end = int(boundaries[first]), int(boundaries[last])
    cu_seqlens = (boundaries[first : last + 1] - start).astype(np.int32)
    return Part(batch.input_ids[:, start:end], batch.labels[:, start:end], cu_seqlens, first)
