"""jsonl, csv, tsv, parquet and hub rows: the right column, and one message for what is wrong."""

from __future__ import annotations

import csv
import json
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_files import JAPANESE, ODD

from termwise.data.blocks import Counts, Reading
from termwise.data.reader import read_pieces
from termwise.data.sources import TABLE_SUFFIXES, Source
from termwise.data.tables import choose_column

TEXTS = ["plain", ODD, JAPANESE, 'a "quoted", text', "two\nlines"]


def rows(path, counts=None, **reading):
    kind = "hub" if str(path).startswith("hf:") else TABLE_SUFFIXES[path.suffix]
    found, current = [], ""
    for text, is_end in read_pieces([Source(str(path), kind)], Reading(**reading), counts or Counts()):
        current += text
        if is_end:
            found.append(current)
            current = ""
    return found


def write_table(path, texts, column="text", **others):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = [{"id": number, **others, column: text} for number, text in enumerate(texts)]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table), encoding="utf-8")
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(table), path, row_group_size=2)
    else:
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",", lineterminator="\r\n")
            writer.writerow(table[0])
            writer.writerows(row.values() for row in table)
    return path


SUFFIXES = (".jsonl", ".csv", ".tsv", ".parquet")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_arrive_unchanged(tmp_path, suffix):
    path = write_table(tmp_path / f"a{suffix}", TEXTS)
    assert rows(path) == TEXTS
    assert rows(path, block_size=3) == TEXTS
    assert rows(path, document="row") == TEXTS
    assert rows(path, document="file") == ["".join(text + "\n" for text in TEXTS)]
    lines = [line.removesuffix("\r") for text in TEXTS for line in text.split("\n")]
    assert rows(path, document="line") == lines


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_another_column(tmp_path, suffix):
    path = write_table(tmp_path / f"a{suffix}", TEXTS, column="body")
    assert rows(path) == TEXTS
    path = write_table(tmp_path / f"b{suffix}", TEXTS, column="body", title="a title")
    assert rows(path, column="body") == TEXTS
    with pytest.raises(
        ValueError, match=r"which column of .* There are string columns 'title', 'body'; name one with --column"
    ):
        rows(path)
    with pytest.raises(
        ValueError, match=r"no column 'bodi' in .*; there are 'id', 'title', 'body'; did you mean 'body'\?"
    ):
        rows(path, column="bodi")


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_column_of_numbers_is_no_text_and_a_null_is_empty(tmp_path, suffix):
    with pytest.raises(ValueError, match=r"column 'id' of .* holds"):
        rows(write_table(tmp_path / f"a{suffix}", TEXTS), column="id")
    counts = Counts()
    assert rows(write_table(tmp_path / f"b{suffix}", ["a", None, "", "b"]), counts) == ["a", "b"]
    assert counts.empty == 2


