"""One layer: attention of a spec with its options, and the SwiGLU of Llama. Parameter names are Llama's.

Shapes: B batch, T tokens, D hidden width, H query heads, G kv heads, d head width. A parameter exists only where the spec or
the options declare it.
"""

from __future__ import annotations

from collections.abc import Callable
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
from termwise.attention.spec import AttentionSpec
from termwise.models.cache import LayerCache
from termwise.models.config import TermwiseConfig
from termwise.models.convolution import ShortConvolution, next_past
from termwise.models.layout import Layout
from termwise.models.rotary import Rotation, rotate

SLOW_DECAY = -4.0  # bias at the start: log decay -softplus(-4) = -0.018 a token


class Gate(nn.Linear):
    """One number a head and token from the layer input: w.x + b; `start` is the bias before training."""

    def __init__(self, width: int, heads: int, *, bias: bool = True, start: float = 0.0) -> None:
        super().__init__(width, heads, bias=bias)
        self.start = start


class Attention(nn.Module):
    """Attention of one layer.

    q, k, v = projections of x [-> convolution -> activation] [-> q/k norm] [-> rotary], v [* softplus(w.x)],
    o = attend(q, k, v) with gates sigmoid(w.x + b), log decay -softplus(w.x + b), running gate score w.x
    [-> RMS over all heads], then the output projection.
    """

    def __init__(self, config: TermwiseConfig, layer_idx: int, spec: AttentionSpec, options: LayerOptions) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.spec = spec
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
        has_bias = config.attention_bias or config.qkv_bias
        self.q_proj = nn.Linear(width, heads * d, bias=has_bias)
        self.k_proj = nn.Linear(width, kv_heads * d, bias=has_bias)
        self.v_proj = nn.Linear(width, kv_heads * d, bias=has_bias)
        self.o_proj = nn.Linear(heads * d, width, bias=config.attention_bias)
        self._add_options(options, heads * d, kv_heads * d, config.rms_norm_eps)
        self._add_gates(spec, options, width, heads, kv_heads)
        sizes: dict[str | int, str | int] = {"heads": heads, "kv_heads": kv_heads}
        self.declared = tuple(spec.parameters(d))
        for name, shape in spec.parameters(d).items():
            self.register_parameter(name, nn.Parameter(torch.empty([sizes.get(n, n) for n in shape])))  # type: ignore[misc]

    def _add_options(self, options: LayerOptions, q_width: int, kv_width: int, eps: float) -> None:
        if options.conv_size:
            for name, channels in (("q_conv", q_width), ("k_conv", kv_width), ("v_conv", kv_width)):
                self.add_module(name, ShortConvolution(channels, options.conv_size, options.conv_activation))
        if options.qk_norm:
            self.q_norm = nn.RMSNorm(self.head_dim, eps=eps)
            self.k_norm = nn.RMSNorm(self.head_dim, eps=eps)
        if options.output_norm:
            self.output_norm = nn.RMSNorm(q_width, eps=eps)

    def _add_gates(self, spec: AttentionSpec, options: LayerOptions, width: int, heads: int, kv_heads: int) -> None:
        if spec.input_gate is True:
            self.input_gate_proj = Gate(width, kv_heads)
        if spec.output_gate is not None:
            self.output_gate_proj = Gate(width, heads)
        if spec.log_decay:
            self.decay_proj = Gate(width, kv_heads, start=SLOW_DECAY)
        if spec.needs_running_gate:
            self.running_gate_proj = Gate(width, kv_heads, bias=False)
        if options.value_step:
            self.value_step_proj = Gate(width, kv_heads, bias=False)

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
        spec = self.spec
        # Padding stands behind the real tokens, so causality hides it; only a state or a count must know of it.
        mask = layout.key_mask if cache is not None or self.row_counts is not None else None
        out, state = (self.attend_by or attend)(
            query, key, value, spec,
            key_mask=mask,
            cu_seqlens=layout.cu_seqlens,
            input_gate=torch.sigmoid(self.input_gate_proj(hidden)) if spec.input_gate is True else None,
            output_gate=torch.sigmoid(self.output_gate_proj(hidden)) if spec.output_gate is not None else None,
            log_decay=-F.softplus(self.decay_proj(hidden).float()) if spec.log_decay else None,
            parameters=self._parameters_for(hidden),
            initial_state=None if cache is None else cache.state,
            output_final_state=cache is not None,
            row_counts=self.row_counts,
        )  # fmt: skip
        if cache is not None:
            cache.hold(state)
        out = out.flatten(2)
        return self.o_proj(self.output_norm(out) if self.options.output_norm else out)

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

    def _parameters_for(self, hidden: Tensor) -> dict[str, Tensor] | None:
        found = {name: getattr(self, name) for name in self.declared}
        if self.spec.needs_running_gate:
            found["running_gate_score"] = self.running_gate_proj(hidden)
        return found or None


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

    def __init__(self, config: TermwiseConfig, layer_idx: int, spec: AttentionSpec, options: LayerOptions) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer_idx, spec, options)
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
