"""The held-out part: which documents, or which blocks, training never sees.

Texts are read twice: once to hash every document (8 bytes each, on disk), once to write the tokens of each part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from termwise.data.order import hash64
from termwise.data.reader import Piece
from termwise.data.sizes import counted

TRAIN, HELD_OUT, REMOVED = 0, 1, 2
FEW_DOCUMENTS = 20
SMALLEST_BLOCK = 4096
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Scan:
    """What the first reading learnt: how much there is, a hash of each document (in a file) and a digest of all.

    `sizes` holds hash and bytes of the distinct documents in order, only while they are fewer than twenty.
    """

    num_documents: int
    num_bytes: int
    hashes: Path
    digest: str
    sizes: dict[int, int]


@dataclass(frozen=True)
class Plan:
    """The side of each document; for few documents also where in the kept text, in bytes, held-out blocks begin."""

    sides: npt.NDArray[np.uint8]
    cuts: tuple[int, ...]
    notes: tuple[str, ...]


class Assigned(NamedTuple):
    """Text of one part; `ends`: its document or block ends here; `closes`: and so did the document as it was given."""

    part: int
    text: str
    ends: bool
    closes: bool


def scan(pieces: Iterable[Piece], hashes: Path) -> Scan:
    """Hash every document (64 bits of BLAKE2b: an accidental match among 10^8 documents has odds below 10^-4)."""
    whole, one = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=8)
    num_documents = num_bytes = size = 0
    sizes: dict[int, int] = {}
    with open(hashes, "wb") as file:
        for text, is_end in pieces:
            data = text.encode()
            one.update(data)
            size += len(data)
            if not is_end:
                continue
            digest = one.digest()
            file.write(digest)
            whole.update(digest)
            if len(sizes) < FEW_DOCUMENTS:
                sizes.setdefault(int.from_bytes(digest, "little"), size)
            num_documents, num_bytes, size = num_documents + 1, num_bytes + size, 0
            one = hashlib.blake2b(digest_size=8)
    return Scan(num_documents, num_bytes, hashes, whole.hexdigest(), sizes)


def plan_split(found: Scan, held_out: float, seed: int) -> Plan:
    """Hold out about `held_out` of the documents, or the end of the text if fewer than 20 are distinct.

    Documents are drawn by a seeded hash of their number.

    A training document that is an exact copy of a held-out one is removed; of few documents every further copy is.
    Raises ValueError when either part would be empty.
    """
    if len(found.sizes) < FEW_DOCUMENTS:
        return _plan_blocks(found, held_out)
    return _plan_documents(found, held_out, seed)


def assign(pieces: Iterable[Piece], plan: Plan) -> Iterator[Assigned]:
    """The same pieces again, each with its part; removed documents left out.

    Raises ValueError if there are more or fewer documents than before.
    """
    kept = _kept(pieces, plan.sides)
    return _cut(kept, list(plan.cuts)) if plan.cuts else (Assigned(side, text, end, end) for side, text, end in kept)


def _kept(pieces: Iterable[Piece], sides: npt.NDArray[np.uint8]) -> Iterator[tuple[int, str, bool]]:
    number = 0
    for text, is_end in pieces:
        if number == len(sides):
            break
        side = int(sides[number])
        number += is_end
        if side != REMOVED:
            yield side, text, is_end
    else:
        if number == len(sides):
            return
    raise ValueError("the data changed while it was read; run again when nothing writes to it")


def _cut(kept: Iterable[tuple[int, str, bool]], cuts: list[int]) -> Iterator[Assigned]:
    """End a block at every cut, moved on to the next whole character; from the first cut on everything is held out."""
    part, position, is_open = TRAIN, 0, False
    for _, text, is_end in kept:
        data = text.encode()
        start = 0
        while cuts and cuts[0] < position + len(data):
            at = max(cuts[0] - position, start)
            while at < len(data) and data[at] & 0xC0 == 0x80:
                at += 1
            if at == len(data):
                cuts[0] = position + at
                break
            if at > start or is_open:
                yield Assigned(part, data[start:at].decode(), True, False)
            part, start, is_open = HELD_OUT, at, False
            cuts.pop(0)
        yield Assigned(part, data[start:].decode(), is_end, is_end)
        is_open = not is_end
        position += len(data)


def _plan_blocks(found: Scan, held_out: float) -> Plan:
    sizes = list(found.sizes.values())
    total = sum(sizes)
    first = total - round(total * held_out)
    if not 0 < first < total:
        raise ValueError(f"{total} bytes of text are too few to hold out {held_out:.3g} of them; give more text")
    cuts = _block_starts(sizes, first)
    sides = _without_copies(found)
    notes = [
        f"{counted(len(sizes), 'document')}, fewer than {FEW_DOCUMENTS}: held out are the last {held_out:.3g} of the text "
        f"({total - first:,} of {total:,} bytes), "
        f"cut into contiguous blocks, instead of whole documents"
    ]
    if copies := int((sides == REMOVED).sum()):
        one, several = (
            "exact copy of other documents, so that none is on both sides",
            "exact copies of other documents, so that none is on both sides",
        )
        notes.append(f"removed {counted(copies, one, several)}")
    return Plan(sides, cuts, tuple(notes))


def _block_starts(sizes: list[int], first: int) -> tuple[int, ...]:
    """About twenty equal blocks, none across documents: the units over which uncertainty is estimated."""
    ends = np.cumsum(sizes)
    length = max(SMALLEST_BLOCK, (int(ends[-1]) - first) / FEW_DOCUMENTS)
    starts = []
    for begin, end in zip(ends - np.asarray(sizes), ends, strict=True):
        begin = max(int(begin), first)
        if begin < end:
            blocks = max(1, round((int(end) - begin) / length))
            starts += [begin + (int(end) - begin) * block // blocks for block in range(blocks)]
    return tuple(starts)


def _without_copies(found: Scan) -> npt.NDArray[np.uint8]:
    """Only the first copy of each document stays."""
    hashes = np.memmap(found.hashes, dtype="<u8", mode="r")
    sides = np.full(found.num_documents, REMOVED, dtype=np.uint8)
    for digest in found.sizes:
        first = next(at + int(np.argmax(hit)) for at, hit in _matches(hashes, digest) if hit.any())
        sides[first] = TRAIN
    return sides


def _matches(hashes: npt.NDArray[np.uint64], digest: int) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
    for at in range(0, len(hashes), _CHUNK):
        yield at, hashes[at : at + _CHUNK] == np.uint64(digest)


def _plan_documents(found: Scan, held_out: float, seed: int) -> Plan:
    count = found.num_documents
    wanted = max(1, round(count * held_out))
    keys = np.empty(count, dtype=np.uint64)
    for at in range(0, count, _CHUNK):
        keys[at : at + _CHUNK] = hash64(np.arange(at, min(at + _CHUNK, count)), key=seed)
    sides = (keys <= np.partition(keys, wanted - 1)[wanted - 1]).astype(np.uint8)
    del keys
    removed = _remove_copies(np.memmap(found.hashes, dtype="<u8", mode="r"), sides)
    if not (sides == TRAIN).any():
        raise ValueError(
            f"no training text is left: all {count:,} documents are held out or copies of held-out ones; hold out less"
        )
    notes = [f"held out {wanted:,} of {count:,} documents"]
    if removed:
        one, several = (
            "training document that is an exact copy of a held-out one",
            "training documents that are exact copies of held-out ones",
        )
        notes.append(f"removed {counted(removed, one, several)}")
    return Plan(sides, (), tuple(notes))


def _remove_copies(hashes: npt.NDArray[np.uint64], sides: npt.NDArray[np.uint8]) -> int:
    """Mark the training documents whose hash a held-out document has, block by block, and count them."""
    chunks = range(0, len(sides), _CHUNK)
    held = np.concatenate([hashes[at : at + _CHUNK][sides[at : at + _CHUNK] == HELD_OUT] for at in chunks])
    held.sort()
    removed = 0
    for at in chunks:
        part = sides[at : at + _CHUNK]
        place = np.minimum(np.searchsorted(held, hashes[at : at + _CHUNK]), len(held) - 1)
        copies = (held[place] == hashes[at : at + _CHUNK]) & (part == TRAIN)
        part[copies] = REMOVED
        removed += int(copies.sum())
    return removed
