"""attend(): one attention, in the form asked for. All forms are one engine reading blocks of queries from a state:

parallel   one block of all queries, every score explicit: quadratic
chunked    blocks of 256 (64 without compiled loops); far keys come from the moments: linear time, memory of the state plus one block
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

from termwise.attention import packing
from termwise.attention.blocks import run_blocks
from termwise.attention.call import prepare
from termwise.attention.checks import check
from termwise.attention.choice import choose_form
from termwise.attention.evicting import run_evicting
from termwise.attention.fused import attend_fused
from termwise.attention.rows import RowCounts
from termwise.attention.spec import AttentionSpec
from termwise.attention.state import AttentionState
from termwise.attention.step import attend_step, repeat_step

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
    record_past: bool = False,
) -> tuple[Float[Tensor, "B T H e"], AttentionState | None]:
    """Attention of `spec`: (output, final state or None).

        U_t = sum_s w_ts i_s v_s,   Z_t = sum_s w_ts,   o_t = g'_t normalize(g_t U_t, Z_t, c_t)

    Query heads 0..H/G-1 share kv head 0. `scale` defaults to 1/sqrt(d) for exp and polynomials, 1 for feature maps and
    powers (whose exact slots keep 1/sqrt(d)). `key_mask`: True = real; with a state it covers the new keys only; outputs of
    padded rows are exactly 0. `query_mask` is `key_mask` unless given, wherever there are as many queries as keys.
    `cu_seqlens` (0, ..., T) packs documents along the one row of the batch: they share nothing, and a state then has one
    sequence a document. A gate or decay tensor that the spec does not declare is used all the same. `parameters`: learned
    tensors the spec declares, `running_gate_score` (B, S, G), and optionally `reference_key` (G, d).
    `record_past`: where keys leave the exact slots at fixed positions only (`evict_every`), the final state keeps what
    `rollback` of 64 tokens needs; all other states can do it anyway.
    `form`: auto, parallel, chunked, recurrent, fused or reference; `chunk_size` (default 256; without compiled loops 64, less where
    features are many) is for chunked alone.
    Sums are fp32 or wider whatever the inputs are; the output has the query's type. Source: math sections 1-6, 9-11.

    >>> q = k = v = torch.ones(1, 3, 1, 2)
    >>> out, state = attend(q, k, v, AttentionSpec(), output_final_state=True)
    >>> out.shape, state.count.tolist()
    (torch.Size([1, 3, 1, 2]), [3])
    """
    given = dict(locals())
    if initial_state is not None and (done := repeat_step(given)) is not None:
        return done
    check(given)
    if cu_seqlens is not None:
        return packing.attend_packed(given, attend)
    if initial_state is not None and query.shape[1] == 1 and (done := attend_step(given)) is not None:
        return done
    call = prepare(**given)
    if form == "reference":
        from termwise.attention.reference import attend_reference

        return attend_reference(call)
    run = run_evicting if spec.evicts else attend_fused if call.form == "fused" else run_blocks
    out, state = run(call)
    return call.restore(out), None if state is None else _owned(state, key, value)


def _owned(state: AttentionState, key: Tensor, value: Tensor) -> AttentionState:
    """The state with tensors of its own: the caller may write into what it gave, and no view keeps a longer tensor alive."""
    given = {t.untyped_storage().data_ptr() for t in (key, value)}

    def own(tensor: Tensor) -> Tensor:
        if state.room is not None and state.room.owns(tensor):
            return tensor
        storage = tensor.untyped_storage()
        is_shared = storage.data_ptr() in given or storage.nbytes() > tensor.numel() * tensor.element_size()
        return tensor.clone(memory_format=torch.contiguous_format) if is_shared else tensor

    owned: dict[str, Any] = {name: own(tensor) for name, tensor in state.tensors.items()}
    return dataclasses.replace(state, **owned)
