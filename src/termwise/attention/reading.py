"""What a block of queries reads from a state: explicit scores with the buffer, one product with the moments.

Axes: B batch, G kv heads, R query heads per kv head, T queries, L buffered keys, F features.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from termwise.attention.folded import Folded
from termwise.attention.kernels import Exp
from termwise.attention.normalizers import VANISHING, RowSum, Sums
from termwise.attention.rows import RowCounts
from termwise.attention.safe import away_from_zero, is_faded
from termwise.attention.spec import AttentionSpec
from termwise.attention.state import AttentionState


@dataclass(frozen=True)
class Queries:
    """A block of queries, the last of which may see the last key of the state."""

    query: Tensor  # (B, G, R, T, d)
    rank: Tensor  # (B or 1, T) of the last real key each query sees; -1: none
    is_real: Tensor | None  # (B, T); None: all
    gate: Tensor | None  # (B, G, R, T) output gate
    age: Tensor | None  # (B, G, T) float64 log decay from the query to where the state's ages end; None: no decay

    def slice(self, start: int, stop: int) -> Queries:
        rank = self.rank[:, start:stop]
        is_real = None if self.is_real is None else self.is_real[:, start:stop]
        gate = None if self.gate is None else self.gate[..., start:stop]
        return dataclasses.replace(self, query=self.query[..., start:stop, :], rank=rank, is_real=is_real, gate=gate)


@dataclass(frozen=True)
class Weighing:
    """Sums over all visible keys, last axis kept: true sums are these times exp(log_scale)."""

    weighted: Tensor  # U
    mass: Tensor  # Z
    decayed_count: Tensor | None  # n, what Z is held against; None: Z is a sum of exponentials and cannot vanish
    log_scale: Tensor | None


def read(
    state: AttentionState, queries: Queries, parameters: dict[str, Tensor], row_counts: RowCounts | None
) -> Tensor:
    """Outputs (B, G, R, T, e)."""
    is_visible = _visible(state, queries)
    log_decay = _pair_decay(state, queries)
    weigh = _weigh_tail if state.spec.has_tail else _weigh_exponential if _is_exponential(state) else _weigh_elementwise
    sums = weigh(state, queries, is_visible, log_decay)
    is_row = (queries.rank >= 0) if queries.is_real is None else (queries.rank >= 0) & queries.is_real
    return finish(state.spec, sums, queries, is_row, parameters, row_counts, running_gate_at(state, queries))


def finish(
    spec: AttentionSpec,
    sums: Weighing,
    queries: Queries,
    is_row: Tensor,
    parameters: dict[str, Tensor],
    row_counts: RowCounts | None,
    running: Tensor | None,
) -> Tensor:
    """From sums to outputs: vanishing rule, gates, normalizer, zero rows."""
    mass = sums.mass
    if row_counts is not None or (isinstance(spec.normalizer, RowSum) and sums.decayed_count is not None):
        mass = _away_from_zero(mass, sums.decayed_count, is_row, row_counts)
    gate = None if queries.gate is None else queries.gate[..., None]
    weighted = sums.weighted
    if gate is not None and spec.output_gate == "before":
        weighted, gate = weighted * gate, None
    count = (queries.rank + 1).clamp(min=1)[:, None, None, :, None].to(sums.weighted.dtype)
    ready = Sums(
        weighted=weighted,
        mass=torch.where(is_row[:, None, None, :, None], mass, torch.ones_like(mass)),
        count=count,
        log_scale=sums.log_scale,
        is_mass_positive=sums.decayed_count is None,
        running_gate=running,
    )
    out = spec.normalizer(ready, parameters)
    out = out if gate is None else out * gate
    # After the normalizer: a LayerNorm bias would leak into rows that see nothing.
    return out.masked_fill(~is_row[:, None, None, :, None], 0)


def _away_from_zero(mass: Tensor, decayed_count: Tensor | None, is_row: Tensor, row_counts: RowCounts | None) -> Tensor:
    floor = torch.zeros_like(mass) if decayed_count is None else VANISHING * decayed_count.detach()
    if row_counts is not None:
        flat = [x.detach().expand_as(mass).squeeze(-1).flatten(1, 2) for x in (mass, floor)]
        rows = is_row[:, None, :].expand(flat[0].shape)
        row_counts.add(rows, flat[0].abs() < flat[1], flat[0] < 0)
    return away_from_zero(mass, floor)


def _is_exponential(state: AttentionState) -> bool:
    return isinstance(state.spec.kernel, Exp) or state.spec.kernel.dense == ()


def _visible(state: AttentionState, queries: Queries) -> Tensor:
    """(B or 1, 1, 1, T, L)."""
    key_rank, query_rank = state.rank[:, None, :], queries.rank[:, :, None]
    return ((key_rank >= 0) & (key_rank <= query_rank))[:, None, None]


def _slots(state: AttentionState, queries: Queries) -> Tensor:
    """Visible keys that are exact slots."""
    local = state.spec.local
    assert local is not None
    key_rank, query_rank = state.rank[:, None, :], queries.rank[:, :, None]
    return ((query_rank - key_rank < local.window) | (key_rank < local.sinks))[:, None, None]


def _pair_decay(state: AttentionState, queries: Queries) -> Tensor | None:
    """Log decay from key to query (B, G, 1, T, L); subtracted in float64."""
    if state.age is None or queries.age is None:
        return None
    return (state.age[:, :, None, :] - queries.age[..., None]).to(state.key.dtype)[:, :, None]


def running_gate_at(state: AttentionState, queries: Queries) -> Tensor | None:
    """Log of the running gate sum at each query, (B, G, 1, T, 1): that of the last key it sees."""
    if state.running_gate is None:
        return None
    assert state.running_total is not None
    # A query that sees every key reads the total; the key itself may be folded (no causal mask).
    running = state.running_total[..., None].expand(-1, -1, queries.rank.shape[1])
    sees_all = (queries.rank == state.count[:, None] - 1) & (queries.rank >= 0)
    if state.running_gate.shape[2]:
        seen = (state.rank[:, None, :] <= queries.rank[:, :, None]) & (state.rank >= 0)[:, None, :]
        last = seen.to(torch.int64).cumsum(dim=2).argmax(dim=2)[:, None, :]
        at_last = state.running_gate.gather(2, last.expand(*state.running_gate.shape[:2], -1))
        at_last = torch.where(seen.any(dim=2)[:, None, :], at_last, torch.zeros_like(at_last))
        running = torch.where(sees_all[:, None, :], running, at_last)
    return torch.where((queries.rank >= 0)[:, None, :], running, torch.zeros_like(running))[:, :, None, :, None]


def scores(state: AttentionState, queries: Queries, scale: float) -> Tensor:
    """scale q.k with every buffered key, (B, G, R, T, L)."""
    return torch.einsum("bgrtd,bgld->bgrtl", queries.query * scale, state.key)


def products(state: AttentionState, queries: Queries) -> Tensor:
    """What the kernel's polynomial takes: scale <map(q), map(k)>, (B, G, R, T, L)."""
    kernel = state.spec.kernel
    return torch.einsum("bgrtd,bgld->bgrtl", kernel.map(queries.query) * state.scale, kernel.map(state.key))


