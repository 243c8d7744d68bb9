"""Packed tokens: labels are the next token of the same document, orders are pure functions, nothing is scored twice."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from termwise.data.order import hash64, permute
from termwise.data.split import TRAIN, Assigned
from termwise.data.tokenizer import ByteEncoder
from termwise.data.tokens import NOT_SCORED, Tokens
from termwise.data.writer import write_parts


def make_tokens(folder, documents):
    write_parts((Assigned(part, text, True, True) for part in (TRAIN, 1) for text in documents), ByteEncoder(), folder)
    return Tokens(folder, "train", "<u2", 257)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    random = np.random.default_rng(0)
    documents = ["".join(map(chr, random.integers(97, 123, size))) for size in (1, 300, 2, 5, 64, 63, 7, 1, 1, 90)]
    return make_tokens(tmp_path_factory.mktemp("tokens"), documents)


def stream_position(tokens):
    """For every token of the stream: its document and its successor, or none at the end of a document."""
    document = np.repeat(np.arange(tokens.num_documents), tokens.document_lengths)
    ids = np.concatenate([tokens.document(i) for i in range(tokens.num_documents)])
    return document, ids


def test_the_parts_say_what_they_hold(tokens):
    assert (tokens.num_tokens, tokens.num_documents, tokens.num_bytes) == (544, 10, 534)
    assert tokens.document_bytes.tolist() == [1, 300, 2, 5, 64, 63, 7, 1, 1, 90]
    assert tokens.document(2)[-1] == 256
    with pytest.raises(IndexError, match="has documents 0 to 9"):
        tokens.document(10)


@pytest.mark.parametrize("context", [1, 2, 31, 100, 543])
def test_a_batch_is_rows_of_the_stream_with_shifted_labels(tokens, context):
    document, ids = stream_position(tokens)
    for step in range(5):
        batch = tokens.batch(7, step, 3, context)
        assert batch.input_ids.shape == batch.labels.shape == (1, 3 * context)
        assert batch.input_ids.dtype == batch.labels.dtype == np.int64
        assert batch.cu_seqlens.dtype == np.int32
        borders = {0}
        for row in range(3):
            at = slice(row * context, (row + 1) * context)
            inputs, labels = batch.input_ids[0, at], batch.labels[0, at]
            starts = [s for s in range(544) if (ids[(s + np.arange(context)) % 544] == inputs).all()]
            matches = []
            for start in starts:
                place = (start + np.arange(context + 1)) % 544
                same = (document[place[1:]] == document[place[:-1]]) & (place[1:] > place[:-1])
                if (np.where(same, ids[place[1:]], NOT_SCORED) == labels).all():
                    matches.append(same)
            assert matches
            borders |= {row * context} | {row * context + 1 + int(i) for i in np.flatnonzero(~matches[0][:-1])}
        assert batch.cu_seqlens.tolist() == sorted(borders | {3 * context})
        assert batch.num_scored == (batch.labels != NOT_SCORED).sum()


def test_a_batch_is_a_pure_function_of_seed_and_step(tokens):
    one, two = tokens.batch(1, 5, 4, 32), tokens.batch(1, 5, 4, 32)
    tokens.batch(2, 9, 4, 32)
    for name in ("input_ids", "labels", "cu_seqlens"):
        assert np.array_equal(getattr(one, name), getattr(two, name))
    assert not np.array_equal(one.input_ids, tokens.batch(2, 5, 4, 32).input_ids)
    assert not np.array_equal(one.input_ids, tokens.batch(1, 6, 4, 32).input_ids)
    # The order of rows does not depend on how many make a step.
    eight = np.concatenate([tokens.batch(1, step, 1, 32).input_ids for step in range(8)], axis=1)
    assert np.array_equal(eight, np.concatenate([tokens.batch(1, step, 4, 32).input_ids for step in range(2)], axis=1))


@pytest.mark.parametrize("context", [16, 33, 200])
def test_an_epoch_reads_each_token_once(tmp_path, context):
    # Every token is another one, so that the stream can be read off the inputs.
    tokens = make_tokens(tmp_path, [chr(200)] * 50)
    tokens._ids = np.arange(5000)
    tokens._offsets = np.array([0, 1000, 5000])
    per_epoch = 5000 // context
    for epoch in range(3):
        seen = Counter()
        for row in range(per_epoch):
            seen.update(tokens.batch(0, epoch * per_epoch + row, 1, context).input_ids[0].tolist())
        assert max(seen.values()) == 1
        assert len(seen) == per_epoch * context


def test_epochs_enter_at_different_places(tmp_path):
    tokens = make_tokens(tmp_path, ["x"])
    tokens._ids = np.arange(5000)
    tokens._offsets = np.array([0, 5000])
    per_epoch = 5000 // 100
    entries = {int(tokens.batch(0, epoch * per_epoch, 1, 100).input_ids[0, 0]) % 100 for epoch in range(12)}
    assert len(entries) > 6


@pytest.mark.parametrize("context", [1, 7, 64, 1000])
def test_windows_score_each_token_with_a_predecessor_once(tokens, context):
    scored: Counter = Counter()
    for window in tokens.windows(context):
        whole = tokens.document(window.document)
        size = len(window.input_ids)
        assert 1 <= size <= context
        assert np.array_equal(window.input_ids, whole[window.start : window.start + size])
        assert np.array_equal(window.labels, whole[window.start + 1 : window.start + size + 1])
        scored.update((window.document, window.start + 1 + i) for i in range(size))
    expected = {(d, i) for d, length in enumerate(tokens.document_lengths) for i in range(1, length)}
    assert scored.keys() == expected
    assert set(scored.values()) == {1}


@pytest.mark.parametrize(("context", "num_rows"), [(7, 1), (64, 2), (64, 50)])
def test_packed_windows_are_the_windows(tokens, context, num_rows):
    windows = list(tokens.windows(context))
    at = 0
    for packed in tokens.packed_windows(context, num_rows):
        batch = packed.batch
        assert batch.input_ids.shape[1] == batch.cu_seqlens[-1] <= num_rows * context
        for i, (begin, end) in enumerate(zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False)):
            assert np.array_equal(batch.input_ids[0, begin:end], windows[at].input_ids)
            assert np.array_equal(batch.labels[0, begin:end], windows[at].labels)
            assert (packed.documents[i], packed.starts[i]) == (windows[at].document, windows[at].start)
            at += 1
    assert at == len(windows)


def test_token_bytes_fill_up_to_a_models_vocabulary(tmp_path):
    (tmp_path / "token_bytes.bin").write_bytes(ByteEncoder().token_bytes.astype("<i4").tobytes())
    tokens = make_tokens(tmp_path, ["some", "text"])
    assert tokens.token_bytes().tolist() == [1] * 256 + [0]
    assert tokens.token_bytes(300).tolist() == [1] * 256 + [0] * 44
    assert tokens.token_bytes()[np.concatenate([tokens.document(0), tokens.document(1)])].sum() == tokens.num_bytes
    with pytest.raises(ValueError, match="a vocabulary of 100 is too small"):
        tokens.token_bytes(100)


def test_refusals(tokens):
    with pytest.raises(ValueError, match=r"the train part has 544 tokens, fewer than one window of 544 \+ 1"):
        tokens.batch(0, 0, 1, 544)
    with pytest.raises(ValueError, match="seed=-1"):
        tokens.batch(-1, 0, 1, 8)
    with pytest.raises(ValueError, match="num_rows=0"):
        tokens.batch(0, 0, 0, 8)
    with pytest.raises(ValueError, match="context=0"):
        next(tokens.windows(0))


@given(size=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
@settings(max_examples=60)
def test_permute_is_a_permutation(size, key):
    assert np.array_equal(np.sort(permute(np.arange(size), size, key)), np.arange(size))


def test_permutations_look_random():
    size, keys = 12, 2_400
    table = np.stack([permute(np.arange(size), size, int(key)) for key in hash64(np.arange(keys), 1)])
    counts = np.stack([(table == value).sum(axis=0) for value in range(size)])
    # Chi-square over 144 cells, about 121 degrees of freedom: 200 has odds below 1e-5.
    assert ((counts - keys / size) ** 2 / (keys / size)).sum() < 200
    assert np.array_equal(permute([5], 10**12, 3), permute([5], 10**12, 3))


def test_large_ids_are_kept(tmp_path):
    encoder = ByteEncoder()
    encoder.vocab_size, encoder.end_of_document = 70_000, 69_999
    write_parts([Assigned(part, "ab", True, True) for part in (0, 1)], encoder, tmp_path)
    assert Tokens(tmp_path, "train", "<u4", 70_000).document(0).tolist() == [97, 98, 69_999]
