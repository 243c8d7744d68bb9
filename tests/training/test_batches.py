"""Cutting a batch loses nothing and cuts no document."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_training import CONTEXT, TOKENS, make_batch

from termwise.training.batches import check_batch, split


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 12))
def test_parts_are_whole_documents_in_order(lengths: list[int], num_parts: int) -> None:
    boundaries = np.cumsum([0, *lengths])
    ids = np.arange(boundaries[-1])[None]
    batch = SimpleNamespace(input_ids=ids, labels=-ids, cu_seqlens=boundaries)
    if num_parts > len(lengths):
        with pytest.raises(ValueError, match="cannot be shared"):
            split(batch, num_parts)
        return
    parts = split(batch, num_parts)
    assert len(parts) == num_parts
    assert np.concatenate([part.input_ids for part in parts], axis=1).tolist() == ids.tolist()
    assert np.concatenate([part.labels for part in parts], axis=1).tolist() == (-ids).tolist()
    assert [length for part in parts for length in np.diff(part.cu_seqlens)] == lengths
    assert all(part.cu_seqlens[0] == 0 and part.cu_seqlens[-1] == part.input_ids.shape[1] for part in parts)
    counts = [len(part.cu_seqlens) - 1 for part in parts]
    assert [part.first_document for part in parts] == [sum(counts[:n]) for n in range(num_parts)]


def test_equal_rows_make_equal_parts() -> None:
    assert [part.input_ids.shape[1] for part in split(make_batch(0), 4)] == [TOKENS // 4] * 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"input_ids": np.zeros((1, 5), int)}, "tokens_per_step"),
        ({"labels": np.zeros((2, TOKENS), int)}, "tokens_per_step"),
        ({"cu_seqlens": np.array([0, TOKENS])}, f"at most context={CONTEXT}"),
        ({"cu_seqlens": np.array([0, 4, 4, TOKENS])}, "rise strictly"),
        ({"cu_seqlens": np.array([4, TOKENS])}, "rise strictly"),
        ({"labels": np.full((1, TOKENS), -100)}, "no label is scored"),
    ],
)
def test_a_batch_of_another_shape_is_refused_by_name(changes: dict[str, np.ndarray], words: str) -> None:
    batch = SimpleNamespace(**(vars(make_batch(0)) | changes))
    with pytest.raises(ValueError, match=words) as caught:
        check_batch(batch, TOKENS, CONTEXT, "batches(7)")
    assert str(caught.value).startswith("batches(7): ")
