"""The held-out part: nothing on both sides, nothing lost, and said aloud."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_files import END, JAPANESE, open_documents, strings

from termwise.data.split import HELD_OUT, REMOVED, TRAIN, Assigned, Plan, Scan, assign, plan_split, scan


def documents_of(count, size=50):
    return [f"document {number}: " + "words " * (number % size) for number in range(count)]


def test_documents_are_held_out_whole(tmp_path):
    documents = documents_of(200)
    text = open_documents(tmp_path, documents, held_out=0.1)
    assert text.held_out.num_documents == 20
    assert sorted(strings(text.train) + strings(text.held_out)) == sorted(documents)
    assert text.train.num_bytes + text.held_out.num_bytes == sum(map(len, documents))
    assert any("held out 20 of 200 documents" in note for note in text.notes)


def test_the_seed_chooses_them(tmp_path):
    documents = documents_of(100)
    held = [
        set(strings(open_documents(tmp_path / str(i), documents, seed=seed).held_out))
        for i, seed in enumerate((0, 0, 1))
    ]
    assert held[0] == held[1]
    assert held[0] != held[2]


def test_copies_across_the_split_are_removed_and_counted(tmp_path):
    documents = [f"document {number % 40} of forty" for number in range(200)]
    text = open_documents(tmp_path, documents, held_out=0.1)
    held, train = strings(text.held_out), strings(text.train)
    assert not set(held) & set(train)
    removed = 200 - len(held) - len(train)
    assert removed == sum(documents.count(one) for one in set(held)) - len(held) > 0
    assert f"removed {removed} training documents that are exact copies of held-out ones" in text.notes
    # Copies inside the training part are the user's own weights.
    assert len(train) > len(set(train))


def test_nothing_left_to_train_on(tmp_path):
    with pytest.raises(ValueError, match="no training text is left: all 30 documents"):
        open_documents(tmp_path, documents_of(30), held_out=0.99)


@pytest.mark.parametrize("count", [1, 2, 19])
def test_few_documents_give_their_last_part_in_blocks(tmp_path, count):
    documents = [f"{number} " + "some words, " * 20_000 for number in range(count)]
    text = open_documents(tmp_path, documents)
    whole = "".join(documents)
    train, held = "".join(strings(text.train)), "".join(strings(text.held_out))
    assert train + held == whole
    assert len(held) == round(0.05 * len(whole))
    lengths = text.held_out.document_lengths
    # Only a document that truly ends has the end-of-document token.
    ends = sum(
        int(part.document(i)[-1] == END) for part in (text.train, text.held_out) for i in range(part.num_documents)
    )
    assert ends == count
    assert lengths.max() <= max(2 * 4096, 2 * lengths.sum() / 20)
    assert text.held_out.num_documents == {1: 3, 2: 6, 19: 20}[count]
    assert any("contiguous blocks" in note and f"{len(held):,} of {len(whole):,} bytes" in note for note in text.notes)


def test_blocks_never_cut_a_character(tmp_path):
    text = open_documents(tmp_path, [JAPANESE * 3000])
    assert "".join(strings(text.train) + strings(text.held_out)) == JAPANESE * 3000
    assert text.held_out.num_documents > 1


def test_few_documents_lose_their_copies(tmp_path):
    documents = ["first " * 100, "second " * 100, "first " * 100]
    text = open_documents(tmp_path, documents)
    assert "".join(strings(text.train) + strings(text.held_out)) == "".join(documents[:2])
    assert any(note.startswith("removed 1 exact copy of other documents") for note in text.notes)
    # Many files, one text: still no copy on both sides.
    text = open_documents(tmp_path / "same", ["the same text"] * 50)
    assert "".join(strings(text.train) + strings(text.held_out)) == "the same text"


def test_too_little_to_hold_out(tmp_path):
    with pytest.raises(ValueError, match=r"3 bytes of text are too few to hold out 0\.05"):
        open_documents(tmp_path, ["abc"])


def read_again(texts, sizes, cuts):
    plan = Plan(np.zeros(len(sizes), dtype=np.uint8), tuple(cuts), ())
    return list(assign(texts, plan))


@given(
    documents=st.lists(
        st.lists(st.text(alphabet="a語é\n", min_size=1, max_size=5), min_size=1, max_size=3), min_size=1, max_size=5
    ),
    data=st.data(),
)
def test_blocks_cover_the_text_once(documents, data):
    pieces = [(piece, number == len(document) - 1) for document in documents for number, piece in enumerate(document)]
    total = sum(len(piece.encode()) for piece, _ in pieces)
    cuts = sorted(data.draw(st.sets(st.integers(1, total), min_size=1, max_size=4)))
    found = read_again(pieces, documents, cuts)
    assert "".join(one.text for one in found) == "".join(piece for piece, _ in pieces)
    assert sum(one.closes for one in found) == len(documents)
    assert all(one.ends for one in found if one.closes)
    sides = [one.part for one in found]
    assert sides == sorted(sides)
    # Training text reaches the first cut, moved on by at most the rest of one character, or to the end of the text.
    trained = sum(len(one.text.encode()) for one in found if one.part == TRAIN)
    assert cuts[0] <= trained <= cuts[0] + 2
    # Whatever is open when the side changes was ended.
    for before, after in itertools.pairwise(found):
        assert before.part == after.part or before.ends


def test_a_text_that_changes_between_the_readings_is_refused():
    sides = np.array([TRAIN, REMOVED, HELD_OUT], dtype=np.uint8)
    pieces = [("a", True), ("b", True), ("c", True)]
    assert list(assign(pieces, Plan(sides, (), ()))) == [
        Assigned(TRAIN, "a", True, True),
        Assigned(HELD_OUT, "c", True, True),
    ]
    for changed in (pieces[:2], [*pieces, ("d", True)]):
        with pytest.raises(ValueError, match="the data changed while it was read"):
            list(assign(changed, Plan(sides, (), ())))


def test_scan_counts_and_hashes_documents_not_pieces(tmp_path):
    first = scan([("ab", False), ("c", True), ("d", True)], tmp_path / "one")
    second = scan([("abc", True), ("d", True)], tmp_path / "two")
    assert (first.num_documents, first.num_bytes, first.digest) == (2, 4, second.digest)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert scan([("ab", True), ("cd", True)], tmp_path / "three").digest != first.digest


def test_a_million_documents_keep_their_share(tmp_path):
    count = 1_100_000
    np.arange(count, dtype="<u8").tofile(tmp_path / "hashes")
    found = Scan(count, count, tmp_path / "hashes", "", {number: 1 for number in range(20)})
    plan = plan_split(found, 0.05, seed=3)
    assert (plan.sides == HELD_OUT).sum() == round(0.05 * count)
    halves = [(plan.sides[: count // 2] == HELD_OUT).sum(), (plan.sides[count // 2 :] == HELD_OUT).sum()]
    assert abs(halves[0] - halves[1]) < 5 * np.sqrt(0.05 * count)
