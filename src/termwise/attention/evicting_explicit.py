"""The parallel form of slots that keys leave at fixed positions: every key explicitly, no moments.

One mask of exact slots for each block; all other keys before the query are tail, with the kernel's polynomial of their score
about the mean of their group:
    w_ts = e^(x - M) for slots,   e^(m_g - M) p(x - m_g) for the tail
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from termwise.attention.call import Call
from termwise.attention.evicting import Blocks, centers_of, due, given_by
from termwise.attention.evicting_state import append, compact, counted, into_tail, noting, remembering, staying
from termwise.attention.reading import Queries, Weighing, finish
from termwise.attention.state import AttentionState
from termwise.attention.tail import nearest_center


def attend_explicit(call: Call, blocks: Blocks) -> tuple[Tensor, AttentionState]:
    """Outputs and the final state of a call before which no key has left.

    The state keeps every key to the end; `held` says which are slots. Moments are made only to be handed back.
    """
    state, outputs = call.state, []
    held = state.rank >= 0
    for start, stop in blocks.bounds:
        keys, queries = blocks.keys.slice(start, stop), blocks.queries.slice(start, stop)
        is_due = due(state, keys)
        if bool(is_due.any()):
            past = compact(state, held) if call.record_past else None
            stays = staying(dataclasses.replace(state, rank=torch.where(held, state.rank, -1)), is_due)
            if call.output_final_state:
                state = into_tail(state, held & ~stays, centers_of(call))
            state, held = counted(dataclasses.replace(state, past=None), is_due), stays
            state = state if past is None else remembering(state, past)
        state = append(state, keys)
        held = torch.cat([held, (keys.rank >= 0)[:, None, :].expand(*held.shape[:2], -1)], dim=2)
        sums, weights = _weigh(call, state, queries, held)
        is_row = (queries.rank >= 0) if queries.is_real is None else (queries.rank >= 0) & queries.is_real
        outputs.append(finish(call.spec, sums, queries, is_row, call.parameters, call.row_counts, None))
        if state.received is not None:
            state = noting(state, keys.rank, given_by(sums, weights, is_row))
    out = torch.cat(outputs, dim=3)
    return out, compact(state, held)


def _weigh(call: Call, state: AttentionState, queries: Queries, held: Tensor) -> tuple[Weighing, Tensor]:
    """Sums over all keys, and the weights of those in slots (B, G, R, T, N), both times exp(-M)."""
    kernel, rank = call.spec.kernel, state.rank[:, :, None, :]
    is_visible = ((rank >= 0) & (rank <= queries.rank[:, None, :, None]))[:, :, None]
    is_slot = is_visible & held[:, :, None, None, :]
    scores = torch.einsum("bgrtd,bgld->bgrtl", queries.query * state.slot_scale, state.key)
    log_weights = scores.masked_fill(~is_slot, -torch.inf)
    peak = log_weights.detach().amax(dim=-1, keepdim=True)
    if not call.spec.has_tail:
        weights = (log_weights - peak.masked_fill(peak == -torch.inf, 0)).exp()
        mass = weights.sum(dim=-1, keepdim=True)
        return Weighing(_apply(weights, state), mass, None, peak), weights
    is_far = is_visible & ~is_slot
    middle = _means(call, state, scores, is_far) if kernel.is_centered else torch.zeros_like(scores)
    far_peak = middle.detach().masked_fill(~is_far, -torch.inf).amax(dim=-1, keepdim=True)
    peak = torch.maximum(peak, far_peak)
    peak = peak.masked_fill(peak == -torch.inf, 0)
    near = (log_weights - peak).exp()
    gain = (middle - peak).masked_fill(~is_far, -torch.inf).exp()
    weights = near + gain * kernel.weights(scores - middle)
    sums = Weighing(
        weighted=_apply(weights, state),
        mass=weights.sum(dim=-1, keepdim=True),
        decayed_count=(near + gain).sum(dim=-1, keepdim=True),
        log_scale=peak,
    )
    return sums, near


def _apply(weights: Tensor, state: AttentionState) -> Tensor:
    return torch.einsum("bgrtl,bgle->bgrte", weights, state.value)


def _means(call: Call, state: AttentionState, scores: Tensor, is_far: Tensor) -> Tensor:
    """Mean score of each key's group over its keys in the tail, (B, G, R, T, N)."""
    centers = centers_of(call)
    num_groups = call.spec.kernel.centers
    if num_groups == 1 or centers is None:
        group = torch.zeros_like(state.rank)
    else:
        group = nearest_center(state.key, centers)
    member = torch.nn.functional.one_hot(group, num_groups).to(scores.dtype)
    far = is_far.to(scores.dtype)
    count = torch.einsum("bgrtl,bglm->bgrtm", far, member)
    total = torch.einsum("bgrtl,bglm->bgrtm", scores * far, member)
    mean = total / count.clamp(min=1)
    return mean.gather(-1, group[:, :, None, None, :].expand(scores.shape))
