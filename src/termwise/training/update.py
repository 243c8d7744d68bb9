"""One update of the weights: forward, backward, clip, AdamW, with the loss exact however the batch is cut."""

from __future__ import annotations

import contextlib
import math
import signal
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from termwise.training.batches import BatchLike, Part, check_batch, split
from termwise.training.configuration import TrainingConfig
from termwise.training.faults import Fault, locate
from termwise.training.optimizer import learning_rate, make_optimizer
from termwise.training.placement import Placement

Objective = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]
"""(model, ids (1, T), labels (1, T), cu_seqlens) -> what a part adds to the loss, summed over its scored tokens."""


def next_token(model: nn.Module, ids: Tensor, labels: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Sum over scored tokens of -log p(label)."""
    logits = model(input_ids=ids, cu_seqlens=cu_seqlens).logits
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")


@dataclass(frozen=True)
class Outcome:
    """What one update did. With a `fault` it did nothing. `asked` is a signal that any process has received."""

    loss: float
    grad_norm: float
    lr: float
    fault: Fault | None
    asked: int | None


class Updater:
    """Model and optimizer under one placement; `update(index)` is the whole of a training step."""

    def __init__(
        self,
        model: nn.Module,
        batches: Callable[[int], BatchLike],
        config: TrainingConfig,
        placement: Placement,
        objective: Objective = next_token,
    ) -> None:
        self.objective = objective
        self.model, self.batches, self.config, self.placement = model, batches, config, placement
        self.wrapped = placement.prepare(model)
        self.optimizer = make_optimizer(model, config)
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]

    def update(self, index: int, received: Callable[[], int | None]) -> Outcome:
        """Learn from batches(index); nothing is changed when loss or gradient is not finite."""
        parts, num_scored = self._own_parts(index)
        loss = self._backward(parts, num_scored)
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        loss_value, norm_value, asked = self._read(loss, norm, received())
        lr = learning_rate(index + 1, self.config)
        fault = None
        if math.isfinite(loss_value) and math.isfinite(norm_value):
            self._apply(lr, norm, norm_value)
        else:
            fault = self._first_fault(parts)
        self.optimizer.zero_grad(set_to_none=True)
        return Outcome(loss_value, norm_value, lr, fault, asked)

    def _own_parts(self, index: int) -> tuple[list[Part], int]:
        """This process's share of the step, and the number of scored tokens of all shares."""
        batch, where = self.batches(index), f"batches({index})"
        check_batch(batch, self.config.tokens_per_step, self.config.context, where)
        count, place = self.config.micro_batches, self.placement
        parts = split(batch, count * place.num_processes, where)
        return parts[place.rank * count : (place.rank + 1) * count], int((batch.labels != -100).sum())

    def _backward(self, parts: list[Part], num_scored: int) -> Tensor:
        """Add up the gradient of the step's mean loss; returns this process's share of the loss."""
        place = self.placement
        loss = torch.zeros((), device=place.device)
        for number, part in enumerate(parts):
            is_last = number == len(parts) - 1
            with contextlib.nullcontext() if is_last else place.accelerator.no_sync(self.wrapped):
                share = self._summed_loss(part) / num_scored
                # Processes average their gradients; the sum is wanted.
                place.accelerator.backward(share * place.num_processes if place.num_processes > 1 else share)
            loss += share.detach()
        return loss

    def _summed_loss(self, part: Part) -> Tensor:
        place = self.placement
        ids, labels, boundaries = (place.tensor(a) for a in (part.input_ids, part.labels, part.cu_seqlens))
        with place.autocast():
            return self.objective(self.wrapped, ids, labels, boundaries)

    def _read(self, loss: Tensor, norm: Tensor, received: int | None) -> tuple[float, float, int | None]:
        """The numbers of all processes on the host, in one transfer: the only wait of a step."""
        if self.placement.num_processes == 1:
            loss_value, norm_value = torch.stack([loss, norm.to(loss.dtype)]).tolist()
            return loss_value, norm_value, received
        flags = [float(received == signal.SIGINT), float(received == signal.SIGTERM)]
        summed = self.placement.sum(torch.stack([loss, *torch.tensor(flags, device=loss.device)]))
        loss_value, interrupts, terminations = summed.tolist()
        asked = signal.SIGINT if interrupts else signal.SIGTERM if terminations else None
        return loss_value, norm.item(), asked

    def _apply(self, lr: float, norm: Tensor, norm_value: float) -> None:
        if norm_value > self.config.clip:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, self.config.clip, norm)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()

    def _first_fault(self, parts: list[Part]) -> Fault:
        """The fault of the first process that found one on its way forward; gradients are the same everywhere."""
        faults = self.placement.gather(locate(self.model, parts, self.placement))
        return next((fault for fault in faults if fault.micro_batch is not None), faults[0])
