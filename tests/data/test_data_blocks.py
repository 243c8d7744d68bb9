"""Text from bytes: every byte survives, a bad one has its offset, whatever the block size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_files import JAPANESE, ODD

from termwise.data.blocks import Counts, Reading, text_blocks
from termwise.data.reader import read_pieces
from termwise.data.sources import Source


def read(path, data, block_size=7, errors="strict"):
    path.write_bytes(data)
    counts = Counts()
    return "".join(text_blocks(str(path), Reading(errors=errors, block_size=block_size), counts)), counts


def documents(path, data, document, block_size=5):
    path.write_bytes(data)
    counts = Counts()
    found, current = [], ""
    for text, is_end in read_pieces(
        [Source(str(path), "text")], Reading(document=document, block_size=block_size), counts
    ):
        current += text
        if is_end:
            found.append(current)
            current = ""
    assert current == ""
    return found, counts


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("blocks") / "some.txt"


@given(text=st.text(), block_size=st.integers(1, 9))
def test_text_survives_any_block_size(path, text, block_size):
    assert read(path, text.encode(), block_size)[0] == text.removeprefix("\ufeff")


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 5, 1000])
def test_odd_characters_survive(path, block_size):
    assert read(path, ODD.encode(), block_size)[0] == ODD
    assert read(path, b"\xef\xbb\xbf" + ODD.encode(), block_size)[0] == ODD
    # Only one byte order mark is a mark; a second one is text.
    assert read(path, b"\xef\xbb\xbf" * 2, block_size)[0] == "\ufeff"


@given(
    before=st.text(),
    after=st.text(),
    bad=st.sampled_from([b"\xff", b"\x80", b"\xc3(", b"\xe3\x81", b"\xed\xa0\x80", b"\xf5"]),
    block_size=st.integers(1, 9),
)
def test_a_bad_byte_is_named_by_its_offset(path, before, after, bad, block_size):
    data = before.encode() + bad + after.encode()
    with pytest.raises(UnicodeDecodeError) as expected:
        data.decode()
    with pytest.raises(
        ValueError,
        match=rf"bad UTF-8 in '.*some.txt' at byte offset {expected.value.start} \(0x{data[expected.value.start]:02X}\)",
    ):
        read(path, data, block_size)


@given(
    data=st.lists(
        st.one_of(st.binary(max_size=4), st.text(max_size=3).map(str.encode), st.just("\ufffd".encode()))
    ).map(b"".join),
    block_size=st.integers(1, 9),
)
def test_replacement_is_pythons_and_is_counted(path, data, block_size):
    text, counts = read(path, data, block_size, errors="replace")
    body = data.removeprefix(b"\xef\xbb\xbf")
    assert text == body.decode("utf-8", "replace")
    genuine = body.decode("utf-8", "backslashreplace").count("\ufffd")
    assert counts.replaced == text.count("\ufffd") - genuine


def test_the_message_guesses_what_a_file_is(path):
    for data, word in (
        (b"\x1f\x8b\x08\0", "gzip"),
        ("hello".encode("utf-16"), "UTF-16"),
        (b"%PDF-1.4\n\xe2\xe3", "PDF"),
    ):
        with pytest.raises(ValueError, match=f"looks like .*{word}"):
            read(path, data)


@pytest.mark.parametrize("block_size", [1, 2, 3, 1000])
def test_a_line_each(path, block_size):
    data = f"one\r\n\r\ntwo \u2028 still two\rand\n\n{JAPANESE}\r\nlast\r".encode()
    found, counts = documents(path, data, "line", block_size)
    assert found == ["one", "two \u2028 still two\rand", JAPANESE, "last\r"]
    assert counts.empty == 2


@given(text=st.text(alphabet="ab\r\n\u2028語"), block_size=st.integers(1, 5))
def test_lines_do_not_depend_on_the_block_size(path, text, block_size):
    expected = [line.removesuffix("\r") for line in text.split("\n")[:-1]] + [text.split("\n")[-1]]
    assert documents(path, text.encode(), "line", block_size)[0] == [line for line in expected if line]


def test_a_file_is_a_document_and_an_empty_one_is_counted(path):
    assert documents(path, b"a\nb\n" * 10, "auto")[0] == ["a\nb\n" * 10]
    found, counts = documents(path, b"", "auto")
    assert (found, counts.empty) == ([], 1)
    found, counts = documents(path, b"\xef\xbb\xbf", "auto")
    assert (found, counts.empty) == ([], 1)


def test_text_has_no_rows(path):
    with pytest.raises(ValueError, match="is text and has no rows; use 'file' or 'line'"):
        documents(path, b"text", "row")


def test_reading_refuses_unknown_words():
    with pytest.raises(ValueError, match="allowed are 'strict'"):
        Reading(errors="ignore")
    with pytest.raises(ValueError, match="allowed are 'auto', 'file', 'row', 'line'"):
        Reading(document="page")
