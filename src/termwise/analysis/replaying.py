"""The layers from L on, run again from layer L's input as it was.

Axes: B sequences, T tokens, V symbols.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from termwise.analysis.pretrained import Pretrained


@dataclass(frozen=True, eq=False)
class Recording:
    """One run of a model: what each layer was given (`inputs[l]`: (B, T, width), and its other arguments), and the result."""

    inputs: tuple[Tensor, ...]
    arguments: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...]
    result: Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of the layers' inputs and the result."""
        return sum(tensor.numel() * tensor.element_size() for tensor in (*self.inputs, self.result))


def record(pretrained: Pretrained, ids: Tensor) -> Recording:
    """Run (B, T) tokens and keep every layer's input. `result`: logits, of an encoder the final hidden state.

    Runs under `replaced` too, and records what that computes. ValueError for texts longer than the context.
    """
    check_length(pretrained, ids.shape[1])
    inputs: list[Tensor] = []
    arguments: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def keep(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = dict(kwargs)
        inputs.append(args[0] if args else given.pop("hidden_states"))
        arguments.append((args[1:], given))

    handles = [layer.register_forward_pre_hook(keep, with_kwargs=True) for layer in pretrained.layers]
    try:
        result = run(pretrained, ids)
    finally:
        for handle in handles:
            handle.remove()
    return Recording(tuple(inputs), tuple(arguments), result)


def run(pretrained: Pretrained, ids: Tensor) -> Tensor:
    """The whole model over (B, T) tokens: logits (B, T, V), of an encoder the final hidden state (B, T, width)."""
    check_length(pretrained, ids.shape[1])
    own = {"use_cache": False} if pretrained.is_causal else {}
    out = pretrained.model(input_ids=ids, **own)
    return out.logits if pretrained.head is not None else out.last_hidden_state


def replay(pretrained: Pretrained, recording: Recording, first: int, hidden: Tensor | None = None) -> Tensor:
    """The result of the layers from `first` on, run from that layer's recorded input, or from `hidden` in its place.

    Equal to the whole run; under `replaced`, what the model gives when only layers from `first` on are replaced.
    `first` = the number of layers runs the head alone. ValueError for a layer that is not there.
    """
    if not 0 <= first <= pretrained.num_layers or (first == pretrained.num_layers and hidden is None):
        raise ValueError(f"layer {first}; this model has layers 0 to {pretrained.num_layers - 1}")
    hidden = recording.inputs[first] if hidden is None else hidden
    for layer, (args, kwargs) in zip(pretrained.layers[first:], recording.arguments[first:], strict=True):
        out = layer(hidden, *args, **kwargs)
        hidden = out if isinstance(out, torch.Tensor) else out[0]
    if pretrained.norm is not None:
        hidden = pretrained.norm(hidden)
    return hidden if pretrained.head is None else pretrained.head(hidden)


def check_length(pretrained: Pretrained, length: int) -> None:
    """ValueError for a text longer than the model's context, or its sliding window."""
    if length > pretrained.context:
        is_window = pretrained.context == pretrained.window
        what = "sliding window" if is_window else "context"
        raise ValueError(f"{length} tokens; {pretrained.name} has a {what} of {pretrained.context}; give shorter texts")
