"""Exact slots that keys leave at fixed positions only: between two of them the slots are fixed and the tail stands still.

chunked    blocks from one such position to the next: slots and the block's keys explicitly, the rest from the tail's moments
recurrent  blocks of one
parallel   every key explicitly (evicting_explicit.py)

Within a block: keys leave if it starts where they do, its keys enter, its queries read
    o = (sum_slots e^(x - M) v + sum_g e^(m_g - M) U_g) / (the same with v = 1),   M = max(largest slot score, every m_g)
and what they give each slot, w / Z, is noted. No gradient flows through the choice of the keys that stay.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from termwise.attention.call import Call
from termwise.attention.evicting_state import append, evict, noting, recording, remembering, settled, tail_of
from termwise.attention.folding import Keys
from termwise.attention.normalizers import VANISHING, RowSum
from termwise.attention.reading import Queries, Weighing, finish
from termwise.attention.recomputing import Inputs, Outputs, run_recomputing
from termwise.attention.rows import RowCounts
from termwise.attention.safe import away_from_zero
from termwise.attention.spec import AttentionSpec
from termwise.attention.state import AttentionState
from termwise.attention.tail import read_tail

Bounds = Sequence[tuple[int, int]]
HIDDEN = -1e30  # a score whose exponential is 0 beside any other


def run_evicting(call: Call) -> tuple[Tensor, AttentionState | None]:
    """Outputs (B, G, R, T, e) and the final state of one call, in the form it names."""
    from termwise.attention.evicting_explicit import attend_explicit

    # Autocast would round what is promised to be summed in the accumulation type.
    with torch.autocast(call.keys.key.device.type, enabled=False):
        call = dataclasses.replace(call, state=recording(call.state, call.record_past))
        blocks = Blocks.of(call)
        has_tail = call.state.has_moments and bool((call.state.decayed_count > 0).any())
        run = attend_explicit if call.form == "parallel" and not has_tail else _run
        out, state = run(call, blocks)
        return blocks.restore(out), settled(state) if call.output_final_state else None


@dataclass(frozen=True)
class Blocks:
    """Keys and queries of one call, and where its blocks begin and end. No key leaves but at the start of a block."""

    keys: Keys
    queries: Queries
    bounds: Bounds
    places: Tensor | None  # (B, T) column of each query, -1 for padding; None: as they were given

    @classmethod
    def of(cls, call: Call) -> Blocks:
        rank, every, length = call.keys.rank, _every(call.state), call.num_keys
        if call.form == "recurrent" or length == 1:
            return cls(call.keys, call.queries, [(i, i + 1) for i in range(length)], None)
        start = int(rank[0, 0])
        if bool((rank == start + torch.arange(length, device=rank.device)).all()):
            return cls(call.keys, call.queries, _bounds(start + 1, length, every, call.chunk_size), None)
        return cls._aligned(call, every)

    @classmethod
    def _aligned(cls, call: Call, every: int) -> Blocks:
        """Columns such that the keys of all sequences leave in the same ones: rank + 1 up to a multiple of its own."""
        rank, queries = call.keys.rank, call.queries
        batch = call.keys.key.shape[0]
        first = ((call.state.count + 1) // every * every)[:, None]
        places = torch.where(rank >= 0, rank + 1 - first, -1).expand(batch, -1)
        length, outside = max(int(places.max()) + 1, 1), call.num_keys
        source = places.new_full((batch, length + 1), outside)
        columns = torch.arange(outside, device=rank.device).expand(batch, -1)
        source = source.scatter(1, places.where(places >= 0, length), columns)[:, :length]
        keys = Keys(
            key=_columns(call.keys.key, source),
            value=_columns(call.keys.value, source),
            rank=pad(rank.expand(batch, -1), (0, 1), value=-1).gather(1, source),
            log_decay=None,
            running_score=None,
        )
        gate = None if queries.gate is None else _columns(queries.gate[..., None], source)[..., 0]
        moved = Queries(_columns(queries.query, source), keys.rank, None, gate, None)
        return cls(keys, moved, _bounds(0, length, every, call.chunk_size), places)

    def restore(self, out: Tensor) -> Tensor:
        """Outputs in the order of the queries given; zeros where there was padding."""
        if self.places is None:
            return out
        source = self.places.where(self.places >= 0, out.shape[3])
        return _columns(out, source)


def _every(state: AttentionState) -> int:
    local = state.spec.local
    assert local is not None and local.evict_every is not None
    return local.evict_every


def _bounds(first: int, length: int, every: int, chunk_size: int | None) -> Bounds:
    """Blocks of columns 0..length, column 0 holding the key that makes the count `first`; at most `chunk_size` wide."""
    edges = [0, *range(every - first % every if first % every else every, length, every), length]
    size = chunk_size or every
    return [(i, min(i + size, stop)) for start, stop in itertools.pairwise(edges) for i in range(start, stop, size)]


def _columns(tensor: Tensor, source: Tensor) -> Tensor:
    """Columns `source` (B, T') of a (B, G, [R,] T, width) tensor; T stands for a column of zeros."""
    padded = pad(tensor, (0, 0, 0, 1))
    index = source.reshape(source.shape[0], *[1] * (tensor.dim() - 3), source.shape[1], 1)
    return padded.gather(-2, index.expand(*tensor.shape[:-2], source.shape[1], tensor.shape[-1]))


def _run(call: Call, blocks: Blocks) -> tuple[Tensor, AttentionState]:
    inputs = Inputs(call.state, blocks.keys, blocks.queries, call.parameters)
    needs_grad = torch.is_grad_enabled() and inputs.needs_grad
    step = partial(_block, centers_of(call), call.record_past and not needs_grad)
    if call.form == "chunked" and len(blocks.bounds) > 1 and needs_grad:
        out, state = run_recomputing(step, inputs, blocks.bounds, call.row_counts, reading_matters=True)
        assert out is not None
        return out, state
    outputs, state = Outputs(blocks.keys.length), call.state
    for start, stop in blocks.bounds:
        block = inputs.block(start, stop)
        out, state = step(state, block.keys, block.queries, call.parameters, call.row_counts)
        outputs.put(start, out)
    assert outputs.joined is not None
    return outputs.joined, state


def centers_of(call: Call) -> Tensor | None:
    """(G, m, d): the declared centers; of one center the reference key, if it is given."""
    if call.reference is not None:
        return call.reference[0][:, None, :]
    return call.parameters.get("centers")


def due(state: AttentionState, keys: Keys) -> Tensor:
    """(B or 1,): whether keys leave as the first of `keys` enters."""
    first = keys.rank[:, 0]
    return (first >= 0) & ((first + 1) % _every(state) == 0)


def _block(
    centers: Tensor | None, records: bool, state: AttentionState, keys: Keys | None, queries: Queries | None,
    parameters: dict[str, Tensor], row_counts: RowCounts | None, is_ours: bool = False,
) -> tuple[Tensor | None, AttentionState]:  # fmt: skip
    """Keys leave where they are due, new keys enter, their queries read."""
    assert keys is not None and queries is not None
    is_due = due(state, keys)
    if bool(is_due.any()):
        before, state = state, evict(state, is_due, centers)
        state = remembering(state, before) if records else dataclasses.replace(state, past=None)
    state = append(state, keys)
    sums, weights = weigh(state, queries)
    is_row = (queries.rank >= 0) if queries.is_real is None else (queries.rank >= 0) & queries.is_real
    out = finish(state.spec, sums, queries, is_row, parameters, row_counts, None)
    if state.received is not None:
        state = noting(state, keys.rank, given_by(sums, weights, is_row))
    return out, state


def weigh(state: AttentionState, queries: Queries) -> tuple[Weighing, Tensor]:
    """Sums over slots and tail, and the weights of the slots (B, G, R, T, L), all times one factor of the query."""
    query, tail, length = queries.query, tail_of(state), state.key.shape[2]
    scores = (query.flatten(2, 3) * state.slot_scale) @ state.key.transpose(2, 3)
    scores = _hidden(scores.unflatten(2, query.shape[2:4]), state, queries)
    if tail is None:
        weights = _relative(scores, state.spec)
        mass = weights.sum(dim=-1, keepdim=True)
        return Weighing(_apply(weights, state.value), mass, None, None), weights
    reading = read_tail(tail, query, state.spec)
    joined = _relative(torch.cat([scores, reading.shift], dim=-1), state.spec)
    weights, gain = joined.tensor_split([length], dim=-1)
    near = weights.sum(dim=-1, keepdim=True)
    sums = Weighing(
        weighted=_apply(weights, state.value) + reading.weighted(gain),
        mass=near + (gain * reading.mass).sum(dim=-1, keepdim=True),
        decayed_count=near + (gain * tail.count[:, :, None, None, :]).sum(dim=-1, keepdim=True),
        log_scale=None,
    )
    return sums, weights


def _relative(scores: Tensor, spec: AttentionSpec) -> Tensor:
    """exp(scores) times one factor of the query: softmax's sum, whose gradient cancels unless the row sum is detached."""
    if isinstance(spec.normalizer, RowSum) and spec.normalizer.detach:
        return (scores - scores.detach().amax(dim=-1, keepdim=True)).exp()
    return scores.softmax(dim=-1)


def _hidden(scores: Tensor, state: AttentionState, queries: Queries) -> Tensor:
    """Scores with those of empty slots and later keys so low that their weight is 0, but finite: no row is without any."""
    length, block = scores.shape[-1], queries.query.shape[3]
    # Without padding only the keys of the block itself can be hidden.
    start = 0 if bool((state.rank < 0).any()) else length - block
    rank = state.rank[:, :, None, start:]
    is_hidden = (rank < 0) | (rank > queries.rank[:, None, :, None])
    scores[..., start:].masked_fill_(is_hidden[:, :, None], HIDDEN)
    return scores


def _apply(weights: Tensor, value: Tensor) -> Tensor:
    return (weights.flatten(2, 3) @ value).unflatten(2, weights.shape[2:4])


def given_by(sums: Weighing, weights: Tensor, is_row: Tensor) -> Tensor:
    """What each query gives each slot, summed over the group: (B, G, T, L)."""
    weights, mass = weights.detach(), sums.mass.detach()
    if sums.decayed_count is not None:
        mass = away_from_zero(mass, VANISHING * sums.decayed_count.detach())
    given = (weights / mass).sum(dim=2)
    return given.masked_fill(~is_row[:, None, :, None], 0)
