"""What one head is worth: the loss of a text, cheap proxies from one sweep backwards, true rises by replay.

Axes: T tokens, V symbols, H query heads, G kv heads, d key width, e value width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from termwise.analysis.pretrained import Pretrained
from termwise.analysis.reducing import exact_attention, one_place, reduced_attention
from termwise.analysis.replacing import replaced
from termwise.analysis.replaying import Recording, replay
from termwise.attention.spec import AttentionSpec


def text_loss(pretrained: Pretrained, result: Tensor, ids: Tensor, exact: Tensor | None = None) -> float:
    """What a result of the model is worth on a text, lower is better.

    A language model: mean nats a token over all tokens after the first. An encoder has no such loss: the relative change of
    its final hidden state, |h - h_exact| / |h_exact| (0 for the model as it is).
    """
    if pretrained.head is not None:
        return float(F.cross_entropy(result[0, :-1].float(), ids[0, 1:]))
    exact = result if exact is None else exact
    return float((result - exact).norm() / exact.norm())


def expected_loss(result: Tensor) -> float:
    """The mean entropy of a language model's predictions: the loss it expects, in nats a token."""
    logs = result[0, :-1].float().log_softmax(dim=-1)
    return float(-(logs.exp() * logs).sum(dim=-1).mean())


def true_loss(
    pretrained: Pretrained, recording: Recording, ids: Tensor, spec: AttentionSpec, layer: int, kv_head: int | None
) -> float:
    """The loss of a text with one kv head (None: one layer) reduced to a spec, replayed from that layer's input."""
    with torch.no_grad(), replaced(pretrained, one_place(spec, layer, kv_head, is_causal=pretrained.is_causal)):
        return text_loss(pretrained, replay(pretrained, recording, layer), ids, recording.result)


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer of a sweep: its heads as the attention function got them, and the proxies of each kv head (G).

    output_error  sqrt(sum_t |W (o'_t - o_t)|^2 / sum_t |W o_t|^2), W the head's part of the output projection and o the whole
                  layer's output below the line
    fisher        sum_t (g_t . (o'_t - o_t))^2 / (2 T), g_t the gradient of the text's summed loss: nats a token, to second order
                  and as if queries did not add up; None for an encoder
    """

    number: int
    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    output_error: Tensor
    fisher: Tensor | None


def sweep(pretrained: Pretrained, recording: Recording, ids: Tensor, spec: AttentionSpec) -> Iterator[Layer]:
    """Every layer from the last to the first, with its proxies, in the memory of one layer's backward pass.

    The recording is the model's own; the gradient at a layer's output is handed down, so nothing is kept for long.
    """
    gradient = _at_the_end(pretrained, recording, ids) if pretrained.head is not None else None
    for number in reversed(range(pretrained.num_layers)):
        layer, gradient = _backward(pretrained, recording, spec, number, gradient)
        yield layer


def _at_the_end(pretrained: Pretrained, recording: Recording, ids: Tensor) -> Tensor:
    """The gradient of the summed loss at the last layer's output."""
    last = pretrained.num_layers - 1
    with torch.no_grad():
        hidden = _run_layer(pretrained, recording, last, recording.inputs[last])
    hidden.requires_grad_(True)
    with torch.enable_grad():
        result = replay(pretrained, recording, pretrained.num_layers, hidden)
        loss = F.cross_entropy(result[0, :-1].float(), ids[0, 1:], reduction="sum")
        return torch.autograd.grad(loss, hidden)[0]


def _run_layer(pretrained: Pretrained, recording: Recording, number: int, hidden: Tensor) -> Tensor:
    args, kwargs = recording.arguments[number]
    out = pretrained.layers[number](hidden, *args, **kwargs)
    return out if isinstance(out, torch.Tensor) else out[0]


def _backward(
    pretrained: Pretrained, recording: Recording, spec: AttentionSpec, number: int, gradient: Tensor | None
) -> tuple[Layer, Tensor | None]:
    is_causal = pretrained.is_causal
    seen: list[tuple[Tensor, Tensor, Tensor, float, Tensor]] = []

    def keep(_layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        out = exact_attention(query, key, value, scale, is_causal=is_causal)
        seen.append((query, key, value, scale, out))
        return out

    hidden = recording.inputs[number].detach().requires_grad_(gradient is not None)
    with torch.set_grad_enabled(gradient is not None), replaced(pretrained, keep):
        result = _run_layer(pretrained, recording, number, hidden)
    query, key, value, scale, out = seen[0]
    at_heads = None
    if gradient is not None:
        gradient, at_heads = torch.autograd.grad(result, [hidden, out], gradient)
    with torch.no_grad():
        query, key, value = query.detach(), key.detach(), value.detach()
        change = reduced_attention(query, key, value, scale, spec, is_causal=is_causal) - out.detach()
        errors = _through_output(pretrained, number, change, key.shape[2]) / _whole(pretrained, number, out.detach())
        fisher = None if at_heads is None else _fisher(at_heads, change, key.shape[2])
    return Layer(number, query[0], key[0], value[0], scale, errors, fisher), gradient


def _fisher(gradient: Tensor, change: Tensor, groups: int) -> Tensor:
    """(G,)"""
    products = (gradient * change)[0].unflatten(1, (groups, -1)).sum(dim=(2, 3))
    return products.square().sum(dim=0).double() / (2 * len(products))


def _through_output(pretrained: Pretrained, number: int, change: Tensor, groups: int) -> Tensor:
    """(G,) norms of each kv head's change behind the output projection."""
    project = _projection(pretrained, number)
    norms = []
    for group, part in enumerate(change.chunk(groups, dim=2)):
        alone = torch.zeros_like(change)
        width = part.shape[2]
        alone[:, :, group * width : (group + 1) * width] = part
        norms.append(project(alone.flatten(2)).norm())
    return torch.stack(norms).double()


def _whole(pretrained: Pretrained, number: int, out: Tensor) -> Tensor:
    return _projection(pretrained, number)(out.flatten(2)).norm().double()


def _projection(pretrained: Pretrained, number: int) -> Callable[[Tensor], Tensor]:
    """The output projection without its bias."""
    module = pretrained.outputs[number]

    def project(heads: Tensor) -> Tensor:
        return module(heads) - module(torch.zeros_like(heads[:, :1]))

    return project
