"""Where a NaN or an infinity first appeared: tensor, layer, head, document."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from termwise.training.batches import Part
from termwise.training.placement import Placement

_LAYER = re.compile(r"(?:^|[. ])(?:layers?|blocks?|h)\.(\d+)(?:\.|$)")

_PROJECTION = re.compile(r"(?:^|[. _])([a-z]+)_(?:proj|conv)(?:\.|$)")


@dataclass(frozen=True)
class Fault:
    """The first tensor found not finite, in the order of the computation. What does not apply is None."""

    tensor: str
    layer: int | None = None
    head: int | None = None
    micro_batch: int | None = None
    document: int | None = None

    def __str__(self) -> str:
        places = {"layer": self.layer, "head": self.head, "micro batch": self.micro_batch, "document": self.document}
        known = ", ".join(f"{name} {value}" for name, value in places.items() if value is not None)
        return f"{self.tensor} ({known})" if known else self.tensor


class TrainingDiverged(ValueError):  # noqa: N818
    """Loss or gradient is NaN or infinite at `step`; weights and checkpoints are as before that step.

    `tensor`, `layer`, `head`, `micro_batch` and `document` say where it first appeared, `batch` is the argument that
    was given to `batches`. `skipped` is how many steps in a row were left out before it gave up, 0 where none was to be.
    """

    def __init__(
        self, step: int, batch: int, what: str, fault: Fault, last_good: Path | None, skipped: int = 0
    ) -> None:
        self.step, self.batch, self.last_good, self.skipped = step, batch, last_good, skipped
        self.tensor, self.layer, self.head = fault.tensor, fault.layer, fault.head
        self.micro_batch, self.document = fault.micro_batch, fault.document
        self.what = f"{what}; first not finite: {fault}, in batches({batch})"
        kept = f"the last good checkpoint is {last_good}" if last_good else "there is no checkpoint yet"
        way_out = "set on_nan='skip' to leave such steps out"
        if skipped:
            way_out = f"look at the data: {skipped} steps in a row were left out, more would learn nothing"
        super().__init__(f"step {step}: {self.what}; {kept}; lower lr or clip, or {way_out}")


class _Found(Exception):  # noqa: N818
    def __init__(self, name: str, tensor: Tensor) -> None:
        self.name, self.tensor = name, tensor


def locate(model: nn.Module, parts: Sequence[Part], placement: Placement) -> Fault:
    """Search weights, then a repeated forward pass, then gradients from the last layer down (as backward runs)."""
    named = list(model.named_parameters())
    for name, parameter in named:
        if not _is_finite(parameter):
            return _fault(name, f"weight {name}", parameter, model)
    for number, part in enumerate(parts):
        try:
            with _watched(model), torch.no_grad(), placement.autocast():
                ids, boundaries = placement.tensor(part.input_ids), placement.tensor(part.cu_seqlens)
                logits = model(input_ids=ids, cu_seqlens=boundaries).logits
                if not _is_finite(logits):
                    raise _Found("logits", logits)
        except _Found as found:
            fault = _fault(found.name, found.name, found.tensor, model)
            return dataclasses.replace(fault, micro_batch=number, document=_document(found.tensor, part))
    for name, parameter in reversed(named):
        if parameter.grad is not None and not _is_finite(parameter.grad):
            return _fault(name, f"gradient of {name}", parameter.grad, model)
    return Fault("the loss alone")


@contextlib.contextmanager
def _watched(model: nn.Module) -> Iterator[None]:
    """Raise _Found at the first module that is given or gives back something not finite."""
    handles = []
    for name, module in model.named_modules():
        if name:
            handles.append(module.register_forward_pre_hook(_before(name), with_kwargs=True))
            handles.append(module.register_forward_hook(_after(name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _before(name: str) -> Any:
    def hook(module: nn.Module, arguments: Any, keywords: dict[str, Any]) -> None:
        for tensor in _tensors([*arguments, *keywords.values()]):
            if not _is_finite(tensor):
                raise _Found(f"input of {name}", tensor)

    return hook


def _after(name: str) -> Any:
    def hook(module: nn.Module, arguments: Any, result: Any) -> None:
        for tensor in _tensors([result]):
            if not _is_finite(tensor):
                raise _Found(f"output of {name}", tensor)

    return hook


def _tensors(values: Sequence[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _is_finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())


def _first_index(tensor: Tensor) -> tuple[int, ...]:
    return tuple(torch.isfinite(tensor).logical_not().nonzero()[0].tolist())


def _fault(name: str, described: str, tensor: Tensor, model: nn.Module) -> Fault:
    layer = _LAYER.search(name)
    return Fault(described, int(layer[1]) if layer else None, _head(described, tensor, getattr(model, "config", None)))


def _head(described: str, tensor: Tensor, config: Any) -> int | None:
    """The head (of keys and values: the kv head) of the first bad element, where the tensor has such an axis.

    The axis is known from the name, the number of heads from the model's configuration.
    """
    heads = getattr(config, "num_attention_heads", None)
    if heads is None or tensor.ndim == 0 or not ("attn" in described or "attention" in described):
        return None
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    is_activation = described.startswith(("input of", "output of"))
    is_exit = "o_proj" in described
    if is_exit and described.startswith("output of"):
        return None
    last = 2 if tensor.ndim == 4 else tensor.ndim - 1
    axis = last if is_activation else int(is_exit and tensor.ndim == 2)
    size = tensor.shape[axis]
    projection = _PROJECTION.search(described)
    own = kv_heads if size == kv_heads or (projection and projection[1] in ("k", "v")) else heads
    is_split = projection is not None and size % own == 0
    return _first_index(tensor)[axis] // (size // own) if size == own or is_split else None


def _document(tensor: Tensor, part: Part) -> int | None:
    """The number, in the whole batch, of the document that the first bad position belongs to."""
    length = part.input_ids.shape[1]
    axis = next((axis for axis in (0, 1) if tensor.ndim > axis and tensor.shape[axis] == length), None)
    if axis is None:
        return None
    position = _first_index(tensor)[axis]
    return part.first_document + int((part.cu_seqlens[1:] <= position).sum())
