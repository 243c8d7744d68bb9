"""Bytes to text: UTF-8 decoded block by block, so that no line stands in memory whole and bad bytes have offsets."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass

BLOCK = 1 << 20
DOCUMENTS = ("auto", "file", "row", "line")
BOM = codecs.BOM_UTF8
REPLACEMENT = "\ufffd"
_MAGIC = {
    b"\x1f\x8b": "a gzip archive", b"PK\x03\x04": "a zip archive or office file", b"\x28\xb5\x2f\xfd": "a zstd archive",
    b"\xfd7zXZ": "an xz archive", b"BZh": "a bzip2 archive", b"%PDF": "a PDF",
    b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16",
    b"PAR1": "a parquet file, which needs the suffix .parquet", b"\x89PNG": "a picture", b"\xff\xd8\xff": "a picture",
}  # fmt: skip


@dataclass
class Counts:
    """What reading had to say aloud: bad UTF-8 replaced, empty documents left out."""

    replaced: int = 0
    empty: int = 0


@dataclass(frozen=True)
class Reading:
    """How sources become documents: the column of tables, what to do with bad UTF-8, and what a document is.

    `document`: "auto" (a file of text, a row of a table), "file", "row" or "line".
    """

    column: str | None = None
    errors: str = "strict"
    document: str = "auto"
    block_size: int = BLOCK

    def __post_init__(self) -> None:
        if self.errors not in ("strict", "replace"):
            raise ValueError(
                f"errors={self.errors!r}; allowed are 'strict' (stop at bad UTF-8) and 'replace' (put U+FFFD and count)"
            )
        if self.document not in DOCUMENTS:
            raise ValueError(f"document={self.document!r}; allowed are {', '.join(map(repr, DOCUMENTS))}")


def text_blocks(path: str, reading: Reading, counts: Counts) -> Iterator[str]:
    """The text of a UTF-8 file in blocks, unchanged (CRLF, NUL, U+2028) but for a leading byte order mark."""
    tail, offset, is_start = b"", 0, True
    with open(path, "rb") as file:
        while True:
            block = file.read(max(reading.block_size, len(BOM)) if is_start else reading.block_size)
            data = tail + block
            if is_start and data.startswith(BOM):
                data, offset = data[len(BOM) :], len(BOM)
            is_start = False
            text, used = decode(data, repr(path), offset, reading.errors, counts, is_final=not block, path=path)
            tail, offset = data[used:], offset + used
            if text:
                yield text
            if not block:
                return


def decode(
    data: bytes, where: str, offset: int, errors: str, counts: Counts, is_final: bool = True, path: str | None = None
) -> tuple[str, int]:
    """The text of some bytes and how many were used: a character cut at the end waits unless `is_final`.

    `where` and `offset` (of the first byte) go into the message, and a guess at what the file is if `path` is given.
    """
    try:
        text, used = codecs.utf_8_decode(data, errors, is_final)
    except UnicodeDecodeError as error:
        byte = f"byte offset {offset + error.start} (0x{data[error.start]:02X})"
        raise ValueError(
            f"bad UTF-8 in {where} at {byte}{_guess(path)}; convert the file to UTF-8, or replace bad bytes "
            "with errors='replace' (--errors replace)"
        ) from None
    if errors == "replace" and REPLACEMENT in text:
        # A genuine U+FFFD in the input stays itself wherever it stands, so the rest of them are ours.
        counts.replaced += text.count(REPLACEMENT) - data[:used].count(b"\xef\xbf\xbd")
    return text, used


def _guess(path: str | None) -> str:
    if path is None:
        return ""
    with open(path, "rb") as file:
        head = file.read(8)
    return next((f" (this looks like {kind})" for magic, kind in _MAGIC.items() if head.startswith(magic)), "")
