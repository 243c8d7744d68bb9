"""Seeded synthetic tasks: what a model can look up, apart from what it knows."""

from __future__ import annotations

import numpy as np

from termwise.data.tokens import NOT_SCORED, Batch

RECALL_VOCAB = 64


def recall(
    seed: int, step: int, batch: int, num_pairs: int = 8, num_keys: int = 32, num_values: int = 32, length: int = 32
) -> Batch:
    """Pairs, then queries: k1 v1 k2 v2 ... kP vP, then seen keys in random order, each followed by its value.

    Keys are 0..num_keys-1, distinct within a sequence; values num_keys..num_keys+num_values-1, drawn freely. Every key
    is queried once before any is queried again. Only the value after a queried key is scored (labels are shifted:
    they stand at the key).
    A pure function of its arguments; with the defaults the vocabulary has RECALL_VOCAB symbols and chance is 1/32.

    >>> one = recall(seed=0, step=0, batch=2)
    >>> one.input_ids.shape, one.num_scored, one.cu_seqlens.tolist()
    ((1, 64), 16, [0, 32, 64])
    """
    if not 1 <= num_pairs <= num_keys or num_values < 1 or batch < 1:
        raise ValueError(
            f"{num_pairs} pairs of {num_keys} keys and {num_values} values, batch {batch}; pairs go from 1 "
            "to the number of keys"
        )
    num_queries = length // 2 - num_pairs
    if length % 2 or num_queries < 1:
        raise ValueError(
            f"length {length} for {num_pairs} pairs; it must be even and at least {2 * num_pairs + 2} to hold a query"
        )
    random = np.random.default_rng([seed, step])
    keys = random.random((batch, num_keys)).argsort(axis=1)[:, :num_pairs]
    values = random.integers(num_keys, num_keys + num_values, (batch, num_pairs))
    rounds = -(-num_queries // num_pairs)
    order = random.random((batch, rounds, num_pairs)).argsort(axis=2).reshape(batch, -1)[:, :num_queries]
    shown = np.concatenate([np.arange(num_pairs)[None].repeat(batch, axis=0), order], axis=1)
    ids = np.stack([np.take_along_axis(keys, shown, axis=1), np.take_along_axis(values, shown, axis=1)], axis=2)
    ids = ids.reshape(batch, length).astype(np.int64)
    labels = np.full_like(ids, NOT_SCORED)
    labels[:, 2 * num_pairs :: 2] = ids[:, 2 * num_pairs + 1 :: 2]
    borders = np.arange(0, batch * length + 1, length, dtype=np.int32)
    return Batch(ids.reshape(1, -1), labels.reshape(1, -1), borders)
