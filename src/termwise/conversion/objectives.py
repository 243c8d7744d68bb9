"""What the converted model is tuned towards: the original's attention outputs layer by layer, then its distribution.

Shapes: T tokens of packed documents, D hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from termwise.models.causal_lm import TermwiseForCausalLM
from termwise.models.layers import Attention
from termwise.training.batches import BatchLike

NOT_SCORED = -100


def inner(model: nn.Module) -> TermwiseForCausalLM:
    """The model itself, out of whatever peft has wrapped around it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator, return-value]


def attentions(model: nn.Module) -> list[Attention]:
    """The attention of every layer."""
    return [layer.self_attn for layer in inner(model).model.layers]


class Matching:
    """Each layer's attention output against the original's, both on the original's hidden states.

        loss = mean over layers of  sum_t |s_t - o_t|^2 / mean_t |o_t|^2      s student, o original, per token

    A layer that gives zeros has loss 1 a token. Gradients reach attention alone.
    """

    def __init__(self, original: nn.Module) -> None:
        self.original = original

    def __call__(self, student: nn.Module, ids: Tensor, labels: Tensor, cu_seqlens: Tensor) -> Tensor:
        with torch.no_grad(), _recorded(self.original) as calls:
            inner(self.original).model(input_ids=ids, cu_seqlens=cu_seqlens, use_cache=False)
        num_scored = (labels != NOT_SCORED).sum()
        losses = []
        for attention, (given, expected) in zip(attentions(student), calls, strict=True):
            error = (attention(*given).float() - expected.float()).square().mean()
            losses.append(error / expected.float().square().mean())
        return torch.stack(losses).mean() * num_scored


class Distilling:
    """The original's distribution over the next token, and the text's own next token where `labels` is above 0.

    loss = (1 - labels) KL(original || student) + labels (-log p(next token)),   summed over scored tokens
    """

    def __init__(self, original: nn.Module, labels: float) -> None:
        self.original, self.labels = original, labels

    def __call__(self, student: nn.Module, ids: Tensor, labels: Tensor, cu_seqlens: Tensor) -> Tensor:
        wanted = labels.flatten()
        is_scored = wanted != NOT_SCORED
        found = _log_probabilities(student, ids, cu_seqlens)[is_scored]
        loss = found.new_zeros(())
        if self.labels < 1:
            with torch.no_grad():
                expected = _log_probabilities(self.original, ids, cu_seqlens)[is_scored]
            loss = loss + (1 - self.labels) * F.kl_div(found, expected, log_target=True, reduction="sum")
        if self.labels > 0:
            loss = loss + self.labels * F.nll_loss(found, wanted[is_scored], reduction="sum")
        return loss


def mean_over(objective: Any, student: nn.Module, batches: Sequence[BatchLike], device: torch.device) -> float:
    """The mean of an objective over the scored tokens of some batches."""
    total, count = 0.0, 0
    with torch.no_grad():
        for batch in batches:
            ids, labels, bounds = (
                torch.from_numpy(a).to(device) for a in (batch.input_ids, batch.labels, batch.cu_seqlens)
            )
            total += float(objective(student, ids, labels, bounds))
            count += int((batch.labels != NOT_SCORED).sum())
    return total / count


def _log_probabilities(model: nn.Module, ids: Tensor, cu_seqlens: Tensor) -> Tensor:
    """(T, V)"""
    return model(input_ids=ids, cu_seqlens=cu_seqlens).logits.float().flatten(0, 1).log_softmax(dim=-1)


@contextmanager
def _recorded(model: nn.Module) -> Iterator[list[tuple[tuple[Any, ...], Tensor]]]:
    """What every attention of a model is called with and gives while the block runs: hidden states, layout, rotation."""
    calls: list[tuple[tuple[Any, ...], Tensor]] = []

    def keep(module: nn.Module, given: tuple[Any, ...], out: Tensor) -> None:
        calls.append((given[:3], out))

    handles = [attention.register_forward_hook(keep) for attention in attentions(model)]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
