"""What each option of each kv head would cost in loss, from one forward and one backward pass over a text.

    delta_t = o_option,t - o_exact,t,   g_t = gradient of the summed nats of the scored tokens at o_t,  labels drawn from the model
    rise = sum_t (g_t . delta_t)^2 / (2 n)                 nats a scored token
With labels drawn from the model E[(g . delta)^2] / 2 is the second-order change of the divergence from the exact model
(Fisher, Gauss-Newton); positions are taken as independent. Beside it the relative change of the layer's attention output,
|W_o delta| / |W_o o|. Both rank options; neither is a measured loss. Layer by layer, so that memory holds one layer's graph.

Axes: T tokens, L layers, G kv heads, R query heads a kv head, O options, e value width, n scored tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from termwise.analysis.options import kind_of
from termwise.analysis.pretrained import Pretrained
from termwise.analysis.replacing import replaced
from termwise.analysis.replanned import Centers, Passed, chunks, head_centers, num_unscored, passed_through, reduced
from termwise.attention.spec import AttentionSpec


@dataclass(frozen=True, eq=False)
class Proxies:
    """For every layer, kv head and option (L, G, O): the rise in loss (nats a token) and the relative change of the output."""

    rise: Tensor
    change: Tensor


def layer_keys(pretrained: Pretrained, ids: Tensor) -> Iterator[Tensor]:
    """Rotated keys (T, G, d) of every layer, in order, on (1, T) tokens."""
    found: list[Tensor] = []
    passed_through(pretrained, ids, lambda _layer, _query, key: found.append(key[0].clone()))
    yield from found


def proxies(
    pretrained: Pretrained,
    ids: Tensor,
    options: Sequence[AttentionSpec],
    centers: Centers,
    seed: int,
    after_layer: Callable[[int], Any] = lambda _layer: None,
) -> Proxies:
    """Proxies of every option on (1, T) tokens; the same seed draws the same labels.

    `after_layer(layer)` is called as layers are done, the last first. Memory: every layer's input, and the graph of one layer.
    """
    passed = passed_through(pretrained, ids)
    gradient = _head_gradient(pretrained, passed.last, ids, seed)
    rise = torch.zeros(pretrained.num_layers, pretrained.num_kv_heads, len(options))
    change = torch.zeros_like(rise)
    for layer in reversed(range(pretrained.num_layers)):
        seen, gradient = _through_layer(pretrained, passed, layer, gradient)
        for number, spec in enumerate(options):
            if kind_of(spec) != "exact":
                found = _of_option(pretrained, seen, layer, spec, centers, ids.shape[1])
                rise[layer, :, number], change[layer, :, number] = found
        after_layer(layer)
    return Proxies(rise, change)


@dataclass(frozen=True, eq=False)
class _Seen:
    """One layer's attention on the text, and the gradient at its outputs."""

    query: Tensor  # (1, T, H, d)
    key: Tensor  # (1, T, G, d)
    value: Tensor  # (1, T, G, e)
    scale: float
    output: Tensor  # (1, T, H, e)
    gradient: Tensor  # (1, T, H, e)
    projected: float  # |W_o o|


def _head_gradient(pretrained: Pretrained, last: Tensor, ids: Tensor, seed: int) -> Tensor:
    """Gradient of the summed nats of the scored tokens, with drawn labels, at what the last layer gives."""
    assert pretrained.norm is not None and pretrained.head is not None
    generator = torch.Generator().manual_seed(seed)
    gradient = torch.zeros_like(last)
    for start, end in chunks(num_unscored(ids.shape[1]), ids.shape[1]):
        rows = last[:, start - 1 : end - 1].detach().clone().requires_grad_(True)
        with torch.enable_grad():
            logarithms = pretrained.head(pretrained.norm(rows))[0].float().log_softmax(dim=-1)
            drawn = torch.multinomial(logarithms.detach().exp(), 1, generator=generator)
            nats = -logarithms.gather(1, drawn).sum()
            (gradient[:, start - 1 : end - 1],) = torch.autograd.grad(nats, rows)
    return gradient


def _through_layer(pretrained: Pretrained, passed: Passed, layer: int, gradient: Tensor) -> tuple[_Seen, Tensor]:
    """The layer's attention with the gradient at its output, and the gradient at the layer's input."""
    found: dict[str, Any] = {}

    def compute(_layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True).transpose(1, 2)
        probe = torch.zeros_like(out, requires_grad=True)
        found.update(query=query.detach(), key=key.detach(), value=value.detach(), scale=scale, output=out.detach())
        found["probe"] = probe
        return out + probe

    hidden = passed.inputs[layer].detach().requires_grad_(True)
    args, kwargs = passed.arguments[layer]
    with torch.enable_grad(), replaced(pretrained, compute):
        out = pretrained.layers[layer](hidden, *args, **kwargs)
        out = out if isinstance(out, Tensor) else out[0]
    at_input, at_output = torch.autograd.grad(out, (hidden, found.pop("probe")), gradient)
    projected = _projected_norm(pretrained, layer, found["output"])
    return _Seen(gradient=at_output, projected=projected, **found), at_input


@torch.no_grad()
def _of_option(
    pretrained: Pretrained, seen: _Seen, layer: int, spec: AttentionSpec, centers: Centers, length: int
) -> tuple[Tensor, Tensor]:
    """Rise and change (G,) when one kv head of the layer keeps what `spec` says, for each of its kv heads."""
    groups = pretrained.num_kv_heads
    given = head_centers(centers, layer, range(groups), spec)
    out = reduced(seen.query, seen.key, seen.value, seen.scale, spec, given)
    delta = (out - seen.output)[0].unflatten(1, (groups, -1))  # (T, G, R, e)
    pull = (seen.gradient[0].unflatten(1, (groups, -1)) * delta).sum(dim=(2, 3))
    num_scored = length - num_unscored(length)
    rise = pull.double().square().sum(dim=0) / (2 * num_scored)
    weight = pretrained.outputs[layer].weight.unflatten(1, (groups, -1))  # (width, G, R e)
    gram = torch.einsum("wgr,wgs->grs", weight, weight)
    moved = (torch.einsum("tgr,grs->tgs", delta.flatten(2), gram) * delta.flatten(2)).sum(dim=(0, 2))
    return rise.float(), moved.clamp_min(0).sqrt() / seen.projected


def _projected_norm(pretrained: Pretrained, layer: int, output: Tensor) -> float:
    """|W_o o| over the whole text."""
    return float((output[0].flatten(1) @ pretrained.outputs[layer].weight.T).norm())
