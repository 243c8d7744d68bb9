"""From a source to pieces of text: a document arrives as one or more, so that a line of 1 GB never stands in memory.

A row of jsonl, csv or parquet is held whole: there, memory is bounded by the largest row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from termwise.data.blocks import Counts, Reading, text_blocks
from termwise.data.sources import Source
from termwise.data.tables import table_rows

Piece = tuple[str, bool]
"""Some text, and whether its document ends here."""


def read_pieces(sources: Iterable[Source], reading: Reading, counts: Counts) -> Iterator[Piece]:
    """The documents of all sources as pieces, empty documents left out and counted.

    Raises ValueError that names file and byte offset of bad UTF-8, file and line of a bad row, or the columns.
    """
    for source in sources:
        pieces = _by_document(source, _raw_pieces(source, reading, counts), reading.document)
        has_text = False
        for text, is_end in pieces:
            if text or (is_end and has_text):
                yield text, is_end
            elif is_end:
                counts.empty += 1
            has_text = not is_end and (has_text or bool(text))


def _raw_pieces(source: Source, reading: Reading, counts: Counts) -> Iterator[Piece]:
    if source.format != "text":
        for text in table_rows(source, reading, counts):
            yield text, True
        return
    if reading.document == "row":
        raise ValueError(
            f"document='row', but {source.path!r} is text and has no rows; use 'file' or 'line', or name only tables"
        )
    waiting = ""
    for block in text_blocks(source.path, reading, counts):
        if waiting:
            yield waiting, False
        waiting = block
    yield waiting, True


def _by_document(source: Source, pieces: Iterator[Piece], document: str) -> Iterator[Piece]:
    if document == "line":
        return _lines(pieces)
    if document == "file" and source.format != "text":
        return _joined(pieces)
    return pieces


def _joined(rows: Iterator[Piece]) -> Iterator[Piece]:
    """All rows of a table as one document, a line end after each."""
    for text, _ in rows:
        yield text + "\n", False
    yield "", True


def _lines(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Each line a document without its LF or CRLF; other separators are text."""
    held = ""
    for piece, is_end in pieces:
        text, held = held + piece, ""
        if not is_end and text.endswith("\r"):
            # Its LF may open the next piece.
            text, held = text[:-1], "\r"
        *lines, rest = text.split("\n")
        for line in lines:
            yield line.removesuffix("\r"), True
        yield rest, is_end
