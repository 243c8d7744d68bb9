"""Packed tokens: flat memory-mapped ids with document borders, and the windows that training and evaluation read.

Shapes: a batch is one row of N = num_rows * context tokens; cu_seqlens marks where attention must start afresh.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from termwise.data.order import hash64, permute

NOT_SCORED = -100


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows laid one after another: input_ids and labels int64 (1, N), cu_seqlens int32 (documents + 1,).

    labels[0, i] is the token after input_ids[0, i], or -100 where that is not to be scored: already shifted.
    """

    input_ids: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    cu_seqlens: npt.NDArray[np.int32]

    @property
    def num_scored(self) -> int:
        """How many labels count."""
        return int((self.labels != NOT_SCORED).sum())


@dataclass(frozen=True, eq=False)
class Window:
    """A piece of one document to be scored: its first token is number `start` of `document`; labels are shifted."""

    document: int
    start: int
    input_ids: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PackedWindows:
    """Several windows as one batch.

    Window i is tokens cu_seqlens[i]:cu_seqlens[i+1]; it begins at token `starts[i]` of document `documents[i]`.
    """

    batch: Batch
    documents: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]


class Tokens:
    """One part of a text: ids of all documents, each with its end-of-document token, memory-mapped.

    A document that was cut into held-out blocks has the end-of-document token in its last block only.
    """

    def __init__(self, folder: Path, name: str, dtype: npt.DTypeLike, vocab_size: int) -> None:
        self.name = name
        self.vocab_size = vocab_size
        self._ids = _mapped(folder / f"{name}.ids.bin", dtype)
        self._offsets = _mapped(folder / f"{name}.offsets.bin", "<i8")
        self._bytes = _mapped(folder / f"{name}.bytes.bin", "<i8")
        lengths = folder / "token_bytes.bin"
        self._token_bytes = np.fromfile(lengths, dtype="<i4") if lengths.exists() else None

    @property
    def num_tokens(self) -> int:
        """Tokens, end-of-document tokens included."""
        return len(self._ids)

    @property
    def num_documents(self) -> int:
        """Documents, or blocks of documents."""
        return len(self._bytes)

    @functools.cached_property
    def num_bytes(self) -> int:
        """Bytes of the text itself, in UTF-8."""
        return int(self._bytes.sum())

    @property
    def document_bytes(self) -> npt.NDArray[np.int64]:
        """Bytes of text of every document, in UTF-8, exact for any tokenizer."""
        return self._bytes

    @property
    def document_lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of every document."""
        return np.diff(self._offsets)

    def document(self, index: int) -> npt.NDArray[np.int64]:
        """The ids of one document. Raises IndexError for a document that is not there."""
        if not 0 <= index < self.num_documents:
            raise IndexError(f"document {index}; the {self.name} part has documents 0 to {self.num_documents - 1}")
        return self._ids[self._offsets[index] : self._offsets[index + 1]].astype(np.int64)

    def token_bytes(self, vocab: int | None = None) -> npt.NDArray[np.int32] | None:
        """Bytes of text each token id stands for (end of document: 0), padded with 0 to the vocabulary of a model.

        None for a tokenizer that is not plainly byte-level (it normalizes or adds spaces): use `document_bytes` then.
        """
        size = self.vocab_size if vocab is None else vocab
        if size < self.vocab_size:
            raise ValueError(
                f"a vocabulary of {size} is too small for this text; its tokenizer has {self.vocab_size} tokens"
            )
        if self._token_bytes is None:
            return None
        return np.pad(self._token_bytes, (0, size - self.vocab_size))

    def batch(self, seed: int, step: int, num_rows: int, context: int) -> Batch:
        """Rows number step * num_rows onwards of an endless seeded order.

        A pure function of its arguments and the text. An epoch cuts the stream, seen as a ring and entered at a random
        place, into num_tokens // context windows and visits them in a seeded permutation: no token is an input twice
        in an epoch, fewer than `context` are left out.
        Raises ValueError when the text is shorter than one window of context + 1 tokens.
        """
        if self.num_tokens < context + 1:
            raise ValueError(
                f"the {self.name} part has {self.num_tokens:,} tokens, fewer than one window of {context} + 1; "
                "give more text or a shorter context"
            )
        if min(seed, step) < 0 or min(num_rows, context) < 1:
            raise ValueError(
                f"seed={seed}, step={step}, num_rows={num_rows}, context={context}; the first two are >= 0, "
                "the last two >= 1"
            )
        starts = self._row_starts(seed, np.arange(num_rows, dtype=np.int64) + step * num_rows, context)
        positions = (starts[:, None] + np.arange(context + 1)) % self.num_tokens
        ids = self._ids[positions].astype(np.int64)
        opens = self._offsets[np.searchsorted(self._offsets, positions, side="right") - 1] == positions
        labels = np.where(opens[:, 1:], NOT_SCORED, ids[:, 1:])
        opens[:, 0] = True
        borders = np.append(np.flatnonzero(opens[:, :-1]), num_rows * context)
        return Batch(ids[:, :-1].reshape(1, -1), labels.reshape(1, -1), borders.astype(np.int32))

    def windows(self, context: int) -> Iterator[Window]:
        """Every document cut into windows of `context` inputs that do not overlap, in order.

        Each token with a predecessor in its own document is a label exactly once. Every window starts without memory:
        a token's context is what stands before it in its window. Documents of one token give no window.
        """
        if context < 1:
            raise ValueError(f"context={context}; it must be at least 1")
        for index in range(self.num_documents):
            ids = self.document(index)
            for start in range(0, len(ids) - 1, context):
                end = min(start + context, len(ids) - 1)
                yield Window(index, start, ids[start:end], ids[start + 1 : end + 1])

    def packed_windows(self, context: int, num_rows: int = 8) -> Iterator[PackedWindows]:
        """`windows(context)` packed in order into batches of at most num_rows * context tokens."""
        waiting: list[Window] = []
        total = 0
        for window in self.windows(context):
            if waiting and total + len(window.input_ids) > num_rows * context:
                yield pack(waiting)
                waiting, total = [], 0
            waiting.append(window)
            total += len(window.input_ids)
        if waiting:
            yield pack(waiting)

    def _row_starts(self, seed: int, rows: npt.NDArray[np.int64], context: int) -> npt.NDArray[np.int64]:
        per_epoch = self.num_tokens // context
        epochs, places = np.divmod(rows, per_epoch)
        starts = np.empty_like(rows)
        for epoch in np.unique(epochs):
            key = int(hash64(int(epoch), key=seed))
            entry = int(hash64(0, key=key) % np.uint64(self.num_tokens))
            here = epochs == epoch
            starts[here] = entry + permute(places[here], per_epoch, key=key) * context
        return starts


def _mapped(path: Path, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    # A plain array over the map: slicing a memmap object is several times slower.
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))


def pack(windows: list[Window]) -> PackedWindows:
    """Windows one after the other in one batch."""
    lengths = [len(window.input_ids) for window in windows]
    batch = Batch(
        np.concatenate([window.input_ids for window in windows])[None],
        np.concatenate([window.labels for window in windows])[None],
        np.cumsum([0, *lengths]).astype(np.int32),
    )
    return PackedWindows(batch, np.array([w.document for w in windows]), np.array([w.start for w in windows]))
