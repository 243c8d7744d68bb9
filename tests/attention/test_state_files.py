"""States on disk, and states that do not go together."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from termwise.attention.forms import attend
from termwise.attention.names import parse
from termwise.attention.state import AttentionState
from tests.attention.compare import equal, holds, refused, same_bits
from tests.attention.slicing import tokens
from tests.attention.stateful import KINDS
from tests.attention.values import inputs

# Files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_save_and_load(name, tmp_path):
    spec = parse(name)
    arguments = inputs(spec, batch=2, length=160, seed=17, dtype=torch.float32)
    mask = torch.ones(2, 150, dtype=torch.bool)
    mask[0, :90] = False
    _, state = attend(**tokens(arguments, 0, 150), key_mask=mask, spec=spec, output_final_state=True)
    state.save(tmp_path / "a.safetensors")
    loaded = AttentionState.load(tmp_path / "a.safetensors")
    equal((loaded.spec, loaded.scale, loaded.slot_scale), (state.spec, state.scale, state.slot_scale), name)
    equal(sorted(loaded.tensors), sorted(state.tensors), name)
    for field, tensor in state.tensors.items():
        if tensor.numel():
            same_bits(loaded.tensors[field], tensor, f"{name}: {field}")
    later = tokens(arguments, 150, 160)
    same_bits(
        attend(**later, spec=spec, initial_state=loaded)[0], attend(**later, spec=spec, initial_state=state)[0], name
    )


def test_loading_refuses_what_is_no_state(tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "a.safetensors"
    spec = parse("taylor:0..2")
    attend(**inputs(spec, length=5), spec=spec, output_final_state=True)[1].save(path)
    whole = path.read_bytes()
    for content in (b"", b"nonsense", whole[: len(whole) // 2], whole[:-1]):
        path.write_bytes(content)
        with refused(str(path), "AttentionState.save"):
            AttentionState.load(path)
    save_file({"key": torch.zeros(2)}, path)
    with refused(str(path), "no", "termwise state"):
        AttentionState.load(path)


# What does not go together ----------------------------------------------------------------------------------------


def test_states_of_different_kinds_are_refused():
    spec = parse("taylor:0..2")
    arguments = inputs(spec, length=5)
    _, state = attend(**arguments, spec=spec, output_final_state=True)
    _, other_scale = attend(**arguments, spec=spec, scale=0.3, output_final_state=True)
    _, other_spec = attend(**arguments, spec=parse("taylor:0..4"), output_final_state=True)
    _, single = attend(**inputs(spec, length=5, dtype=torch.float32), spec=spec, output_final_state=True)
    _, wider = attend(**inputs(spec, length=5, key_width=4), spec=spec, output_final_state=True)
    for other, word in ((other_scale, "scale"), (other_spec, "taylor:0..4"), (single, "float32"), (wider, "width")):
        with refused(word):
            state.merge(other)
        with refused(word):
            AttentionState.stack([state, other])
        with refused(word):
            attend(**arguments, spec=spec, initial_state=other)
    two = attend(**inputs(spec, batch=2, length=5), spec=spec, output_final_state=True)[1]
    with refused("2 sequences", "this call has 1"):
        attend(**arguments, spec=spec, initial_state=two)
    with refused("1 and 2 sequences"):
        state.merge(two)
    with refused("at least one"):
        AttentionState.stack([])


def test_a_reference_is_for_whole_sequences():
    spec = parse("taylor:0..2")
    arguments = inputs(spec, length=5)
    _, state = attend(**arguments, spec=spec, output_final_state=True)
    with refused("reference", "initial_state"):
        attend(**arguments, spec=spec, initial_state=state, form="reference")


def test_states_are_frozen():
    spec = parse("taylor:0..2")
    _, state = attend(**inputs(spec, length=5), spec=spec, output_final_state=True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.count = torch.zeros(1)
    holds("taylor:0..2" in repr(state) and str(state.nbytes) in repr(state), "its text names the spec and the bytes")
