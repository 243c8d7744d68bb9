"""Passages: of exact length, within a document, the same every time, spread over what was given."""

from __future__ import annotations

import pytest
import torch
from tests.inspection.tiny_inspection import tiny_folder, write_text

from termwise.analysis.passages import take_passages
from termwise.analysis.pretrained import open_pretrained


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return open_pretrained(tiny_folder(tmp_path_factory.mktemp("model"))).tokenizer


def take(paths, tokenizer, **overrides):
    asked = {"texts": 4, "length": 32, "seed": 0, "column": None, "errors": "strict"} | overrides
    return take_passages([str(path) for path in paths], tokenizer, **asked)


def test_passages_have_the_length_and_come_from_every_part(tokenizer, tmp_path):
    text = write_text(tmp_path)
    found = take([text], tokenizer)
    assert found.ids.shape == (4, 32) and len(found.places) == 4
    assert {place.split(",")[0] for place in found.places} == {"document 1 of 2", "document 2 of 2"}
    for row in found.ids:
        piece = tokenizer.decode(row.tolist())
        assert any(piece in path.read_text() for path in text.iterdir())


def test_the_same_call_gives_the_same_and_a_seed_moves_them(tokenizer, tmp_path):
    text = write_text(tmp_path)
    first, second, moved = take([text], tokenizer), take([text], tokenizer), take([text], tokenizer, seed=1)
    assert torch.equal(first.ids, second.ids) and first.digest == second.digest
    assert not torch.equal(first.ids, moved.ids) and first.digest != moved.digest


def test_rows_of_a_table_are_read_on_as_one_document(tokenizer, tmp_path):
    rows = "\n".join(f'{{"text": "verse number {n}"}}' for n in range(200))
    (tmp_path / "verses.jsonl").write_text(rows)
    found = take([tmp_path / "verses.jsonl"], tokenizer)
    assert "verse number" in tokenizer.decode(found.ids[0].tolist())


def test_without_text_the_standard_library_is_read_and_said(tokenizer):
    found = take([], tokenizer, texts=2)
    assert "standard library" in found.notes[0] and found.ids.shape == (2, 32)


def test_short_texts_are_told(tokenizer, tmp_path):
    (tmp_path / "short.txt").write_text("too short")
    with pytest.raises(ValueError, match="the longest of 1 has 9 characters"):
        take([tmp_path / "short.txt"], tokenizer)
