"""What every evaluation shares: evaluation mode, how many rows fit, and the refusal of models that see the future."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

LOGITS_LIMIT = 2**28  # bytes of fp32 logits at once


@contextlib.contextmanager
def scoring(model: nn.Module) -> Iterator[torch.device]:
    """Evaluation mode without gradients; the mode before comes back. Gives the model's device."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield next(model.parameters()).device
    finally:
        model.train(was_training)


def rows_that_fit(num_rows: int, length: int, vocab_size: int) -> int:
    """`num_rows`, or as many as keep the logits below 256 MiB; scores do not depend on it.

    >>> rows_that_fit(8, 1024, 50_000)
    1
    """
    return max(1, min(num_rows, LOGITS_LIMIT // (4 * length * vocab_size)))


def logits_of(model: Any, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """Logits (B, T, V) in fp32 of any causal language model, transformers' own included."""
    masked = {} if attention_mask is None else {"attention_mask": attention_mask}
    return model(input_ids=input_ids, use_cache=False, **masked).logits.float()


def check_causal(model: Any, *, length: int, vocab_size: int, seed: int = 0) -> None:
    """Refuse a model whose earlier logits change when a later token does, by as much as one bit.

    A probe of `length` random tokens; the last one, one in the middle and one near the start are changed in turn.
    Errors: ValueError naming the first place that leaked.
    """
    generator = torch.Generator().manual_seed(seed)
    probe = torch.randint(vocab_size, (1, max(length, 2)), generator=generator)
    with scoring(model) as device:
        before = logits_of(model, probe.to(device))
        for place in sorted({probe.shape[1] - 1, probe.shape[1] // 2, 1}, reverse=True):
            changed = probe.clone()
            changed[0, place] = (changed[0, place] + 1) % vocab_size
            after = logits_of(model, changed.to(device))
            differs = (after[0, :place] != before[0, :place]).any(dim=-1)
            if bool(differs.any()):
                first = int(differs.nonzero()[0])
                raise ValueError(
                    f"this model sees the future: changing token {place} of a probe changes its prediction at token {first}; "
                    "it gets no score (is it a bidirectional model, or a mask lost in a converted layer?)"
                )
