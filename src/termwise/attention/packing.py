"""Packed documents: every document becomes a sequence of its own, so that nothing can be shared by accident."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from termwise.attention.state import AttentionState

PER_TOKEN = ("query", "key", "value", "input_gate", "output_gate", "log_decay", "query_mask")


def attend_packed(
    given: dict[str, Any], attend: Callable[..., tuple[Tensor, AttentionState | None]]
) -> tuple[Tensor, AttentionState | None]:
    """One call for the documents of full length, one for the shorter ones, padded on the right by their own last token."""
    ends = given["cu_seqlens"].to(torch.int64).cpu()
    starts, lengths = ends[:-1], ends.diff()
    is_longest = lengths == lengths.max()
    wants_state = given["output_final_state"] or given["initial_state"] is not None
    groups = [torch.arange(len(lengths))]
    if not wants_state and not bool(is_longest.all()):
        groups = [is_longest.nonzero()[:, 0], (~is_longest).nonzero()[:, 0]]
    # Right padding stands behind every real query, so the causal mask alone hides it; a state or a count must know of it.
    needs_mask = wants_state or given["row_counts"] is not None or not given["causal"]
    outputs, origin, num_slots, state = [], torch.empty(int(ends[-1]), dtype=torch.int64), 0, None
    for group in groups:
        steps = torch.arange(int(lengths[group].max()))
        is_real = steps[None] < lengths[group, None]
        places = starts[group, None] + torch.minimum(steps[None], lengths[group, None] - 1)
        origin[places[is_real]] = num_slots + is_real.flatten().nonzero()[:, 0]
        num_slots += places.numel()
        part, state = attend(**_unpacked(given, places, is_real if needs_mask and not bool(is_real.all()) else None))
        outputs.append(part.flatten(0, 1))
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return joined.index_select(0, origin.to(joined.device))[None], state


def _unpacked(given: dict[str, Any], places: Tensor, is_real: Tensor | None) -> dict[str, Any]:
    """The arguments with every document as a row (documents, longest)."""
    device = given["query"].device
    index = places.flatten().to(device)

    def unpack(t: Tensor | None) -> Tensor | None:
        return None if t is None else t[0].index_select(0, index).unflatten(0, places.shape)

    parameters = dict(given["parameters"] or {})
    if "running_gate_score" in parameters:
        parameters["running_gate_score"] = unpack(parameters["running_gate_score"])
    key_mask = None if is_real is None else is_real.to(device)
    rows = {name: unpack(given[name]) for name in PER_TOKEN}
    return {**given, **rows, "parameters": parameters, "cu_seqlens": None, "key_mask": key_mask}
