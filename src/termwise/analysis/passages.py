"""Passages of real text: of one length, evenly spread over all that was given, each within one document.

Axes: N passages, L tokens.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from termwise.data.blocks import Counts, Reading
from termwise.data.reader import read_pieces
from termwise.data.sizes import counted
from termwise.data.sources import Root, Skipped, find_roots, refuse_column

MOST_CHARACTERS = 16  # a token, on average, has no more; a passage is cut from so many times its length


@dataclass(frozen=True, eq=False)
class Passages:
    """`ids` (N, L); `places`: where each begins; `notes`: what must be said aloud; `digest` of the tokens.

    `spans`: document and characters (first, one after the last) of each, near enough to tell whether two overlap.
    """

    ids: Tensor
    places: tuple[str, ...]
    spans: tuple[tuple[int, int, int], ...]
    notes: tuple[str, ...]
    digest: str


def take_passages(
    paths: Sequence[str], tokenizer: Any, *, texts: int, length: int, seed: int, column: str | None, errors: str
) -> Passages:
    """N passages of exactly L tokens, the tokenizer's own special tokens included.

    A document is a file, whole tables too. Documents are chosen evenly over all text, from a place that `seed` shifts.
    ValueError where fewer than N passages of that length are there.
    """
    roots = find_roots(list(paths) or None)
    sources = [source for root in roots for source in root.sources(Skipped())]
    refuse_column(column, {source.format for source in sources})
    reading = Reading(column=column, errors=errors, document="file")
    counts = Counts()
    sizes = [size for _, size in _documents(roots, reading, counts, keep=False)]
    starts = _starts(sizes, texts, length, seed)
    rows, places, spans = [], [], []
    for number, (text, _) in enumerate(_documents(roots, reading, Counts(), keep={n for n, _ in starts})):
        for _, start in (one for one in starts if one[0] == number):
            ids, begin = _tokens(text, start, tokenizer, length)
            rows.append(ids)
            spans.append((number, begin, begin + len(tokenizer.decode(ids))))
            places.append(f"document {number + 1} of {len(sizes)}, character {start:,}")
    ids = torch.stack(rows)
    digest = hashlib.sha256(ids.numpy().astype("<i4").tobytes()).hexdigest()[:16]
    return Passages(ids, tuple(places), tuple(spans), tuple(_notes(roots, len(sources), counts, sizes)), digest)


def _documents(
    roots: Sequence[Root], reading: Reading, counts: Counts, keep: set[int] | bool
) -> Iterator[tuple[str, int]]:
    """(text, characters) of every document in order; the text only of those to keep."""
    number, parts, size = 0, [], 0
    for root in roots:
        for text, is_end in read_pieces(root.sources(Skipped()), reading, counts):
            size += len(text)
            if keep and (keep is True or number in keep):
                parts.append(text)
            if is_end:
                yield "".join(parts), size
                number, parts, size = number + 1, [], 0


def _starts(sizes: Sequence[int], texts: int, length: int, seed: int) -> list[tuple[int, int]]:
    """(document, character) where each passage begins. Documents too short for one passage, at 4 characters a token, are left out.

    >>> _starts([400, 10, 800], 2, 25, 0) == sorted(_starts([400, 10, 800], 2, 25, 0))
    True
    """
    need = 4 * length
    rooms = [max(0, size - need + 1) for size in sizes]
    total = sum(rooms)
    if total < texts:
        raise ValueError(
            f"no document holds {length} tokens (about {need:,} characters); the longest of {len(sizes):,} has "
            f"{max(sizes, default=0):,} characters: give longer texts or a smaller --length"
        )
    shift = random.Random(seed).random()
    found = []
    for n in range(texts):
        place, document = int((n + shift) * total / texts), 0
        while place >= rooms[document]:
            place -= rooms[document]
            document += 1
        found.append((document, place))
    return found


def _tokens(text: str, start: int, tokenizer: Any, length: int) -> tuple[Tensor, int]:
    """Exactly `length` tokens from the first line that begins at or after `start`, and where they begin; from further back where
    the document ends."""
    line = text.find("\n", start, start + 400) + 1 if start else 0
    begin = line or start
    for _ in range(2):
        piece = text[begin : begin + MOST_CHARACTERS * length]
        ids = tokenizer(piece, truncation=True, max_length=length, verbose=False)["input_ids"]
        if len(ids) == length:
            return torch.tensor(ids), begin
        begin = max(0, len(text) - MOST_CHARACTERS * length)
    raise ValueError(
        f"a document of {len(text):,} characters gives {counted(len(ids), 'token')}, --length {length} needs more; give longer texts"
    )


def _notes(roots: Sequence[Root], num_sources: int, counts: Counts, sizes: Sequence[int]) -> Iterator[str]:
    if roots[0].kind == "library":
        yield f"no text given: the source of this Python's standard library, {counted(num_sources, 'file')} ({roots[0].path!r})"
    else:
        documents, read = counted(len(sizes), "document"), [repr(root.path) for root in roots if root.kind != "run"]
        yield f"text: {documents}, {sum(sizes):,} characters in {', '.join(read[:4])}"
    if counts.replaced:
        yield f"replaced {counted(counts.replaced, 'piece of bad UTF-8 by U+FFFD', 'pieces of bad UTF-8 by U+FFFD')}"
