"""Recall: what a model can look up in its context, apart from what it knows.

Two measures. `recall_accuracy`: the seeded task that a model was trained on (data.synthetic.recall). `in_context_recall`: pairs
of random tokens of any text model's own vocabulary, shown once and asked for; nothing is trained.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from termwise.evaluation.scoring import check_causal, logits_of, rows_that_fit, scoring

FIRST_STEP = 10**9  # batches that no training run reaches
STRETCH = 8  # tokens of distance that are counted together


def recall_accuracy(
    model: Any, *, seed: int = 0, num_batches: int = 8, batch: int = 64, first_step: int = FIRST_STEP, **task: int
) -> float:
    """Share of queried keys after which the model's likeliest symbol is the right value.

    Batches `first_step` onwards of `data.synthetic.recall(seed, ...)`; `task`: num_pairs, num_keys, num_values, length.
    Errors: ValueError for a model that sees the future or whose vocabulary is too small.
    """
    found = _answers(model, seed, num_batches, batch, first_step, task)
    is_right = torch.cat([right for right, _ in found])
    return int(is_right.sum()) / len(is_right)


@dataclass(frozen=True)
class RecallAtDistance:
    """`accuracy` over `num_queries` whose key was last seen `low` to `high` - 1 tokens before."""

    low: int
    high: int
    accuracy: float
    num_queries: int


def recall_by_distance(
    model: Any, *, seed: int = 0, num_batches: int = 8, batch: int = 64, first_step: int = FIRST_STEP, **task: int
) -> list[RecallAtDistance]:
    """`recall_accuracy` apart by how far back the key was last seen: 1 to `STRETCH` - 1 tokens, then stretches of `STRETCH`.

    Stretches without a query are left out. Errors: as `recall_accuracy`.
    """
    found = _answers(model, seed, num_batches, batch, first_step, task)
    is_right, distance = (torch.cat(parts) for parts in zip(*found, strict=True))
    told = []
    for low in range(0, int(distance.max()) + 1, STRETCH):
        here = is_right[(distance >= low) & (distance < low + STRETCH)]
        if len(here):
            told.append(RecallAtDistance(max(low, 1), low + STRETCH, float(here.double().mean()), len(here)))
    return told


def _answers(
    model: Any, seed: int, num_batches: int, batch: int, first_step: int, task: dict[str, int]
) -> list[tuple[Tensor, Tensor]]:
    """Of every batch, for each query: whether the likeliest symbol is right, and how many tokens ago its key was last seen."""
    from termwise.data import synthetic

    vocab_size, answers = model.config.vocab_size, []
    for step in range(first_step, first_step + num_batches):
        found = synthetic.recall(seed, step, batch, **task)
        ids, labels = (torch.from_numpy(x).reshape(batch, -1) for x in (found.input_ids, found.labels))
        if int(ids.max()) >= vocab_size:
            raise ValueError(
                f"the recall task has symbols up to {int(ids.max())}, the model {vocab_size}; build it with vocab_size={synthetic.RECALL_VOCAB}"
            )
        if step == first_step:
            check_causal(model, length=ids.shape[1], vocab_size=vocab_size)
        with scoring(model) as device:
            guess = logits_of(model, ids.to(device)).argmax(dim=-1).cpu()
        is_scored = labels >= 0
        answers.append(((guess == labels)[is_scored], last_seen(ids)[is_scored]))
    return answers


def last_seen(ids: Tensor) -> Tensor:
    """How many tokens before each token the same symbol stood last; 0 where it never did. ids (N, T).

    >>> last_seen(torch.tensor([[7, 9, 8, 7, 7]])).tolist()
    [[0, 0, 0, 3, 1]]
    """
    length = ids.shape[1]
    positions = torch.arange(length)
    is_same = (ids[:, :, None] == ids[:, None, :]) & (positions[None, :] < positions[:, None])
    before = torch.where(is_same, positions, -1).amax(dim=-1)
    return torch.where(before < 0, 0, positions - before)


@dataclass(frozen=True)
class RecallResult:
    """`accuracy` over `num_queries` queries; `chance` is that of a blind guess among the tokens used."""

    accuracy: float
    num_queries: int
    chance: float


def in_context_recall(
    model: Any,
    *,
    seed: int = 0,
    num_sequences: int = 64,
    num_pairs: int = 8,
    num_rows: int = 8,
    exclude: Iterable[int] = (),
) -> RecallResult:
    """Recall of a text model on tokens of its own: k1 v1 ... kP vP, then every key again in random order, its value after it.

    All keys and values of a sequence are different random tokens (special tokens and `exclude` apart), so nothing but the
    context tells the answer; a beginning-of-text token stands in front where the model has one. A query counts when the
    right value is the likeliest of the whole vocabulary. Errors: ValueError for a model that sees the future, or a
    vocabulary too small for so many pairs.
    """
    config = model.config
    special = {
        i for name in ("bos_token_id", "eos_token_id", "pad_token_id") for i in _as_list(getattr(config, name, None))
    }
    allowed = torch.tensor([i for i in range(config.vocab_size) if i not in special.union(exclude)])
    if len(allowed) < 2 * num_pairs:
        raise ValueError(
            f"{num_pairs} pairs need {2 * num_pairs} different tokens, the model has {len(allowed)}; use fewer pairs"
        )
    ids, answers = _sequences(allowed, seed, num_sequences, num_pairs)
    front = _as_list(getattr(config, "bos_token_id", None))[:1]
    ids = torch.cat([torch.tensor([front] * num_sequences, dtype=torch.int64).reshape(num_sequences, -1), ids], dim=1)
    check_causal(model, length=ids.shape[1], vocab_size=config.vocab_size)
    right = 0
    with scoring(model) as device:
        for rows in torch.arange(num_sequences).split(rows_that_fit(num_rows, ids.shape[1], config.vocab_size)):
            guess = logits_of(model, ids[rows].to(device))[:, len(front) + 2 * num_pairs :: 2].argmax(dim=-1).cpu()
            right += int((guess == answers[rows]).sum())
    return RecallResult(right / answers.numel(), answers.numel(), 1 / len(allowed))


def _sequences(allowed: Tensor, seed: int, num_sequences: int, num_pairs: int) -> tuple[Tensor, Tensor]:
    """ids (sequences, 4 pairs) and the values in the order they are asked for (sequences, pairs)."""
    generator = torch.Generator().manual_seed(seed)
    rows, answers = [], []
    for _ in range(num_sequences):
        drawn = allowed[torch.randperm(len(allowed), generator=generator)[: 2 * num_pairs]].reshape(num_pairs, 2)
        asked = drawn[torch.randperm(num_pairs, generator=generator)]
        rows.append(torch.cat([drawn, asked]).flatten())
        answers.append(asked[:, 1])
    return torch.stack(rows), torch.stack(answers)


def _as_list(value: int | list[int] | None) -> list[int]:
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]
