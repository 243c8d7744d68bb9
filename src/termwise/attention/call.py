"""One call of attend, brought into the engine's layout."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from termwise.attention.beginning import empty_state
from termwise.attention.choice import choose_form
from termwise.attention.folding import Keys
from termwise.attention.reading import Queries
from termwise.attention.refusals import check_size
from termwise.attention.rows import RowCounts
from termwise.attention.spec import AttentionSpec
from termwise.attention.state import AttentionState

FORGOTTEN = -1e5  # a log decay whose exponential is 0 in any type; -inf would leave inf - inf between two such tokens


@dataclass(frozen=True)
class Call:
    """Everything one call needs. Engine layout: query (B, G, R, T, d), key (B, G, S, d), value (B, G, S, e)."""

    spec: AttentionSpec
    causal: bool
    form: str
    chunk_size: int | None
    state: AttentionState  # before the call
    keys: Keys
    queries: Queries
    parameters: dict[str, Tensor]
    reference: Tensor | None
    output_final_state: bool
    row_counts: RowCounts | None
    record_past: bool
    dtype: torch.dtype  # of the output

    @property
    def num_queries(self) -> int:
        return self.queries.query.shape[3]

    @property
    def num_keys(self) -> int:
        return self.keys.length

    def restore(self, out: Tensor) -> Tensor:
        """(B, G, R, T, e) -> (B, T, H, e) in the query's type."""
        return out.permute(0, 3, 1, 2, 4).flatten(2, 3).to(self.dtype)


def prepare(
    query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec, scale: float | None, causal: bool, key_mask: Tensor | None,
    input_gate: Tensor | None, output_gate: Tensor | None, log_decay: Tensor | None, parameters: dict[str, Tensor] | None,
    initial_state: AttentionState | None, output_final_state: bool, form: str, chunk_size: int | None,
    row_counts: RowCounts | None, query_mask: Tensor | None, cu_seqlens: None = None, record_past: bool = False,
) -> Call:  # fmt: skip
    """Checked arguments of one batch of sequences (no packed documents) in the engine's layout."""
    parameters = dict(parameters or {})
    batch, num_queries, heads, key_width = query.shape
    num_keys, kv_heads, value_width = key.shape[1], key.shape[2], value.shape[3]
    scales = _scales(spec, scale, key_width)
    if query_mask is None and key_mask is not None and num_queries == num_keys:
        query_mask = key_mask
    name = form
    if form == "auto":
        has_decay = log_decay is not None or (initial_state is not None and initial_state.age is not None)
        name, _ = choose_form(
            spec, num_queries=num_queries, num_keys=num_keys, key_width=key_width, value_width=value_width, causal=causal,
            has_state=initial_state is not None, has_decay=has_decay, heads=batch * heads, kv_heads=batch * kv_heads,
            output_final_state=output_final_state,
        )  # fmt: skip
    # The long series is wider than float32: exp(89) is beyond it, and one key's infinity would reach rows that do not see it.
    is_wide = query.dtype == torch.float64 or name == "reference" or getattr(spec.kernel, "is_long_series", False)
    accumulate = torch.float64 if is_wide else torch.float32
    with_moments = output_final_state or name in ("chunked", "recurrent")
    if with_moments and initial_state is None:
        check_size(spec, key_width, value_width, num_states=batch * kv_heads)
    state = _state_before(
        spec, initial_state, batch, kv_heads, key_width, value_width, scales, query, accumulate, with_moments
    )
    rank = _ranks(key_mask, num_keys, state, query.device)
    if log_decay is not None and bool(((log_decay > 0) & (rank >= 0)[..., None]).any()):
        raise ValueError(
            f"log_decay reaches {float(log_decay.max()):.3g}; allowed are numbers up to 0 (decays up to 1), e.g. -softplus(x)"
        )
    gate = _input_gate(spec, input_gate, rank, state, causal, parameters, accumulate)
    keys = _keys(
        key,
        value,
        gate,
        log_decay,
        parameters.get("running_gate_score") if spec.needs_running_gate else None,
        key_mask,
        rank,
        accumulate,
    )
    return Call(
        spec=spec, causal=causal, form=name, chunk_size=chunk_size, state=state, keys=keys,
        queries=_queries(query, output_gate, query_mask, key_mask, rank, state, kv_heads, accumulate, causal),
        parameters=grouped_parameters(parameters, kv_heads, accumulate), reference=_reference_key(parameters, accumulate),
        output_final_state=output_final_state, row_counts=row_counts,
        record_past=record_past, dtype=query.dtype,
    )  # fmt: skip


def _scales(spec: AttentionSpec, scale: float | None, key_width: int) -> tuple[float, float]:
    """Of the kernel's product, and of exact slots."""
    if scale is not None:
        if not 0 < scale < float("inf"):
            raise ValueError(f"scale={scale!r}; allowed is a positive number, or None for the kernel's default")
        return scale, scale
    return spec.kernel.default_scale(key_width), key_width**-0.5 if spec.local else spec.kernel.default_scale(key_width)


