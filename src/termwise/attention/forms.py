"""attend(): one attention, in the form asked for. All forms are one engine reading blocks of queries from a state:

parallel   one block of all queries, every score explicit: quadratic
chunked    blocks of 64; far keys come from the moments: linear time, memory of the state plus one block
recurrent  blocks of one
fused      torch's scaled_dot_product_attention, where every weight is an exponential
reference  the definition in float64, a loop over t (reference.py)
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from termwise.attention import packing
from termwise.attention.call import Call, check, prepare
from termwise.attention.choice import choose_form
from termwise.attention.folding import Keys, as_read, extend, fold, fold_target, keys_at_a_time
from termwise.attention.fused import attend_fused
from termwise.attention.reading import Queries, read
from termwise.attention.rows import RowCounts
from termwise.attention.spec import AttentionSpec
from termwise.attention.state import AttentionState

__all__ = ["attend", "choose_form"]


def attend(
    query: Float[Tensor, "B T H d"],
    key: Float[Tensor, "B S G d"],
    value: Float[Tensor, "B S G e"],
    spec: AttentionSpec,
    scale: float | None = None,
    causal: bool = True,
    key_mask: Bool[Tensor, "B S"] | None = None,
    cu_seqlens: Int[Tensor, " N"] | None = None,
    input_gate: Float[Tensor, "B S G"] | None = None,
    output_gate: Float[Tensor, "B T H"] | None = None,
    log_decay: Float[Tensor, "B S G"] | None = None,
    parameters: dict[str, Tensor] | None = None,
    initial_state: AttentionState | None = None,
    output_final_state: bool = False,
    form: str = "auto",
    chunk_size: int | None = None,
    row_counts: RowCounts | None = None,
    query_mask: Bool[Tensor, "B T"] | None = None,
) -> tuple[Float[Tensor, "B T H e"], AttentionState | None]:
    """Attention of `spec`: (output, final state or None).

        U_t = sum_s w_ts i_s v_s,   Z_t = sum_s w_ts,   o_t = g'_t normalize(g_t U_t, Z_t, c_t)

    Query heads 0..H/G-1 share kv head 0. `scale` defaults to 1/sqrt(d) for exp and polynomials, 1 for feature maps and
    powers (whose exact slots keep 1/sqrt(d)). `key_mask`: True = real; with a state it covers the new keys only; outputs of
    padded rows are exactly 0. `query_mask` is `key_mask` unless given, wherever there are as many queries as keys.
    `cu_seqlens` (0, ..., T) packs documents along the one row of the batch: they share nothing, and a state then has one
    sequence a document. A gate or decay tensor that the spec does not declare is used all the same. `parameters`: learned
    tensors the spec declares, `running_gate_score` (B, S, G), and optionally `reference_key` (G, d).
    `form`: auto, parallel, chunked, recurrent, fused or reference; `chunk_size` (default 64, less where features are many) is for chunked alone.
    Sums are fp32 or wider whatever the inputs are; the output has the query's type. Source: math sections 1-6, 9-11.

    >>> q = k = v = torch.ones(1, 3, 1, 2)
    >>> out, state = attend(q, k, v, AttentionSpec(), output_final_state=True)
    >>> out.shape, state.count.tolist()
    (torch.Size([1, 3, 1, 2]), [3])
    """
    given = dict(locals())
    check(given)
    if cu_seqlens is not None:
        return packing.attend_packed(given, attend)
    call = prepare(**given)
    if form == "reference":
        from termwise.attention.reference import attend_reference

        return attend_reference(call)
    out, state = _run(call)
    return call.restore(out), None if state is None else _owned(state, key, value)


def _owned(state: AttentionState, key: Tensor, value: Tensor) -> AttentionState:
    """The state with tensors of its own: the caller may write into what it gave, and no view keeps a longer tensor alive."""
    given = {t.untyped_storage().data_ptr() for t in (key, value)}

    def own(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        is_shared = storage.data_ptr() in given or storage.nbytes() > tensor.numel() * tensor.element_size()
        return tensor.clone(memory_format=torch.contiguous_format) if is_shared else tensor

    owned: dict[str, Any] = {name: own(tensor) for name, tensor in state.tensors.items()}
    return dataclasses.replace(state, **owned)


def _run(call: Call) -> tuple[Tensor, AttentionState | None]:
    name = call.form
    if name == "fused":
        return attend_fused(call)
    if not call.causal:
        return _bidirectional(call, None if name == "parallel" else _block_size(call))
    if name == "parallel":
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