@given(text=st.text(), other=st.text())
def test_csv_gives_back_what_was_written(tmp_path_factory, text, other):
    path = tmp_path_factory.getbasetemp() / "one.csv"
    assert rows(write_table(path, ["words", text, other])) == [one for one in ("words", text, other) if one]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"', r"bad JSON in '.*a.jsonl' line 3, column 13"),
        ("[1]", r"line 3 is a JSON list; every line must be one JSON object"),
        ('{"test": "a"}', r"no column 'text' in '.*a.jsonl' line 3; there are 'test'; did you mean 'test'"),
        ('{"text": 3}', r"column 'text' of '.*a.jsonl' line 3 holds a int, not text"),
        ("[" * 100_000, "bad JSON in .* line 3"),
        ('{"text": "\\ud83d"}', "bad Unicode in .* line 3: half of a surrogate pair"),
    ],
)
def test_bad_json_names_its_line(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_text('\ufeff{"text": "one"}\r\n\n' + line + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        rows(path)


def test_half_a_surrogate_pair_can_be_replaced(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a\\ud83d, \\ud83d\\ude00"}\n')
    counts = Counts()
    assert rows(path, counts, errors="replace") == ["a\ufffd, 😀"]
    assert counts.replaced == 1


def test_bad_utf8_in_tables(tmp_path):
    first = b'{"text": "one"}\n'
    (tmp_path / "a.jsonl").write_bytes(first + b'{"text": "\xff"}\n')
    with pytest.raises(ValueError, match=rf"bad UTF-8 in '.*a.jsonl' at byte offset {len(first) + 10} \(0xFF\)"):
        rows(tmp_path / "a.jsonl")
    (tmp_path / "a.csv").write_bytes(b"text\none\n\xff\n")
    with pytest.raises(ValueError, match="at byte offset 9"):
        rows(tmp_path / "a.csv")
    counts = Counts()
    assert rows(tmp_path / "a.csv", counts, errors="replace") == ["one", "\ufffd"]
    assert counts.replaced == 1


def test_bad_utf8_in_parquet_names_the_row(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    bad = pa.array([b"good", b"ba\xffd"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": bad}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"bad UTF-8 in '.*a.parquet' row 2 at byte offset 2"):
        rows(tmp_path / "a.parquet")
    counts = Counts()
    assert rows(tmp_path / "a.parquet", counts, errors="replace") == ["good", "ba\ufffdd"]
    assert counts.replaced == 1


def test_parquet_kinds_of_string_and_a_file_that_is_none(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    for kind in (pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()):
        pq.write_table(pa.table({"text": pa.array(["a", None, "ü"]).cast(kind)}), tmp_path / "a.parquet")
        assert rows(tmp_path / "a.parquet") == ["a", "ü"]
    (tmp_path / "a.parquet").write_text("text")
    with pytest.raises(ValueError, match=r"a.parquet' is no parquet file"):
        rows(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('text,id\na,1\n"open,2\nb,3\n', "bad CSV in .* near line 4: .*; is a quote left open"),
        ("text,id\na,1\nb,with,commas\n", "line 3 has 3 fields, the header has 2"),
    ],
)
def test_bad_csv_names_its_line(tmp_path, text, message):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        rows(tmp_path / "a.csv")


def test_a_csv_field_may_be_long(tmp_path):
    long = "x" * 300_000
    assert rows(write_table(tmp_path / "a.csv", ["first", long])) == ["first", long]


def test_choose_column():
    assert choose_column(None, ["a", "text"], ["a", "text"], "f") == "text"
    with pytest.raises(ValueError, match=r"There is no string column among 'a', 'b'; name one with --column"):
        choose_column(None, ["a", "b"], [], "f")


def test_a_missing_hub_extra_names_its_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"'hf:org/name' needs the package 'datasets'.*pip install 'termwise\[hub\]'"):
        rows("hf:org/name")


class PretendDataset:
    """What the hub reader uses of datasets.Dataset."""

    column_names = ("id", "content")

    @property
    def features(self):
        return {"id": types.SimpleNamespace(dtype="int64"), "content": types.SimpleNamespace(dtype="string")}

    def select_columns(self, columns):
        assert columns == ["content"]
        return self

    def iter(self, batch_size):
        yield {"content": ["a", None]}
        yield {"content": ["b"]}


def test_hub_names_and_faults(monkeypatch):
    asked = []

    def load_dataset(name, configuration, split):
        asked.append((name, configuration, split))
        if name == "org/away":
            raise ConnectionError("Couldn't reach 'org/away' on the Hub\nmore lines")
        return PretendDataset()

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    assert rows("hf:org/name") == ["a", "b"]
    assert rows("hf:org/name/config:test", column="content") == ["a", "b"]
    assert asked == [("org/name", None, "train"), ("org/name", "config", "test")]
    with pytest.raises(ValueError, match=r"cannot load 'hf:org/away': Couldn't reach 'org/away' on the Hub; check"):
        rows("hf:org/away")
    with pytest.raises(ValueError, match="column 'id' of hf:org/name holds no text"):
        rows("hf:org/name", column="id")
