"""A pretrained model under a plan: attention of every kv head by its spec, and the loss on the last half of a text.

Axes: B = 1 sequences, T tokens, H query heads, G kv heads, d key width, e value width, n scored tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from termwise.analysis.options import kind_of
from termwise.analysis.pretrained import Pretrained
from termwise.analysis.replacing import Compute, replaced
from termwise.attention.forms import attend
from termwise.attention.spec import AttentionSpec

Layer = Sequence[AttentionSpec]  # one spec a kv head
Centers = Mapping[tuple[int, int, int], Tensor]  # (layer, kv head, number of centers) -> (m, d)
SCORED_AT_A_TIME = 256  # tokens whose logits stand at once


def under_plan(layers: Sequence[Layer], centers: Centers) -> Compute:
    """What `replaced` calls: every kv head with its own spec; a layer of exact heads is left to the model."""

    def compute(layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor | None:
        specs = layers[layer]
        if all(kind_of(spec) == "exact" for spec in specs):
            return None
        out = query.new_empty(*query.shape[:3], value.shape[3])
        for spec in dict.fromkeys(specs):
            heads = [head for head, own in enumerate(specs) if own == spec]
            given = head_centers(centers, layer, heads, spec)
            repeats = query.shape[2] // key.shape[2]
            rows = [head * repeats + i for head in heads for i in range(repeats)]
            out[:, :, rows] = reduced(query[:, :, rows], key[:, :, heads], value[:, :, heads], scale, spec, given)
        return out

    return compute


def reduced(
    query: Tensor, key: Tensor, value: Tensor, scale: float, spec: AttentionSpec, centers: Tensor | None
) -> Tensor:
    """Outputs (B, T, H, e) of heads that all keep what `spec` says; `centers` (G, m, d) where it has several groups."""
    parameters = None if centers is None else {"centers": centers}
    return attend(query, key, value, spec, scale=scale, parameters=parameters)[0]


def head_centers(centers: Centers, layer: int, heads: Sequence[int], spec: AttentionSpec) -> Tensor | None:
    """Centers (G, m, d) of some heads of a layer; None where the spec has a single group or none."""
    number = spec.kernel.centers
    return torch.stack([centers[layer, head, number] for head in heads]) if number > 1 else None


@torch.no_grad()
def scored(pretrained: Pretrained, ids: Tensor, compute: Compute | None = None) -> Tensor:
    """Nats (n,) of each token of the last half of (1, T) tokens, given all before it."""
    with replaced(pretrained, compute or (lambda *_: None)):
        return head_nats(pretrained, final_hidden(pretrained, ids), ids)


@dataclass(frozen=True, eq=False)
class Passed:
    """One exact run: each layer's input (1, T, width) with its other arguments, and what the norm before the head reads."""

    inputs: tuple[Tensor, ...]
    arguments: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...]
    last: Tensor


@torch.no_grad()
def passed_through(
    pretrained: Pretrained, ids: Tensor, look: Callable[[int, Tensor, Tensor], Any] = lambda *_: None
) -> Passed:
    """Run the model exactly over (1, T) tokens; `look(layer, query, key)` sees each layer's."""
    inputs: list[Tensor] = []
    arguments: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    last: list[Tensor] = []

    def keep(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = dict(kwargs)
        inputs.append(args[0] if args else given.pop("hidden_states"))
        arguments.append((args[1:], given))

    assert pretrained.norm is not None
    handles = [layer.register_forward_pre_hook(keep, with_kwargs=True) for layer in pretrained.layers]
    handles.append(pretrained.norm.register_forward_pre_hook(lambda _module, args: last.append(args[0])))
    try:
        with replaced(pretrained, lambda layer, query, key, value, scale: look(layer, query, key) and None):
            pretrained.model(input_ids=ids, use_cache=False, logits_to_keep=1)
    finally:
        for handle in handles:
            handle.remove()
    return Passed(tuple(inputs), tuple(arguments), last[-1])


@torch.no_grad()
def replayed(pretrained: Pretrained, passed: Passed, ids: Tensor, first: int, compute: Compute) -> Tensor:
    """Nats (n,) as `scored`, run from layer `first` on its exact input: right where `compute` leaves the layers before exact."""
    hidden = passed.inputs[first]
    assert pretrained.norm is not None
    with replaced(pretrained, compute):
        for layer, (args, kwargs) in zip(pretrained.layers[first:], passed.arguments[first:], strict=True):
            out = layer(hidden, *args, **kwargs)
            hidden = out if isinstance(out, Tensor) else out[0]
        return head_nats(pretrained, pretrained.norm(hidden), ids)


def final_hidden(pretrained: Pretrained, ids: Tensor) -> Tensor:
    """What the head reads (1, T, width), without the logits of every token, which would be the largest tensor of all."""
    found: list[Tensor] = []
    assert pretrained.norm is not None
    handle = pretrained.norm.register_forward_hook(lambda _module, _args, out: found.append(out))
    try:
        pretrained.model(input_ids=ids, use_cache=False, logits_to_keep=1)
    finally:
        handle.remove()
    return found[-1]


def head_nats(pretrained: Pretrained, hidden: Tensor, ids: Tensor) -> Tensor:
    """Nats (n,) of the last half of the text from what the head reads."""
    first = num_unscored(ids.shape[1])
    assert pretrained.head is not None
    parts = [
        cross_entropy(pretrained.head(hidden[0, start - 1 : end - 1]).float(), ids[0, start:end], reduction="none")
        for start, end in chunks(first, ids.shape[1])
    ]
    return torch.cat(parts)


def num_unscored(length: int) -> int:
    """Tokens of the first half, which are read only."""
    return max(1, length // 2)


def chunks(first: int, last: int) -> list[tuple[int, int]]:
    """Stretches of tokens whose logits stand at once."""
    return [(start, min(start + SCORED_AT_A_TIME, last)) for start in range(first, last, SCORED_AT_A_TIME)]
