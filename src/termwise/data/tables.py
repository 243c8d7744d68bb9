"""Rows of jsonl, csv, tsv, parquet and hub data sets: the text of one column, row by row."""

from __future__ import annotations

import csv
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from termwise.data.blocks import BOM, REPLACEMENT, Counts, Reading, decode, text_blocks
from termwise.data.sources import Source, did_you_mean

ROW_LIMIT = 1 << 28
ROWS_AT_ONCE = 256
_SURROGATE = re.compile("[\ud800-\udfff]")


def table_rows(source: Source, reading: Reading, counts: Counts) -> Iterator[str]:
    """The text of every row of one table; a null is an empty text."""
    readers: dict[str, Callable[[str, Reading, Counts], Iterator[str]]] = {
        "jsonl": _jsonl_rows, "csv": _csv_rows, "tsv": _csv_rows, "parquet": _parquet_rows, "hub": _hub_rows,
    }  # fmt: skip
    return readers[source.format](source.path, reading, counts)


def choose_column(given: str | None, columns: Sequence[str], string_columns: Sequence[str], where: str) -> str:
    """The column that holds the text: the given one, else `text`, else the only one of strings.

    >>> choose_column(None, ["id", "body"], ["body"], "a.csv")
    'body'
    """
    if given is not None:
        if given not in columns:
            raise ValueError(
                f"no column {given!r} in {where}; there are "
                f"{', '.join(map(repr, columns))}{did_you_mean(given, columns)}"
            )
        return given
    if "text" in string_columns:
        return "text"
    if len(string_columns) == 1:
        return string_columns[0]
    found = (
        f"There are string columns {', '.join(map(repr, string_columns))}"
        if string_columns
        else f"There is no string column among {', '.join(map(repr, columns))}"
    )
    raise ValueError(f"which column of {where} holds the text? {found}; name one with --column (in Python column=)")


def _jsonl_rows(path: str, reading: Reading, counts: Counts) -> Iterator[str]:
    column, offset = None, 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            start = len(BOM) if number == 1 and line.startswith(BOM) else 0
            text = decode(line[start:], repr(path), offset + start, reading.errors, counts, path=path)[0]
            offset += len(line)
            if not text.strip():
                continue
            where = f"{path!r} line {number}"
            row = _json_object(text, where)
            if column is None:
                strings = [name for name, value in row.items() if isinstance(value, str)]
                column = choose_column(reading.column, list(row), strings, where)
            value = row[choose_column(column, list(row), (), where)]
            if not isinstance(value, str | None):
                raise ValueError(
                    f"column {column!r} of {where} holds a {type(value).__name__}, not text; name a column "
                    "of strings with --column (in Python column=)"
                )
            yield _without_surrogates(value or "", where, reading.errors, counts) if "\\u" in text else value or ""


def _json_object(text: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(text.rstrip("\r\n"))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"bad JSON in {where}, column {error.colno}: {error.msg}; every line must be one JSON object"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"bad JSON in {where}: {error}; every line must be one JSON object") from None
    if not isinstance(row, dict):
        raise ValueError(
            f'{where} is a JSON {type(row).__name__}; every line must be one JSON object like {{"text": "..."}}'
        )
    return row


def _without_surrogates(text: str, where: str, errors: str, counts: Counts) -> str:
    """JSON can escape half of a surrogate pair, which no UTF-8 can hold."""
    text, found = _SURROGATE.subn(REPLACEMENT, text)
    if found and errors == "strict":
        raise ValueError(
            f"bad Unicode in {where}: half of a surrogate pair; correct the escape, or replace it with errors='replace' (--errors replace)"
        )
    counts.replaced += found
    return text


def _csv_rows(path: str, reading: Reading, counts: Counts) -> Iterator[str]:
    # The limit belongs to the csv module as a whole; its default of 128 kB is too small for documents.
    csv.field_size_limit(max(csv.field_size_limit(), ROW_LIMIT))
    lines = _whole_lines(text_blocks(path, reading, counts))
    rows = csv.reader(lines, delimiter="\t" if path.lower().endswith(".tsv") else ",", strict=True)
    header: list[str] | None = None
    index = -1
    try:
        for row in rows:
            if not row:
                continue
            if header is None:
                header = row
                continue
            where = f"{path!r} line {rows.line_num}"
            if index < 0:
                strings = [name for name, value in zip(header, row, strict=False) if not _is_number(value)]
                index = header.index(choose_column(reading.column, header, strings, repr(path)))
            if len(row) != len(header):
                raise ValueError(
                    f"{where} has {len(row)} fields, the header has {len(header)}; quote fields that hold the separator"
                )
            yield row[index]
    except csv.Error as error:
        raise ValueError(f"bad CSV in {path!r} near line {rows.line_num}: {error}; is a quote left open?") from None


def _whole_lines(blocks: Iterable[str]) -> Iterator[str]:
    """Lines with their LF; only LF ends a line, so U+2028 and a quoted CR stay in their field."""
    rest: list[str] = []
    for block in blocks:
        *lines, last = block.split("\n")
        for line in lines:
            yield "".join(rest) + line + "\n"
            rest = []
        rest.append(last)
    if any(rest):
        yield "".join(rest)


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _parquet_rows(path: str, reading: Reading, counts: Counts) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path!r} is no parquet file: {error}") from None
    with file:
        schema = file.schema_arrow
        strings = [field.name for field in schema if _is_string(field.type)]
        column = choose_column(reading.column, schema.names, strings, repr(path))
        if column not in strings:
            raise ValueError(
                f"column {column!r} of {path!r} holds {schema.field(column).type}, not text; columns of "
                f"strings: {strings}"
            )
        row = 0
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=[column]):
            # As bytes: pyarrow does not check UTF-8 when it reads, and its own error names no row.
            for value in batch.column(0).cast(pa.large_string()).cast(pa.large_binary()).to_pylist():
                row += 1
                yield decode(value or b"", f"{path!r} row {row}", 0, reading.errors, counts)[0]


def _is_string(kind: Any) -> bool:
    import pyarrow.types as types

    if types.is_dictionary(kind):
        return _is_string(kind.value_type)
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def _hub_rows(name: str, reading: Reading, counts: Counts) -> Iterator[str]:
    """Rows of `hf:org/name[/configuration][:split]`, from the hub's own cache; the split is `train` unless named."""
    dataset = _load_hub(name)
    strings = [
        key
        for key, feature in dataset.features.items()
        if getattr(feature, "dtype", None) in ("string", "large_string")
    ]
    column = choose_column(reading.column, dataset.column_names, strings, name)
    if column not in strings:
        raise ValueError(f"column {column!r} of {name} holds no text; columns of strings: {strings}")
    for rows in dataset.select_columns([column]).iter(batch_size=ROWS_AT_ONCE):
        for value in rows[column]:
            yield value or ""


def _load_hub(name: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise ValueError(
            f"{name!r} needs the package 'datasets'; install it with: pip install 'termwise[hub]'"
        ) from None
    address, _, split = name.removeprefix("hf:").partition(":")
    organisation, *rest = address.split("/")
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    # Its five announced retries would bury the one message.
    logger.setLevel(logging.ERROR)
    try:
        return datasets.load_dataset(
            f"{organisation}/{rest[0]}", rest[1] if len(rest) > 1 else None, split=split or "train"
        )
    except Exception as error:
        # Network faults, unknown names and splits arrive as many types from three libraries; all mean "not loaded".
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"cannot load {name!r}: {first}; check the name and the network, or download the files and give "
            "their folder"
        ) from None
    finally:
        logger.setLevel(level)
