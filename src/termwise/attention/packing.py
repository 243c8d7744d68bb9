"""Packed documents: every document becomes a sequence of its own, so that nothing can be shared by accident."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from termwise.attention.call import Call
from termwise.attention.state import AttentionState

PER_KEY = ("key", "value", "input_gate", "log_decay")
PER_QUERY = ("query", "output_gate", "query_mask")


def attend_packed(
    call: Call, attend: Callable[..., tuple[Tensor, AttentionState | None]]
) -> tuple[Tensor, AttentionState | None]:
    """One call for the documents of full length, one for the shorter ones, padded on the right."""
    assert call.cu_seqlens is not None
    ends = call.cu_seqlens.to(torch.int64).cpu()
    starts, lengths = ends[:-1], ends.diff()
    longest = int(lengths.max())
    wants_state = call.output_final_state or call.raw["initial_state"] is not None
    if wants_state or bool((lengths == longest).all()):
        groups = [torch.arange(len(lengths))]
    else:
        groups = [(lengths == longest).nonzero()[:, 0], (lengths < longest).nonzero()[:, 0]]
    query, value = call.raw["query"], call.raw["value"]
    out, state = query.new_zeros(*query.shape[1:3], value.shape[3]), None
    for group in groups:
        places, is_real = _places(starts[group], lengths[group], query.device)
        needs_mask = wants_state or call.row_counts is not None or not call.causal
        part, state = attend(**_arguments(call, places, is_real, needs_mask and not bool(is_real.all())))
        out = out.index_put((places[is_real],), part[is_real])
    return out[None], state


def _places(starts: Tensor, lengths: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where in the row each slot (documents, longest) lies, and which slots are real."""
    steps = torch.arange(int(lengths.max()))
    is_real = steps[None] < lengths[:, None]
    return torch.where(is_real, starts[:, None] + steps[None], 0).to(device), is_real.to(device)


def _arguments(call: Call, places: Tensor, is_real: Tensor, masked: bool) -> dict[str, Any]:
    def unpack(t: Tensor | None) -> Tensor | None:
        if t is None:
            return None
        rows = t[0][places]
        return (
            rows
            if bool(is_real.all())
            else torch.where(is_real.reshape(*is_real.shape, *(1,) * (rows.dim() - 2)), rows, torch.zeros_like(rows))
        )

    arguments = {name: unpack(value) if name in PER_KEY + PER_QUERY else value for name, value in call.raw.items()}
    parameters = dict(arguments["parameters"] or {})
    if "running_gate_score" in parameters:
        parameters["running_gate_score"] = unpack(parameters["running_gate_score"])
    # Right padding is behind every real query, so the causal mask alone hides it; a state or a count must know of it.
    return {**arguments, "parameters": parameters, "cu_seqlens": None, "key_mask": is_real if masked else None}
