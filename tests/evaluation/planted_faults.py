"""Faults of the kinds that real implementations of cached and chunked attention have had, to be planted in a healthy model.

Written from what the model promises, without regard to how it is verified. Each takes pytest's monkeypatch and changes one thing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from termwise.attention.forms import attend
from termwise.attention.state import AttentionState
from termwise.models import backbone, layers
from termwise.models.cache import LayerCache, TermwiseCache

Given = dict[str, Any]
Plant = Callable[[pytest.MonkeyPatch], None]


def in_every_call(
    before: Callable[[Given], None] | None = None,
    after: Callable[[Given, AttentionState], AttentionState] | None = None,
) -> Plant:
    """A fault in what a layer hands to `attend` (arguments by name), or in the state it gets back."""

    def faulty(query: Tensor, key: Tensor, value: Tensor, spec: Any, **rest: Any) -> Any:
        given = {"query": query, "key": key, "value": value, "spec": spec, **rest}
        if before is not None:
            before(given)
        out, state = attend(**given)
        if after is not None and state is not None:
            state = after(given, state)
        return out, state

    return lambda monkeypatch: monkeypatch.setattr(layers, "attend", faulty)


def is_step(given: Given) -> bool:
    return given["query"].shape[1] == 1 and given.get("initial_state") is not None


def continues(given: Given) -> bool:
    return given.get("initial_state") is not None


# What a layer hands over -------------------------------------------------------------------------------------------------


def mask_forgotten(given: Given) -> None:
    given["key_mask"] = None


def boundaries_forgotten(given: Given) -> None:
    given["cu_seqlens"] = None


def state_forgotten_by_long_calls(given: Given) -> None:
    if continues(given) and not is_step(given):
        given["initial_state"] = None


def heads_swapped_in_a_step(given: Given) -> None:
    if is_step(given):
        given["key"], given["value"] = given["key"].flip(2), given["value"].flip(2)


def query_heads_tiled_in_a_step(given: Given) -> None:
    if is_step(given):
        query = given["query"]
        repeats = query.shape[2] // given["key"].shape[2]
        given["query"] = query.unflatten(2, (-1, repeats)).transpose(2, 3).flatten(2, 3)


def one_key_ahead(given: Given) -> None:
    if given["query"].shape[1] > 1:
        for name in ("key", "value"):
            given[name] = torch.cat([given[name][:, 1:], given[name][:, -1:]], dim=1)


def scale_slightly_off_in_a_step(given: Given) -> None:
    if is_step(given):
        given["query"] = given["query"] * 1.01


def last_head_slightly_off_in_a_step(given: Given) -> None:
    if is_step(given):
        value = given["value"].clone()
        value[:, :, -1] *= 1.002
        given["value"] = value


def output_gate_skipped_in_a_step(given: Given) -> None:
    if is_step(given) and given.get("output_gate") is not None:
        given["output_gate"] = torch.ones_like(given["output_gate"])


def decay_twice_at_a_border(given: Given) -> None:
    if continues(given) and given.get("log_decay") is not None:
        decay = given["log_decay"].clone()
        decay[:, 0] *= 2
        given["log_decay"] = decay


# What it gets back -------------------------------------------------------------------------------------------------------


def sums_in_bfloat16(given: Given, state: AttentionState) -> AttentionState:
    if state.moments is None:
        return state
    return dataclasses.replace(state, moments=state.moments.bfloat16().to(state.moments.dtype))


def sinks_dropped(given: Given, state: AttentionState) -> AttentionState:
    local = state.spec.local
    if local is None or not bool((state.count > local.window).all()):
        return state
    return dataclasses.replace(state, rank=torch.where(state.rank < local.sinks, -1, state.rank))


def old_keys_forgotten(given: Given, state: AttentionState) -> AttentionState:
    if state.spec.is_constant_size or state.key.shape[2] <= 100:
        return state
    cut = {"key": state.key[:, :, -100:], "value": state.value[:, :, -100:], "rank": state.rank[:, -100:]}
    return dataclasses.replace(state, **{name: tensor.contiguous() for name, tensor in cut.items()})


def folded_mass_lost(given: Given, state: AttentionState) -> AttentionState:
    before = given.get("initial_state")
    if state.mass is None or before is None or bool((state.boundary == before.boundary).all()):
        return state
    return dataclasses.replace(state, mass=state.mass * 0.99)


def reference_lost(given: Given, state: AttentionState) -> AttentionState:
    return state if state.reference is None else dataclasses.replace(state, reference=torch.zeros_like(state.reference))


# The cache ---------------------------------------------------------------------------------------------------------------


def positions_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = TermwiseCache.advance

    def faulty(self: TermwiseCache, positions: Tensor, num_columns: int, num_sound: int) -> None:
        advance(self, torch.zeros_like(positions), num_columns, num_sound)

    monkeypatch.setattr(TermwiseCache, "advance", faulty)


def beams_keep_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    select = LayerCache.batch_select_indices

    def faulty(self: LayerCache, indices: Tensor) -> None:
        select(self, torch.arange(len(indices)))

    monkeypatch.setattr(LayerCache, "batch_select_indices", faulty)


def crop_takes_one_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    crop = LayerCache.crop
    monkeypatch.setattr(LayerCache, "crop", lambda self, tokens_to_remove: crop(self, tokens_to_remove + 1))


def branches_share_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TermwiseCache, "copy", lambda self: self)


def convolution_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    next_past = layers.next_past
    monkeypatch.setattr(layers, "next_past", lambda *args, **kwargs: torch.zeros_like(next_past(*args, **kwargs)))


def rotary_rounds_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions above 256 are no longer whole numbers in bfloat16."""
    arrange = backbone.arrange

    def faulty(*args: Any, **kwargs: Any) -> Any:
        embeds, layout = arrange(*args, **kwargs)
        if embeds.dtype == torch.bfloat16:
            layout = dataclasses.replace(layout, positions=layout.positions.bfloat16().long())
        return embeds, layout

    monkeypatch.setattr(backbone, "arrange", faulty)


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault, and the variant whose model it is planted in."""

    variant: str
    plant: Plant
    stage: str = "float64"


SLOTS = "taylor:0..2@mean+w16s4"
SOFTMAX = "softmax"
LINEAR = "linear_elu"
DECAYED = "2mamba"
GATED = "softmax_divS_gate"

FAULTS = {
    "mask forgotten": Fault(SLOTS, in_every_call(mask_forgotten)),
    "mask forgotten, softmax": Fault(SOFTMAX, in_every_call(mask_forgotten)),
    "boundaries forgotten": Fault(SLOTS, in_every_call(boundaries_forgotten)),
    "state forgotten by long calls": Fault(LINEAR, in_every_call(state_forgotten_by_long_calls)),
    "heads swapped in a step": Fault(SLOTS, in_every_call(heads_swapped_in_a_step)),
    "query heads tiled in a step": Fault(SOFTMAX, in_every_call(query_heads_tiled_in_a_step)),
    "one key ahead": Fault(SOFTMAX, in_every_call(one_key_ahead)),
    "scale off in a step": Fault(LINEAR, in_every_call(scale_slightly_off_in_a_step)),
    "last head off in a step": Fault(SLOTS, in_every_call(last_head_slightly_off_in_a_step)),
    "output gate skipped in a step": Fault(GATED, in_every_call(output_gate_skipped_in_a_step)),
    "decay twice at a border": Fault(DECAYED, in_every_call(decay_twice_at_a_border)),
    "sums in bfloat16": Fault(SLOTS, in_every_call(after=sums_in_bfloat16)),
    "sinks dropped": Fault(SLOTS, in_every_call(after=sinks_dropped)),
    "old keys forgotten": Fault(SOFTMAX, in_every_call(after=old_keys_forgotten)),
    "folded mass lost": Fault(LINEAR, in_every_call(after=folded_mass_lost)),
    "reference lost": Fault(SLOTS, in_every_call(after=reference_lost)),
    "positions restart": Fault(SOFTMAX, positions_restart),
    "beams keep their place": Fault(SLOTS, beams_keep_their_place),
    "crop takes one too few": Fault(SLOTS, crop_takes_one_too_few),
    "branches share everything": Fault(SOFTMAX, branches_share_everything),
    "convolution forgets": Fault(DECAYED, convolution_forgets),
    "rotary rounds positions": Fault(SOFTMAX, rotary_rounds_positions, "bfloat16"),
}
