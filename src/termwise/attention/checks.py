"""Whatever the arguments of `attend` cannot be: one message each, before any arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from termwise.attention.choice import check_form
from termwise.attention.refusals import check_causality
from termwise.attention.spec import AttentionSpec
from termwise.attention.state import AttentionState


def check(given: dict[str, Any]) -> None:
    """ValueError for arguments that are wrong or do not go together."""
    query, key, value, spec, causal = (given[name] for name in ("query", "key", "value", "spec", "causal"))
    initial_state, log_decay = given["initial_state"], given["log_decay"]
    _check_kinds(given)
    _check_shapes(query, key, value)
    batch, num_queries, heads, key_width = query.shape
    num_keys, kv_heads, value_width = key.shape[1], key.shape[2], value.shape[3]
    check_causality(spec, causal, num_queries, num_keys, initial_state is not None)
    has_decay = log_decay is not None or (initial_state is not None and initial_state.age is not None)
    if not causal and has_decay:
        raise ValueError("log_decay needs causal=True: without the causal mask there is no order to decay in")
    if spec.evicts:
        _check_evicting(spec, given)
    parameters = given["parameters"] or {}
    shapes: dict[str, tuple[Tensor | None, tuple[int, ...]]] = {
        "input_gate": (given["input_gate"], (batch, num_keys, kv_heads)),
        "log_decay": (log_decay, (batch, num_keys, kv_heads)),
        "output_gate": (given["output_gate"], (batch, num_queries, heads)),
        "key_mask": (given["key_mask"], (batch, num_keys)),
        "query_mask": (given["query_mask"], (batch, num_queries)),
        "parameter reference_key": (parameters.get("reference_key"), (kv_heads, key_width)),
    }
    for name, (tensor, shape) in shapes.items():
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected {shape}")
        if tensor is not None and name.endswith("mask") and tensor.dtype != torch.bool:
            raise ValueError(f"{name} has type {tensor.dtype}; expected bool, True where real: {name}.bool()")
    _check_declared(
        spec, given["input_gate"], given["output_gate"], log_decay, parameters, heads, kv_heads, key_width, value_width,
        (batch, num_keys, kv_heads),
    )  # fmt: skip
    check_form(
        spec,
        given["form"],
        given["chunk_size"],
        causal,
        initial_state,
        given["output_final_state"],
        log_decay is not None,
    )
    if given["cu_seqlens"] is not None:
        _check_boundaries(given["cu_seqlens"], batch, num_queries, num_keys, given["key_mask"], initial_state)


def _check_evicting(spec: AttentionSpec, given: dict[str, Any]) -> None:
    """Tensors that slots which keys leave at fixed positions have no use for."""
    if given["log_decay"] is not None:
        raise ValueError(
            f"log_decay with {spec.short_name}: keys that left the slots at other times would have decayed by other amounts; leave "
            "it out, or use a Local without heavy and evict_every"
        )
    if given["query_mask"] is not None and given["query_mask"] is not given["key_mask"]:
        raise ValueError(
            f"query_mask with {spec.short_name}: a query is noted by the rank of its own key; leave it out, key_mask serves both"
        )


def _check_kinds(given: dict[str, Any]) -> None:
    kinds = {"spec": AttentionSpec, "cu_seqlens": Tensor, "initial_state": AttentionState, "parameters": dict}
    for name, kind in kinds.items():
        value = given[name]
        if not isinstance(value, kind) and (value is not None or name == "spec"):
            hint = "; a name becomes a spec by termwise.catalogue[name]" if name == "spec" else ""
            raise ValueError(f"{name} is a {type(value).__name__}; expected {kind.__name__}{hint}")


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 4:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}; expected four axes (batch, length, heads, width)"
            )
        if not tensor.is_floating_point():
            raise ValueError(f"{name} has type {tensor.dtype}; expected a floating point type")
    if query.shape[1] == 0 or key.shape[1] == 0:
        raise ValueError(f"{query.shape[1]} queries and {key.shape[1]} keys; attention needs at least one of each")
    if key.shape[:3] != value.shape[:3]:
        raise ValueError(
            f"key {tuple(key.shape)} and value {tuple(value.shape)} must agree in batch, length and kv heads"
        )
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        raise ValueError(f"query {tuple(query.shape)} and key {tuple(key.shape)} must agree in batch and key width")
    if query.shape[2] % key.shape[2]:
        raise ValueError(
            f"{query.shape[2]} query heads over {key.shape[2]} kv heads; the kv heads must divide the query heads"
        )
    if not (query.dtype == key.dtype == value.dtype):
        raise ValueError(
            f"query, key and value have types {query.dtype}, {key.dtype}, {value.dtype}; give all three one type"
        )


def _check_declared(
    spec: AttentionSpec, input_gate: Tensor | None, output_gate: Tensor | None, log_decay: Tensor | None, parameters: dict[str, Tensor],
    heads: int, kv_heads: int, key_width: int, value_width: int, per_key: tuple[int, int, int],
) -> None:  # fmt: skip
    """What the spec declares must be there, in the declared shape, and nothing else."""
    for name, declared, tensor in (
        ("input_gate", spec.input_gate is True, input_gate),
        ("output_gate", spec.output_gate is not None, output_gate),
        ("log_decay", spec.log_decay, log_decay),
    ):
        if declared and tensor is None:
            raise ValueError(f"the spec {spec.short_name} declares {name}; pass the tensor {name}=... to attend")
    if input_gate is not None and spec.input_gate == "count":
        raise ValueError("input_gate='count' makes its own gate from the count; leave the input_gate tensor out")
    sizes: dict[str | int, int] = {"heads": heads, "kv_heads": kv_heads, "key_width": key_width}
    needed: dict[str, tuple[int, ...]] = {}
    for name, shape in spec.parameters(value_width).items():
        needed[name] = tuple(sizes[s] if isinstance(s, str) else s for s in shape)
    if spec.needs_running_gate:
        needed["running_gate_score"] = per_key
    optional = {"reference_key"} if spec.kernel.is_centered else set()
    for name, shape in needed.items():
        if name not in parameters or tuple(parameters[name].shape) != shape:
            given = f"has shape {tuple(parameters[name].shape)}" if name in parameters else "is missing"
            raise ValueError(f"parameter {name!r} {given}; {spec.short_name} needs it with shape {shape}")
    for name in parameters:
        if name not in needed and name not in optional:
            raise ValueError(
                f"parameter {name!r} is not declared by {spec.short_name}; declared are {', '.join([*needed, *optional]) or 'none'}"
            )


def _check_boundaries(
    cu_seqlens: Tensor,
    batch: int,
    num_queries: int,
    num_keys: int,
    key_mask: Tensor | None,
    state: AttentionState | None,
) -> None:
    if cu_seqlens.dim() != 1 or cu_seqlens.is_floating_point():
        raise ValueError(
            f"cu_seqlens has shape {tuple(cu_seqlens.shape)} and type {cu_seqlens.dtype}; expected one axis of whole numbers 0, ..., {num_keys}"
        )
    ends: Sequence[int] = cu_seqlens.tolist()
    if batch != 1 or num_queries != num_keys or key_mask is not None:
        raise ValueError(
            f"cu_seqlens packs documents along one row of self-attention: batch 1, as many queries as keys, no key_mask; given batch {batch}, "
            f"{num_queries} queries, {num_keys} keys" + (", a key_mask" if key_mask is not None else "")
        )
    if len(ends) < 2 or ends[0] != 0 or ends[-1] != num_keys or any(b <= a for a, b in itertools.pairwise(ends)):
        raise ValueError(
            f"cu_seqlens {ends[:8]}{'...' if len(ends) > 8 else ''} must rise from 0 to the length {num_keys} without empty documents"
        )
    if state is not None and state.batch_size != len(ends) - 1:
        raise ValueError(
            f"initial_state holds {state.batch_size} sequences, cu_seqlens {len(ends) - 1} documents; one sequence a document"
        )
