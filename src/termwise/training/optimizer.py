"""AdamW, which weights decay, and the schedule of the learning rate."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from termwise.training.configuration import TrainingConfig

_UNDECAYED_WORDS = ("norm", "bias", "embed", "blank")


def learning_rate(step: int, config: TrainingConfig) -> float:
    """The rate of update `step` (1 to steps): a line up, then half a cosine down.

        step <= warmup:  lr step / warmup
        else:            lr (r + (1 - r) (1 + cos(pi (step - warmup) / (steps - warmup))) / 2),   r = min_lr_ratio

    It is lr at the last warm-up step and lr * r, exactly, at the last step.

    >>> config = TrainingConfig(steps=100, tokens_per_step=8, context=8, lr=1e-2, min_lr_ratio=0.1, warmup_steps=10)
    >>> [round(learning_rate(step, config), 6) for step in (1, 10, 55, 100)]
    [0.001, 0.01, 0.0055, 0.001]
    """
    if step <= config.warmup_steps:
        return config.lr * step / config.warmup_steps
    progress = (step - config.warmup_steps) / (config.steps - config.warmup_steps)
    floor = config.lr * config.min_lr_ratio
    return floor + (config.lr - floor) * (1 + math.cos(math.pi * progress)) / 2


def decay_groups(model: nn.Module) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """Trainable parameters by name: those that decay, those that do not (norms, biases, embeddings, anything 1-D).

    A tied output head is the embedding, and counts once.
    """
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    norms = {
        id(parameter)
        for module in model.modules()
        if "norm" in type(module).__name__.lower()
        for parameter in module.parameters(recurse=False)
    }
    decayed: dict[str, nn.Parameter] = {}
    undecayed: dict[str, nn.Parameter] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        last_words = ".".join(name.split(".")[-2:]).lower()
        is_free = parameter.ndim < 2 or id(parameter) in embeddings | norms
        is_free = is_free or any(word in last_words for word in _UNDECAYED_WORDS)
        (undecayed if is_free else decayed)[name] = parameter
    return decayed, undecayed


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """AdamW over the decay groups, fused (a third of the time of the others on a processor too)."""
    decayed, undecayed = decay_groups(model)
    if not decayed and not undecayed:
        raise ValueError(f"{type(model).__name__} has no trainable parameter; unfreeze some (requires_grad_(True))")
    groups = [
        {"params": list(decayed.values()), "weight_decay": config.weight_decay},
        {"params": list(undecayed.values()), "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=1e-8, fused=True)


def _names(model: nn.Module) -> list[str]:
    decayed, undecayed = decay_groups(model)
    return [*decayed, *undecayed]


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimizer's state by parameter name: "exp_avg/model.norm.weight" -> tensor."""
    state = optimizer.state_dict()["state"]
    names = _names(model)
    return {f"{key}/{names[index]}": value for index, held in state.items() for key, value in held.items()}


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` gave; later steps are bit-identical."""
    index_of = {name: index for index, name in enumerate(_names(model))}
    state: dict[int, dict[str, Tensor]] = {}
    for full_name, tensor in tensors.items():
        key, name = full_name.split("/", 1)
        # A copy has the allocator's alignment; a view into the file has any.
        state.setdefault(index_of[name], {})[key] = tensor.clone()
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