def _apply(weights: Tensor, value: Tensor) -> Tensor:
    return torch.einsum("bgrtl,bgle->bgrte", weights, value)


def _weigh_exponential(
    state: AttentionState, queries: Queries, is_visible: Tensor, log_decay: Tensor | None
) -> Weighing:
    if state.spec.local is not None:
        is_visible = is_visible & _slots(state, queries)
    log_weights = scores(state, queries, state.slot_scale)
    if isinstance(state.spec.kernel, Exp):
        log_weights = state.spec.kernel.log_weights(log_weights)
    if log_decay is not None:
        log_weights = log_weights + log_decay
    log_weights = log_weights.masked_fill(~is_visible, -torch.inf)
    peak = (
        log_weights.detach().amax(dim=-1, keepdim=True)
        if log_weights.shape[-1]
        else log_weights.new_zeros(*log_weights.shape[:-1], 1)
    )
    peak = peak.masked_fill(peak == -torch.inf, 0)
    weights = (log_weights - peak).exp()
    return Weighing(_apply(weights, state.value), weights.sum(dim=-1, keepdim=True), None, peak)


def _decays(is_visible: Tensor, log_decay: Tensor | None, like: Tensor) -> Tensor:
    """exp(A_t - A_s) where visible, else 0; masked before exp, since later keys have positive logs."""
    if log_decay is None:
        return is_visible.to(like.dtype)
    return log_decay.masked_fill(~is_visible, -torch.inf).exp()


