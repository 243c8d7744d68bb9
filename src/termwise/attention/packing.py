"""Packed documents: every document becomes a sequence of its own, so that nothing can be shared by accident."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from termwise.attention.state import AttentionState

PER_TOKEN = ("query", "key", "value", "input_gate", "output_gate", "log_decay", "query_mask")


def attend_packed(
    given: dict[str, Any], attend: Callable[..., tuple[Tensor, AttentionState | None]]
) -> tuple[Tensor, AttentionState | None]:
    """One call for the documents of about one length, the shorter ones padded on the right by their own last token.

    Each call takes its own form. Outputs, and the sequences of the state, stand in the order of the documents.
    """
    ends = given["cu_seqlens"].to(torch.int64).cpu()
    starts, lengths = ends[:-1], ends.diff()
    # Right padding stands behind every real query, so the causal mask alone hides it; a state or a count must know of it.
    has_state = given["output_final_state"] or given["initial_state"] is not None
    needs_mask = has_state or given["row_counts"] is not None or not given["causal"]
    outputs, states, origin, num_slots = [], [], torch.empty(int(ends[-1]), dtype=torch.int64), 0
    groups = documents_of_one_length(lengths.tolist())
    for group in groups:
        steps = torch.arange(int(lengths[group].max()))
        is_real = steps[None] < lengths[group, None]
        places = starts[group, None] + torch.minimum(steps[None], lengths[group, None] - 1)
        origin[places[is_real]] = num_slots + is_real.flatten().nonzero()[:, 0]
        num_slots += places.numel()
        rows = _unpacked(given, group, places, is_real if needs_mask and not bool(is_real.all()) else None)
        out, state = attend(**rows)
        outputs.append(out.flatten(0, 1))
        states.append(state)
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return joined.index_select(0, origin.to(joined.device))[None], _in_order(states, torch.cat(groups))


def documents_of_one_length(lengths: Sequence[int]) -> list[Tensor]:
    """Documents in groups by the power of two that their length rounds up to, the longest first.

    Padded to the longest of its group a document has fewer than twice its tokens, whatever the others are. Its group depends
    on its own length alone.

    >>> [group.tolist() for group in documents_of_one_length([5, 100, 8, 65, 1])]
    [[1, 3], [0, 2], [4]]
    """
    groups: dict[int, list[int]] = {}
    for document, length in enumerate(lengths):
        groups.setdefault((length - 1).bit_length(), []).append(document)
    return [torch.tensor(groups[size]) for size in sorted(groups, reverse=True)]


def _unpacked(given: dict[str, Any], group: Tensor, places: Tensor, is_real: Tensor | None) -> dict[str, Any]:
    """The arguments with every document of the group as a row (documents, longest)."""
    device = given["query"].device
    index = places.flatten().to(device)

    def unpack(t: Tensor | None) -> Tensor | None:
        return None if t is None else t[0].index_select(0, index).unflatten(0, places.shape)

    parameters = dict(given["parameters"] or {})
    if "running_gate_score" in parameters:
        parameters["running_gate_score"] = unpack(parameters["running_gate_score"])
    state = given["initial_state"]
    rows: dict[str, Any] = {name: unpack(given[name]) for name in PER_TOKEN}
    rows |= {"key_mask": None if is_real is None else is_real.to(device), "parameters": parameters, "cu_seqlens": None}
    return {**given, **rows, "initial_state": None if state is None else state.permute(group)}


def _in_order(states: Sequence[AttentionState | None], documents: Tensor) -> AttentionState | None:
    """One state of the groups' states, whose sequences are `documents`, in the order of the documents."""
    found = [state for state in states if state is not None]
    if len(found) < 2:
        return found[0] if found else None
    return AttentionState.stack(found).permute(documents.argsort())
