"""The recall task is what it says: distinct keys, every queried key followed by its value, only that value scored."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from termwise.data.synthetic import RECALL_VOCAB, recall
from termwise.data.tokens import NOT_SCORED


def check_sequence(ids, labels, num_pairs, num_keys):
    table = dict(zip(ids[0 : 2 * num_pairs : 2], ids[1 : 2 * num_pairs : 2], strict=True))
    assert len(table) == num_pairs
    assert all(0 <= key < num_keys <= value for key, value in table.items())
    queries = ids[2 * num_pairs :: 2]
    assert [table[key] for key in queries] == list(ids[2 * num_pairs + 1 :: 2])
    assert [table[key] for key in queries] == list(labels[2 * num_pairs :: 2])
    rounds = [set(queries[i : i + num_pairs]) for i in range(0, len(queries), num_pairs)]
    assert all(len(one) == min(num_pairs, len(queries) - i * num_pairs) for i, one in enumerate(rounds))
    assert (labels[: 2 * num_pairs] == NOT_SCORED).all()
    assert (labels[2 * num_pairs + 1 :: 2] == NOT_SCORED).all()


@given(seed=st.integers(0, 1000), step=st.integers(0, 10**9), num_pairs=st.integers(1, 12), extra=st.integers(1, 20))
def test_every_query_has_its_answer(seed, step, num_pairs, extra):
    length = 2 * num_pairs + 2 * extra
    batch = recall(seed, step, 3, num_pairs=num_pairs, num_keys=12, num_values=5, length=length)
    assert batch.input_ids.max() < 17
    assert batch.cu_seqlens.tolist() == [0, length, 2 * length, 3 * length]
    assert batch.num_scored == 3 * extra
    for row in range(3):
        at = slice(row * length, (row + 1) * length)
        check_sequence(batch.input_ids[0, at], batch.labels[0, at], num_pairs, 12)


def test_the_default_task_is_pure_and_uses_its_vocabulary():
    batch = recall(3, 4, 200)
    assert np.array_equal(batch.input_ids, recall(3, 4, 200).input_ids)
    assert not np.array_equal(batch.input_ids, recall(3, 5, 200).input_ids)
    assert not np.array_equal(batch.input_ids, recall(4, 4, 200).input_ids)
    assert set(np.unique(batch.input_ids)) == set(range(RECALL_VOCAB))
    assert (batch.input_ids.dtype, batch.labels.dtype, batch.cu_seqlens.dtype) == (np.int64, np.int64, np.int32)
    # Queries come in no fixed order: each place asks for each pair about equally often.
    ids = batch.input_ids.reshape(200, 32)
    asked = (ids[:, None, 16::2] == ids[:, 0:16:2, None]).mean(axis=0)
    assert abs(asked - 1 / 8).max() < 0.12


def test_refusals():
    with pytest.raises(ValueError, match="must be even and at least 18"):
        recall(0, 0, 1, length=16)
    with pytest.raises(ValueError, match="must be even"):
        recall(0, 0, 1, length=33)
    with pytest.raises(ValueError, match="pairs go from 1 to the number of keys"):
        recall(0, 0, 1, num_pairs=40, length=100)