def _state_before(
    spec: AttentionSpec, initial: AttentionState | None, batch: int, kv_heads: int, key_width: int, value_width: int,
    scales: tuple[float, float], like: Tensor, dtype: torch.dtype, with_moments: bool,
) -> AttentionState:  # fmt: skip
    like = torch.empty(0, device=like.device, dtype=dtype)
    fresh = empty_state(spec, batch, kv_heads, key_width, value_width, *scales, like=like, with_moments=with_moments)
    if initial is None:
        return fresh
    initial.check_same_kind(fresh)
    if initial.batch_size != batch:
        raise ValueError(f"initial_state holds {initial.batch_size} sequences; this call has {batch}")
    return initial


def _ranks(key_mask: Tensor | None, num_keys: int, state: AttentionState, device: torch.device) -> Tensor:
    """Rank of each new real key among all real keys of its sequence, -1 where padded."""
    if key_mask is None:
        return state.count[:, None] + torch.arange(num_keys, device=device)
    ranks = state.count[:, None] + key_mask.to(torch.int64).cumsum(dim=1) - 1
    return torch.where(key_mask, ranks, -1)


def _input_gate(
    spec: AttentionSpec,
    gate: Tensor | None,
    rank: Tensor,
    state: AttentionState,
    causal: bool,
    parameters: dict[str, Tensor],
    dtype: torch.dtype,
) -> Tensor | None:
    """(B or 1, S, G). The count gate is indexed by the key: count_s^-sigmoid(p)."""
    if spec.input_gate != "count":
        return gate
    count = rank + 1 if causal else (rank >= 0).sum(dim=1, keepdim=True).expand_as(rank)
    # In the type that sums are kept in: bfloat16 counts no further than 256.
    exponent = torch.sigmoid(parameters["count_exponent"].to(dtype))
    return count.clamp(min=1)[..., None].to(dtype) ** -exponent


def _keys(
    key: Tensor,
    value: Tensor,
    gate: Tensor | None,
    log_decay: Tensor | None,
    running: Tensor | None,
    mask: Tensor | None,
    rank: Tensor,
    dtype: torch.dtype,
) -> Keys:
    """Padded positions are zeroed by `where` before any arithmetic: their content may be NaN."""

    def clean(t: Tensor, fill: float = 0.0) -> Tensor:
        if mask is None:
            return t
        return torch.where(mask.reshape(*mask.shape, *(1,) * (t.dim() - 2)), t, torch.full_like(t, fill))

    value = clean(value).to(dtype)
    if gate is not None:
        value = value * (clean(gate) if gate.shape[0] == key.shape[0] else gate).to(dtype)[..., None]
    return Keys(
        key=clean(key).to(dtype).transpose(1, 2),
        value=value.transpose(1, 2),
        rank=rank,
        log_decay=None if log_decay is None else clean(log_decay).double().clamp(min=FORGOTTEN).transpose(1, 2),
        running_score=None if running is None else clean(running, -torch.inf).to(dtype).transpose(1, 2),
    )


def _queries(
    query: Tensor, gate: Tensor | None, query_mask: Tensor | None, key_mask: Tensor | None, rank: Tensor, state: AttentionState, kv_heads: int,
    dtype: torch.dtype, causal: bool,
) -> Queries:  # fmt: skip
    if query_mask is not None:
        query = torch.where(query_mask[:, :, None, None], query, torch.zeros_like(query))
        gate = None if gate is None else torch.where(query_mask[:, :, None], gate, torch.zeros_like(gate))
    batch, length, heads, width = query.shape
    grouped = query.to(dtype).reshape(batch, length, kv_heads, heads // kv_heads, width).permute(0, 2, 3, 1, 4)
    if gate is not None:
        gate = gate.to(dtype).reshape(batch, length, kv_heads, heads // kv_heads).permute(0, 2, 3, 1)
    if causal and key_mask is not None:
        rank = state.count[:, None] + key_mask.to(torch.int64).cumsum(dim=1) - 1
    if not causal:
        rank = rank.new_zeros(rank.shape[0], length)  # filled in once all keys are known
    return Queries(grouped, rank, query_mask, gate, None)


def grouped_parameters(parameters: dict[str, Tensor], kv_heads: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Norm weights (H, e) -> (G, R, 1, e), so that they broadcast over the engine's outputs."""
    return {
        name: t.to(dtype).reshape(kv_heads, -1, 1, t.shape[-1]) if name in ("norm_weight", "norm_bias") else t
        for name, t in parameters.items()
    }


def _reference_key(parameters: dict[str, Tensor], dtype: torch.dtype) -> Tensor | None:
    given = parameters.get("reference_key")
    return None if given is None else given.to(dtype)[None]
