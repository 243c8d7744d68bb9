"""Blocks of queries read from a state, one after another: what the parallel, chunked and recurrent form share.

parallel   one block of all queries, every score explicit: quadratic
chunked    blocks of 256 (64 without compiled loops); far keys come from the moments: linear time, memory of the state plus one block
recurrent  blocks of one
"""

from __future__ import annotations

import dataclasses
from functools import partial

import torch
from torch import Tensor

from termwise.attention.backends import loops_for
from termwise.attention.call import Call
from termwise.attention.cost import BLOCK
from termwise.attention.folding import Keys, as_read, extend, fold, fold_target, keys_at_a_time
from termwise.attention.reading import Queries, read
from termwise.attention.recomputing import Inputs, Outputs, Step, run_recomputing
from termwise.attention.rows import RowCounts
from termwise.attention.state import AttentionState


def run_blocks(call: Call) -> tuple[Tensor, AttentionState | None]:
    """Outputs (B, G, R, T, e) and the final state of one call, in the form it names."""
    # Autocast would round what is promised to be summed in the accumulation type.
    with torch.autocast(call.keys.key.device.type, enabled=False):
        if not call.causal:
            return _bidirectional(call, None if call.form == "parallel" else _block_size(call))
        if call.form == "parallel":
            extended = extend(call.state, call.keys, call.reference)
            out = _read(call.state, call.keys, extended, call.queries, call.parameters, call.row_counts)
            return out, _final(call, extended)
        return _blocks(call, _block_size(call))


def _read(
    before: AttentionState, keys: Keys, extended: AttentionState, queries: Queries,
    parameters: dict[str, Tensor], row_counts: RowCounts | None,
) -> Tensor:  # fmt: skip
    """What the queries of the new keys read, under the causal mask."""
    state, age = as_read(before, keys, extended)
    return read(state, dataclasses.replace(queries, age=age), parameters, row_counts)


def _block_size(call: Call) -> int:
    if call.form == "recurrent":
        return 1
    # The compiled loops make features head by head, in parts; the torch forms those of all heads at once, so fewer.
    is_compiled = loops_for(call.keys.key, call.keys.value, call.queries.query, call.state.moments) is not None
    return call.chunk_size or (BLOCK if is_compiled else keys_at_a_time(call.state))


def _final(call: Call, extended: AttentionState) -> AttentionState | None:
    """Folded up to the fixed positions."""
    return fold(extended, fold_target(extended)) if call.output_final_state else None


def _blocks(call: Call, size: int) -> tuple[Tensor, AttentionState | None]:
    """Chunks of queries in order; keys that have left the window are folded before the next chunk reads."""
    count_end = call.state.count + (call.keys.rank >= 0).sum(dim=1)
    last_target = fold_target(dataclasses.replace(call.state, count=count_end))
    out, state = _loop(partial(_block, call.reference, last_target), call, call.state, call.keys, call.queries, size)
    assert out is not None
    return out, (state if call.output_final_state else None)


def _loop(
    step: Step, call: Call, state: AttentionState, keys: Keys | None, queries: Queries | None, size: int
) -> tuple[Tensor | None, AttentionState]:
    """One step after another over blocks of keys, queries or both; for gradients of the chunked form each is computed anew."""
    inputs = Inputs(state, keys, queries, call.parameters)
    length = keys.length if keys is not None else call.num_queries
    if call.form == "chunked" and size < length and torch.is_grad_enabled() and inputs.needs_grad:
        bounds = [(i, min(i + size, length)) for i in range(0, length, size)]
        return run_recomputing(step, inputs, bounds, call.row_counts)
    outputs = Outputs(length)
    for start in range(0, length, size):
        block = inputs.block(start, min(start + size, length))
        # A graph of the queries alone has saved the moments it read.
        is_ours = state.moments is not inputs.state.moments and not (torch.is_grad_enabled() and inputs.needs_grad)
        out, state = step(state, block.keys, block.queries, call.parameters, call.row_counts, is_ours)
        outputs.put(start, out)
    return outputs.joined, state


def _block(
    reference: Tensor | None, last_target: Tensor, state: AttentionState, keys: Keys | None, queries: Queries | None,
    parameters: dict[str, Tensor], row_counts: RowCounts | None, is_ours: bool = False,
) -> tuple[Tensor | None, AttentionState]:  # fmt: skip
    """New keys enter, their queries read, then far keys are folded (in place, if the moments are ours alone)."""
    assert keys is not None
    extended, out = extend(state, keys, reference), None
    if queries is not None:
        out = _read(state, keys, extended, queries, parameters, row_counts)
    window = state.spec.local.window if state.spec.local else 1
    # Within a call everything outside the window may go; the state that is handed back ends at the fixed positions.
    target = torch.minimum((extended.count - window + 1).clamp(min=0), last_target)
    return out, fold(extended, torch.maximum(extended.boundary, target), is_ours)


def _bidirectional(call: Call, size: int | None) -> tuple[Tensor, AttentionState | None]:
    """No causal mask: every query sees every real key, so keys are folded first, then read."""
    if size is None or not call.spec.is_constant_size:
        state = extend(call.state, call.keys, call.reference)
    else:
        _, state = _loop(partial(_take_in, call.reference), call, call.state, call.keys, None, size)
    rank = (state.count - 1)[:, None].expand(-1, call.num_queries)
    queries = dataclasses.replace(call.queries, rank=rank)
    out, _ = _loop(_read_all, call, state, None, queries, size or max(call.num_queries, 1))
    assert out is not None
    final = None
    if call.output_final_state:
        final = fold(state, state.count) if call.spec.is_constant_size else state
    return out, final


def _take_in(
    reference: Tensor | None, state: AttentionState, keys: Keys | None, queries: Queries | None,
    parameters: dict[str, Tensor], row_counts: RowCounts | None, is_ours: bool = False,
) -> tuple[None, AttentionState]:  # fmt: skip
    """New keys, folded at once."""
    assert keys is not None
    state = extend(state, keys, reference)
    return None, fold(state, state.count, is_ours)


def _read_all(
    state: AttentionState, keys: Keys | None, queries: Queries | None,
    parameters: dict[str, Tensor], row_counts: RowCounts | None, is_ours: bool = False,
) -> tuple[Tensor | None, AttentionState]:  # fmt: skip
    """Queries that see every key of the state, which stays as it is."""
    return None if queries is None else read(state, queries, parameters, row_counts), state
