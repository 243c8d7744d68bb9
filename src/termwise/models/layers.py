"""One layer: attention of a spec with its options, and the SwiGLU of Llama. Parameter names are Llama's.

Shapes: B batch, T tokens, D hidden width, H query heads, G kv heads, d head width. A parameter exists only where the spec or
the options declare it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from termwise.attention.catalogue import LayerOptions
from termwise.attention.forms import attend
from termwise.attention.rows import RowCounts
from termwise.attention.spec import CALIBRATED
from termwise.attention.state import AttentionState
from termwise.models.cache import LayerCache
from termwise.models.config import TermwiseConfig
from termwise.models.convolution import ShortConvolution, next_past
from termwise.models.groups import HeadGroup
from termwise.models.layout import Layout
from termwise.models.rotary import Rotation, rotate

SLOW_DECAY = -4.0  # bias at the start: log decay -softplus(-4) = -0.018 a token


class Gate(nn.Linear):
    """One number a head and token from the layer input: w.x + b; `start` is the bias before training."""

    def __init__(self, width: int, heads: int, *, bias: bool = True, start: float = 0.0) -> None:
        super().__init__(width, heads, bias=bias)
        self.start = start


class GroupParameters(nn.Module):
    """What the spec of one of several groups of heads adds to a layer; a layer of one group holds it itself."""


def add_spec_parameters(module: nn.Module, group: HeadGroup, config: TermwiseConfig) -> None:
    """The gates and learned tensors that the group's spec declares, for the heads of the group."""
    width, d, spec, kv_heads = config.hidden_size, config.head_dim, group.spec, len(group.kv_heads)
    heads = kv_heads * (config.num_attention_heads // config.num_key_value_heads)
    if spec.input_gate is True:
        module.input_gate_proj = Gate(width, kv_heads)
    if spec.output_gate is not None:
        module.output_gate_proj = Gate(width, heads)
    if spec.log_decay:
        module.decay_proj = Gate(width, kv_heads, start=SLOW_DECAY)
    if spec.needs_running_gate:
        module.running_gate_proj = Gate(width, kv_heads, bias=False)
    sizes: dict[str | int, str | int] = {"heads": heads, "kv_heads": kv_heads, "key_width": d}
    for name, shape in spec.parameters(d).items():
        tensor = torch.empty([sizes.get(n, n) for n in shape])  # type: ignore[misc]
        module.register_parameter(name, nn.Parameter(tensor, requires_grad=name not in CALIBRATED))


class Attention(nn.Module):
    """Attention of one layer.

    q, k, v = projections of x [-> convolution -> activation] [-> q/k norm] [-> rotary], v [* softplus(w.x)],
    o = attend(q, k, v) of each group of heads, with gates sigmoid(w.x + b), log decay -softplus(w.x + b), running gate
    score w.x [-> RMS over all heads], then the output projection. The parameters of a group are this module's own where
    all heads share one spec, else those of `groups[g]`.
    """

    def __init__(
        self, config: TermwiseConfig, layer_idx: int, groups: Sequence[HeadGroup], options: LayerOptions
    ) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.head_groups = tuple(groups)
        self.options = options
        self.head_dim = config.head_dim
        self.row_counts: RowCounts | None = None
        self.attend_by: Callable[..., Any] | None = None  # in place of `attend`, while a model is measured
        width, heads, kv_heads, d = (
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.repeats = heads // kv_heads
        has_bias = config.attention_bias or config.qkv_bias
        self.q_proj = nn.Linear(width, heads * d, bias=has_bias)
        self.k_proj = nn.Linear(width, kv_heads * d, bias=has_bias)
        self.v_proj = nn.Linear(width, kv_heads * d, bias=has_bias)
        self.o_proj = nn.Linear(heads * d, width, bias=config.attention_bias)
        self._add_options(options, heads * d, kv_heads * d, config.rms_norm_eps)
        self.declared = [tuple(group.spec.parameters(d)) for group in groups]
        if len(groups) > 1:
            self.groups = nn.ModuleList(GroupParameters() for _ in groups)
        for number, group in enumerate(groups):
            add_spec_parameters(self.groups[number] if len(groups) > 1 else self, group, config)

    def _add_options(self, options: LayerOptions, q_width: int, kv_width: int, eps: float) -> None:
        kv_heads = kv_width // self.head_dim
        if options.conv_size:
            for name, channels in (("q_conv", q_width), ("k_conv", kv_width), ("v_conv", kv_width)):
                self.add_module(name, ShortConvolution(channels, options.conv_size, options.conv_activation))
        if options.qk_norm:
            self.q_norm = nn.RMSNorm(self.head_dim, eps=eps)
            self.k_norm = nn.RMSNorm(self.head_dim, eps=eps)
        if options.output_norm:
            self.output_norm = nn.RMSNorm(q_width, eps=eps)
        if options.value_step:
            self.value_step_proj = Gate(self.k_proj.in_features, kv_heads, bias=False)

    def forward(
        self,
        hidden: Float[Tensor, "B T D"],
        layout: Layout,
        rotation: Rotation | None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        query, key, value = self._heads(hidden, layout, cache)
        if self.options.qk_norm:
            # Under autocast a norm gives fp32; attention wants one type.
            query, key = self.q_norm(query).to(value.dtype), self.k_norm(key).to(value.dtype)
        if rotation is not None and self.options.rotary:
            query, key = rotate(query, rotation), rotate(key, rotation)
        if self.options.value_step:
            value = value * F.softplus(self.value_step_proj(hidden))[..., None].to(value.dtype)
        if len(self.head_groups) == 1:
            out, state = self._attend(0, hidden, query, key, value, layout, cache, self.row_counts)
            states = [state]
        else:
            out, states = self._attend_groups(hidden, query, key, value, layout, cache)
        if cache is not None:
            cache.hold(states)
        out = out.flatten(2)
        return self.o_proj(self.output_norm(out) if self.options.output_norm else out)

    def _attend_groups(
        self, hidden: Tensor, query: Tensor, key: Tensor, value: Tensor, layout: Layout, cache: LayerCache | None
    ) -> tuple[Tensor, list[AttentionState | None]]:
        """Each group by a call of its own, outputs put back in the order of the query heads."""
        repeats = self.repeats
        counts: list[RowCounts | None] = [None if self.row_counts is None else RowCounts() for _ in self.head_groups]
        of_head: dict[int, Tensor] = {}
        states = []
        for number, (group, count) in enumerate(zip(self.head_groups, counts, strict=True)):
            q = _pick(query, group.kv_heads, repeats)
            k, v = _pick(key, group.kv_heads, 1), _pick(value, group.kv_heads, 1)
            out, state = self._attend(number, hidden, q, k, v, layout, cache, count)
            of_head |= dict(zip(group.kv_heads, out.split(repeats, dim=2), strict=True))
            states.append(state)
        if self.row_counts is not None:
            self.row_counts.include(_joined(counts, self.head_groups, repeats))
        return torch.cat([of_head[head] for head in sorted(of_head)], dim=2), states

    def _attend(
        self,
        number: int,
        hidden: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        layout: Layout,
        cache: LayerCache | None,
        row_counts: RowCounts | None,
    ) -> tuple[Tensor, AttentionState | None]:
        """One group of heads: its outputs, and its state where there is a cache."""
        spec = self.head_groups[number].spec
        held: Any = self.groups[number] if len(self.head_groups) > 1 else self
        # Padding stands behind the real tokens, so causality hides it; only a state or a count must know of it.
        mask = layout.key_mask if cache is not None or row_counts is not None else None
        parameters: dict[str, Tensor] = {name: getattr(held, name) for name in self.declared[number]}
        if spec.needs_running_gate:
            parameters["running_gate_score"] = held.running_gate_proj(hidden)
        return (self.attend_by or attend)(
            query, key, value, spec,
            key_mask=mask,
            cu_seqlens=layout.cu_seqlens,
            input_gate=torch.sigmoid(held.input_gate_proj(hidden)) if spec.input_gate is True else None,
            output_gate=torch.sigmoid(held.output_gate_proj(hidden)) if spec.output_gate is not None else None,
            log_decay=-F.softplus(_wide(held.decay_proj(hidden))) if spec.log_decay else None,
            parameters=parameters or None,
            initial_state=cache.states[number] if cache is not None and cache.states else None,
            output_final_state=cache is not None,
            record_past=cache is not None and cache.record_past,
            row_counts=row_counts,
        )  # fmt: skip

    def _heads(self, hidden: Tensor, layout: Layout, cache: LayerCache | None) -> list[Tensor]:
        """Queries (B, T, H, d), keys and values (B, T, G, d)."""
        projected = [self.q_proj(hidden), self.k_proj(hidden), self.v_proj(hidden)]
        if self.options.conv_size:
            size = self.options.conv_size
            pasts: tuple[Tensor | None, ...] = (cache.past if cache is not None else ()) or (None, None, None)
            if cache is not None:
                cache.conv_size = size
                cache.past = tuple(
                    next_past(x, layout, past, size, cache.record_past)
                    for x, past in zip(projected, pasts, strict=True)
                )
            convolutions = [getattr(self, name) for name in ("q_conv", "k_conv", "v_conv")]
            projected = [conv(x, layout, past) for conv, x, past in zip(convolutions, projected, pasts, strict=True)]
        return [x.unflatten(-1, (-1, self.head_dim)) for x in projected]


def _wide(x: Tensor) -> Tensor:
    """In float32, or wider where it is: a log decay adds up over many tokens."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _pick(tensor: Tensor, heads: Sequence[int], width: int) -> Tensor:
    """Of a tensor (B, T, heads, d) those of some kv heads, `width` each."""
    return torch.cat([tensor.narrow(2, head * width, width) for head in heads], dim=2)


def _joined(counts: Sequence[RowCounts | None], groups: Sequence[HeadGroup], repeats: int) -> RowCounts:
    """The counts of all query heads in order; a group that sums no rows counts zeros. Nothing where none does."""
    found = RowCounts()
    if not any(count is not None and count.rows.numel() for count in counts):
        return found
    for name in ("rows", "vanishing", "negative"):
        total = torch.zeros(sum(len(group.kv_heads) for group in groups) * repeats, dtype=torch.int64)
        for count, group in zip(counts, groups, strict=True):
            if count is not None and count.rows.numel():
                total[list(group.query_heads(repeats))] = getattr(count, name)
        setattr(found, name, total)
    return found


class MLP(nn.Module):
    """down(act(gate(x)) * up(x)). Source: Shazeer 2020 (SwiGLU)."""

    def __init__(self, config: TermwiseConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)
        self.act_fn = ACT2FN[config.hidden_act]

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(GradientCheckpointingLayer):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(
        self, config: TermwiseConfig, layer_idx: int, groups: Sequence[HeadGroup], options: LayerOptions
    ) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer_idx, groups, options)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        hidden: Float[Tensor, "B T D"],
        layout: Layout,
        rotation: Rotation | None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), layout, rotation, cache)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))
