"""Blocks of queries read from a state, one after another: what the parallel, chunked and recurrent form share.

parallel   one block of all queries, every score explicit: quadratic
chunked    blocks of 64; far keys come from the moments: linear time, memory of the state plus one block
recurrent  blocks of one
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from termwise.attention.call import Call
from termwise.attention.folding import Keys, as_read, extend, fold, fold_target, keys_at_a_time
from termwise.attention.reading import Queries, read
from termwise.attention.rows import RowCounts
from termwise.attention.state import AttentionState


def run_blocks(call: Call) -> tuple[Tensor, AttentionState | None]:
    """Outputs (B, G, R, T, e) and the final state of one call, in the form it names."""
    if not call.causal:
        return _bidirectional(call, None if call.form == "parallel" else _block_size(call))
    if call.form == "parallel":
        extended = extend(call.state, call.keys, call.reference)
        return _read(call, call.state, call.keys, extended, call.queries), _final(call, extended)
    return _blocks(call, _block_size(call))


def _read(call: Call, before: AttentionState, keys: Keys, extended: AttentionState, queries: Queries) -> Tensor:
    """What the queries of the new keys read, under the causal mask."""
    state, age = as_read(before, keys, extended)
    return read(state, dataclasses.replace(queries, age=age), call.parameters, call.row_counts)


def _block_size(call: Call) -> int:
    return 1 if call.form == "recurrent" else call.chunk_size or keys_at_a_time(call.state)


def _final(call: Call, extended: AttentionState) -> AttentionState | None:
    """Folded up to the fixed positions."""
    return fold(extended, fold_target(extended)) if call.output_final_state else None


def _blocks(call: Call, size: int) -> tuple[Tensor, AttentionState | None]:
    """Chunks of queries in order; keys that have left the window are folded before the next chunk reads."""
    state, outputs = call.state, []
    count_end = call.state.count + (call.keys.rank >= 0).sum(dim=1)
    last_target = fold_target(dataclasses.replace(call.state, count=count_end))
    saves_memory = torch.is_grad_enabled() and size > 1 and call.needs_grad
    for start in range(0, call.num_keys, size):
        stop = min(start + size, call.num_keys)
        block = call.keys.slice(start, stop), call.queries.slice(start, stop)
        if saves_memory:
            # Only the states between chunks are kept for the backward pass, never T x features. It computes the block anew,
            # so bad rows are counted aside and added once.
            counts = None if call.row_counts is None else RowCounts()
            aside = dataclasses.replace(call, row_counts=counts)
            out, state = checkpoint(_block, aside, state, *block, last_target, use_reentrant=False)
            if call.row_counts is not None and counts is not None:
                call.row_counts.include(counts)
        else:
            out, state = _block(call, state, *block, last_target)
        outputs.append(out)
    return torch.cat(outputs, dim=3), (state if call.output_final_state else None)


def _block(
    call: Call, state: AttentionState, keys: Keys, queries: Queries, last_target: Tensor
) -> tuple[Tensor, AttentionState]:
    extended = extend(state, keys, call.reference)
    out = _read(call, state, keys, extended, queries)
    window = call.spec.local.window if call.spec.local else 1
    # Within a call everything outside the window may go; the state that is handed back ends at the fixed positions.
    target = torch.minimum((extended.count - window + 1).clamp(min=0), last_target)
    return out, fold(extended, torch.maximum(extended.boundary, target))


def _bidirectional(call: Call, size: int | None) -> tuple[Tensor, AttentionState | None]:
    """No causal mask: every query sees every real key, so keys are folded first, then read."""
    if size is None or not call.spec.is_constant_size:
        state = extend(call.state, call.keys, call.reference)
    else:
        state = call.state
        for start in range(0, call.num_keys, size):
            state = extend(state, call.keys.slice(start, min(start + size, call.num_keys)), call.reference)
            state = fold(state, state.count)
    step = size or max(call.num_queries, 1)
    blocks = [
        read(
            state,
            _seeing_all(call, state, start, min(start + step, call.num_queries)),
            call.parameters,
            call.row_counts,
        )
        for start in range(0, call.num_queries, step)
    ]
    final = None
    if call.output_final_state:
        final = fold(state, state.count) if call.spec.is_constant_size else state
    return torch.cat(blocks, dim=3), final


def _seeing_all(call: Call, state: AttentionState, start: int, stop: int) -> Queries:
    rank = (state.count - 1)[:, None].expand(-1, stop - start)
    return dataclasses.replace(call.queries.slice(start, stop), rank=rank)
