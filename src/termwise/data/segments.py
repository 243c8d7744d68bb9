"""Long documents in segments: what a tokenizer is given at once, so that its memory does not grow with the document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from termwise.data.split import Assigned

SEGMENT = 1 << 16
BATCH = 1 << 19


def segments(assigned: Iterable[Assigned], limit: int = SEGMENT) -> Iterator[Assigned]:
    """The same text in segments of at most `limit` characters, cut where a byte-level pre-tokenizer cuts as well.

    >>> pieces = [Assigned(0, "one two", False, False), Assigned(0, " three", True, True)]
    >>> [one.text for one in segments(pieces, limit=8)]
    ['one two', ' three']
    """
    rest = ""
    for one in assigned:
        rest += one.text
        start = 0
        while len(rest) - start > limit:
            end = natural_cut(rest, start, start + limit)
            yield Assigned(one.part, rest[start:end], False, False)
            start = end
        rest = rest[start:]
        if one.ends:
            yield Assigned(one.part, rest, True, one.closes)
            rest = ""


def natural_cut(text: str, start: int, limit: int) -> int:
    """The last place before `limit` after a lone line end or before a lone space; `limit` itself if there is none."""
    for sign, offset in (("\n", 1), (" ", 0)):
        at = limit
        while (at := text.rfind(sign, (start + limit) // 2 + 1, at)) > 0:
            if not text[at - 1].isspace() and not text[at + 1].isspace():
                return at + offset
    return limit


def batches(parts: Iterable[Assigned], limit: int = BATCH) -> Iterator[list[Assigned]]:
    """Segments grouped to about `limit` characters."""
    group: list[Assigned] = []
    size = 0
    for part in parts:
        group.append(part)
        # Each segment costs memory of its own, however short.
        size += len(part.text) + 64
        if size >= limit:
            yield group
            group, size = [], 0
    if group:
        yield group