def _weigh_elementwise(
    state: AttentionState, queries: Queries, is_visible: Tensor, log_decay: Tensor | None
) -> Weighing:
    y = products(state, queries)
    decays = _decays(is_visible, log_decay, y)
    weights = state.spec.kernel.weights(y) * decays
    return Weighing(
        _apply(weights, state.value), weights.sum(dim=-1, keepdim=True), decays.sum(dim=-1, keepdim=True), None
    )


def _weigh_tail(state: AttentionState, queries: Queries, is_visible: Tensor, log_decay: Tensor | None) -> Weighing:
    """A polynomial tail, with or without exact slots (math: section 6)."""
    spec = state.spec
    y = products(state, queries)
    is_slot = None if spec.local is None else is_visible & _slots(state, queries)
    decays = _decays(is_visible if is_slot is None else is_visible & ~is_slot, log_decay, y)
    folded = Folded.of(state, queries)
    count = decays.sum(dim=-1, keepdim=True)
    if folded is not None:
        count = count + folded.count
    center = _mean(y, decays, folded, count) if spec.kernel.is_centered else None
    weights = spec.kernel.weights(y if center is None else y - center) * decays
    weighted, mass = _apply(weights, state.value), weights.sum(dim=-1, keepdim=True)
    if folded is not None:
        far_weighted, far_mass = folded.read(center)
        weighted, mass = weighted + far_weighted, mass + far_mass
    tail = Weighing(weighted, mass, count, None)
    return tail if is_slot is None else _join(state, queries, tail, is_slot, log_decay, center)


def _mean(y: Tensor, decays: Tensor, folded: Folded | None, count: Tensor) -> Tensor:
    """The query's mean score over the keys in the state, weighted by decay; 0 where there are none. Not detached."""
    total = (y * decays).sum(dim=-1, keepdim=True)
    if folded is not None:
        total = total + folded.total_score
    is_empty = is_faded(count)
    return torch.where(is_empty, torch.zeros_like(total), total / torch.where(is_empty, torch.ones_like(count), count))


def _join(
    state: AttentionState,
    queries: Queries,
    tail: Weighing,
    is_slot: Tensor,
    log_decay: Tensor | None,
    center: Tensor | None,
) -> Weighing:
    """Slots exp(x - M) and tail exp(m - M) p under one row sum, M = max(largest slot score, m)."""
    log_weights = scores(state, queries, state.slot_scale)
    if log_decay is not None:
        log_weights = log_weights + log_decay
    log_weights = log_weights.masked_fill(~is_slot, -torch.inf)
    top = log_weights.detach().amax(dim=-1, keepdim=True)
    assert tail.decayed_count is not None
    has_tail = ~is_faded(tail.decayed_count)
    middle = torch.zeros_like(top) if center is None else center
    peak = torch.where(has_tail, torch.maximum(top, middle.detach()), top)
    peak = peak.masked_fill(peak == -torch.inf, 0)
    weights = (log_weights - peak).exp()
    near_mass = weights.sum(dim=-1, keepdim=True)
    gain = torch.where(has_tail, (middle - peak).clamp(max=0), torch.full_like(middle, -torch.inf)).exp()
    return Weighing(
        _apply(weights, state.value) + gain * tail.weighted,
        near_mass + gain * tail.mass,
        near_mass + gain * tail.decayed_count,
        peak,
    )
