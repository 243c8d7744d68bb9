"""Orders as pure functions of a key: a hash of an index and a permutation that is computed, never stored."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

ROUNDS = 6
Words = npt.NDArray[np.uint64]


def hash64(values: npt.ArrayLike, key: int) -> Words:
    """A well mixed 64-bit hash of each value under a key (the finalizer of splitmix64, twice).

    >>> bool(hash64(7, key=0) == hash64(7, key=0)), bool(hash64(7, key=0) == hash64(7, key=1))
    (True, False)
    """
    with np.errstate(over="ignore"):
        start = _finalize(np.asarray(key % (1 << 64), dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15))
        return _finalize(np.asarray(values, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + start)


def permute(index: npt.ArrayLike, size: int, key: int) -> npt.NDArray[np.int64]:
    """Where a seeded permutation of range(size) sends each index, with no memory of its size.

    A Feistel network permutes the next power of four; values outside the range are sent on until they fall inside
    (cycle walking), at most four steps on average.

    >>> sorted(permute(range(10), 10, key=3).tolist()) == list(range(10))
    True
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    values = _feistel(np.asarray(index, dtype=np.uint64), half, key)
    while (outside := values >= np.uint64(size)).any():
        values[outside] = _feistel(values[outside], half, key)
    return values.astype(np.int64)


def _finalize(word: Words) -> Words:
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def _feistel(values: Words, half: int, key: int) -> Words:
    mask = np.uint64((1 << half) - 1)
    left, right = values >> np.uint64(half), values & mask
    for number in range(ROUNDS):
        left, right = right, left ^ (hash64(right, key * ROUNDS + number) & mask)
    return (left << np.uint64(half)) | right
