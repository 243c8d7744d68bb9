"""Tokenizers: ids are what they are said to be, text comes back, and transformers loads what was saved."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_files import JAPANESE, ODD, open_documents

from termwise.data.segments import natural_cut, segments
from termwise.data.split import Assigned
from termwise.data.tokenizer import END_OF_DOCUMENT, ByteEncoder, bpe_size, byte_signs, load_encoder, train_bpe

PROSE = ["the cat sat on the mat. " * 20, "Ein Hütchen, zwei Hütchen.\n" * 20, JAPANESE * 10, ODD]


@pytest.fixture(scope="module")
def bytes_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytes") / "tokenizer"
    ByteEncoder().save(folder)
    return folder


@pytest.fixture(scope="module")
def bpe():
    return train_bpe(PROSE, 400)


def pretrained_style(folder, bpe, **config):
    """A folder as a published tokenizer has it: pad is eos, and the file cuts and pads."""
    bpe.save(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    tokenizer["padding"] = {
        "strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": END_OF_DOCUMENT,
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"} | config))
    return folder


@given(text=st.text())
def test_bytes_are_the_ids(text):
    assert ByteEncoder().encode([text])[0].tolist() == list(text.encode())


def test_saved_bytes_load_in_transformers(bytes_folder):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bytes_folder)
    assert len(tokenizer) == 257
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == 256
    for text in (*PROSE, "".join(map(chr, range(0x300))), " leading , spaces .", "it 's n't"):
        ids = tokenizer(text)["input_ids"]
        assert ids == list(text.encode())
        assert tokenizer.decode(ids) == text
    assert tokenizer.decode([*b"end", 256], skip_special_tokens=True) == "end"


@given(text=st.text())
@settings(max_examples=200)
def test_the_saved_tokenizer_round_trips_text(bytes_folder, text):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(bytes_folder / "tokenizer.json"))
    ids = tokenizer.encode(text).ids
    assert ids == list(text.encode())
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_every_byte_has_its_own_sign():
    from tokenizers.pre_tokenizers import ByteLevel

    assert sorted(byte_signs()) == sorted(ByteLevel.alphabet())


@given(text=st.text())
def test_bpe_round_trips_and_knows_its_bytes(bpe, text):
    ids = bpe.encode([text])[0]
    assert bpe.tokenizer.decode(ids.tolist(), skip_special_tokens=False) == text
    assert bpe.token_bytes[ids].sum() == len(text.encode())


def test_bpe_has_the_size_asked_for_and_is_repeatable(bpe):
    assert bpe.vocab_size == 400
    assert bpe.token_bytes[bpe.end_of_document] == 0
    again = train_bpe(PROSE, 400)
    assert again.tokenizer.to_str() == bpe.tokenizer.to_str()
    # The name of a special token inside a text is text.
    assert bpe.end_of_document not in bpe.encode([f"a {END_OF_DOCUMENT} b"])[0]


def test_long_documents_are_cut_where_bpe_cuts_itself(bpe):
    text = "".join(PROSE) * 5
    pieces = [Assigned(0, text[i : i + 97], False, False) for i in range(0, len(text), 97)]
    cut = [one.text for one in segments([*pieces, Assigned(0, "", True, True)], limit=512)]
    assert "".join(cut) == text
    assert len(cut) > 5
    assert max(map(len, cut)) <= 512
    assert np.concatenate(bpe.encode(cut)).tolist() == bpe.encode([text])[0].tolist()


@given(text=st.text(alphabet="ab \n\r語", min_size=1), limit=st.integers(2, 9))
def test_segments_lose_nothing(text, limit):
    cut = list(segments([Assigned(0, text, True, True)], limit=limit))
    assert "".join(one.text for one in cut) == text
    assert all(len(one.text) <= limit for one in cut)
    assert [one.ends for one in cut] == [False] * (len(cut) - 1) + [True]


def test_natural_cut_without_a_place_is_the_limit():
    assert natural_cut("x" * 100, 0, 64) == 64
    assert natural_cut("xxx\n" + "x" * 100, 0, 5) == 4


def test_an_existing_tokenizer_keeps_its_ends_and_its_text(tmp_path, bpe):
    folder = pretrained_style(tmp_path / "given", bpe, eos_token=END_OF_DOCUMENT, pad_token=END_OF_DOCUMENT)
    documents = [f"{number} {text}" for number, text in enumerate(PROSE * 6)]
    text = open_documents(tmp_path, documents, tokenizer=str(folder))
    end = text.end_of_document
    assert text.tokenizer.pad_token_id == text.tokenizer.eos_token_id == end
    found = [part.document(i) for part in (text.train, text.held_out) for i in range(part.num_documents)]
    assert all(ids[-1] == end for ids in found)
    # Neither cut to four tokens nor padded to eight.
    assert sorted(text.tokenizer.decode(ids[:-1]) for ids in found) == sorted(documents)
    # pad is eos, and still every end of a document is a label.
    scored = sum(int((w.labels == end).sum()) for w in text.held_out.windows(16))
    assert scored == text.held_out.num_documents
    batch = text.train.batch(0, 0, text.train.num_tokens // 32, 32)
    assert (batch.labels == end).sum() >= text.train.num_documents - 2


def test_token_bytes_are_unknown_where_text_is_changed(tmp_path, bpe):
    from tokenizers import normalizers, pre_tokenizers

    other = train_bpe(PROSE, 300)
    other.tokenizer.normalizer = normalizers.NFC()
    other.save(tmp_path / "nfc")
    assert load_encoder(str(tmp_path / "nfc")).token_bytes is None
    other.tokenizer.normalizer = None
    other.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    other.save(tmp_path / "prefix")
    assert load_encoder(str(tmp_path / "prefix")).token_bytes is None
    text = open_documents(
        tmp_path, [f"{number} some words" for number in range(30)], tokenizer=str(tmp_path / "prefix")
    )
    assert text.train.token_bytes() is None
    assert text.train.num_bytes + text.held_out.num_bytes == sum(len(f"{number} some words") for number in range(30))


def test_end_tokens_are_found_or_asked_for(tmp_path, bpe):
    from tokenizers import Tokenizer, models

    bpe.save(tmp_path / "bpe")
    (tmp_path / "bpe" / "tokenizer_config.json").unlink()
    file = (tmp_path / "bpe" / "tokenizer.json").rename(tmp_path / "bpe" / "other.json")
    found = load_encoder(str(file))
    assert found.end_of_document == bpe.end_of_document
    found.save(tmp_path / "saved")
    assert load_encoder(str(tmp_path / "saved")).vocab_size == bpe.vocab_size
    Tokenizer(models.WordLevel({"a": 0})).save(str(tmp_path / "words.json"))
    with pytest.raises(ValueError, match='names no end-of-text token; write "eos_token"'):
        load_encoder(str(tmp_path / "words.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    with pytest.raises(ValueError, match="the tokenizer has no token '</s>'"):
        load_encoder(str(tmp_path / "words.json"))
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(ValueError, match="is no tokenizer of the tokenizers library"):
        load_encoder(str(tmp_path / "broken.json"))


def test_names_of_tokenizers(tmp_path):
    assert bpe_size("bpe:1000") == 1000
    with pytest.raises(ValueError, match=r"no tokenizer 'byte'; did you mean 'bytes'\?; allowed are"):
        bpe_size("byte")
    with pytest.raises(ValueError, match="no tokenizer 'bpe:4k'; did you mean 'bpe:4096'"):
        bpe_size("bpe:4k")
    with pytest.raises(ValueError, match="257 to 1,000,000 tokens"):
        bpe_size("bpe:100")
    with pytest.raises(ValueError, match=r"holds no tokenizer.json; save a fast one there"):
        load_encoder(str(tmp_path))
