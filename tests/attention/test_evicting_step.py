"""The compiled step over exact slots and groups: the same outputs and the same state as the torch form, token by token."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from termwise.attention import step
from termwise.attention.forms import attend
from termwise.attention.names import parse
from termwise.attention.state import AttentionState
from tests.attention.compare import close, close_states, equal, holds, same_bits
from tests.attention.running import clone
from tests.attention.slicing import tokens
from tests.attention.values import inputs

NAMES = [
    "drop+w4s2h3e16", "drop+w4e16+gi+gb", "taylor:0@mean5+w4s2h3e16", "taylor:0..1@mean5+w4h3e16+ga", "taylor:0..2@mean3+w4s2h3e16+gc",
    "taylor:0@mean+w4e16", "taylor:0..2@mean+w4s2h3e16", "taylor:0..4@mean+w4s2e16", "taylor:0..2+w4s2h3e16", "taylor:2,4+w4h3e16",
    "minimax3:0..2@mean4+w4h3e16",
]  # fmt: skip


class Counted:
    """The compiled step, with how often it was asked and how often it served."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, is_on: bool = True) -> None:
        self.served, self.asked, self.is_on = 0, 0, is_on
        self.real = step.step_evicting
        monkeypatch.setattr(step, "step_evicting", self)

    def __call__(self, given, state):
        self.asked += 1
        found = self.real(given, state) if self.is_on else None
        self.served += found is not None
        return found


@torch.no_grad()
def stepped(arguments: dict, spec, state: AttentionState | None = None, **options):
    outputs = []
    for t in range(arguments["query"].shape[1]):
        given = tokens(arguments, t, t + 1) | options
        out, state = attend(**given, spec=spec, initial_state=state, output_final_state=True)
        outputs.append(out)
    return torch.cat(outputs, dim=1), state


def tidy(state: AttentionState) -> AttentionState:
    """Empty slots hold anything; here zeros."""
    there = state.rank >= 0
    slots = {"key": state.key * there[..., None], "value": state.value * there[..., None]}
    if state.given is not None:
        slots["given"] = state.given * there[:, :, None]
    if state.received is not None:
        slots["received"] = state.received * there
    return dataclasses.replace(state, **slots)


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_state_are_those_of_the_torch_form(name, dtype, records, monkeypatch):
    """At every length, what queries have given each slot included, as one sum or apart."""
    spec = parse(name)
    arguments = clone(inputs(spec, length=60, heads=6, kv_heads=2, batch=2, mean=1.0), dtype, requires_grad=False)
    for length in (3, 17, 31, 60):
        part, row = tokens(arguments, 0, length), "fp64" if dtype == torch.float64 else "fp32"
        with monkeypatch.context() as patch:
            counted = Counted(patch)
            out, state = stepped(part, spec, record_past=records)
            # The first token, and those at which keys leave, are the general engine's.
            equal((counted.served, counted.asked), (length - 1 - length // 16, length - 1), f"{name}: steps")
        with monkeypatch.context() as patch:
            Counted(patch, is_on=False)
            expected, end = stepped(part, spec, record_past=records)
        close(out, expected, row, f"{name}, {length} tokens")
        close_states(state, end, row, f"{name}, {length} tokens")
    whole, _ = attend(**arguments, spec=spec, form="chunked")
    close(out, whole, row, f"{name}: as all at once")


@pytest.mark.parametrize("name", NAMES)
def test_two_go_on_from_one_state(name):
    """Turn by turn: neither sees the other, and what they began from stays."""
    spec = parse(name)
    prompt, *branches = (inputs(spec, length=n, heads=2, seed=s) for n, s in ((20, 1), (40, 2), (40, 3)))
    centers = prompt["parameters"]
    _, begun = stepped(prompt, spec)
    before = {field: t.clone() for field, t in begun.tensors.items()}
    states, outputs = [begun, begun], [[], []]
    for t in range(40):
        for i, branch in enumerate(branches):
            given = tokens(branch, t, t + 1) | {"parameters": centers}
            out, states[i] = stepped(given, spec, states[i])
            outputs[i].append(out)
    for i, branch in enumerate(branches):
        expected, end = attend(
            **branch | {"parameters": centers}, spec=spec, initial_state=begun, output_final_state=True, form="chunked"
        )
        close(torch.cat(outputs[i], dim=1), expected, "fp64", f"{name}, branch {i}")
        close_states(states[i], end, "fp64", f"{name}, branch {i}")
    for field, tensor in begun.tensors.items():
        same_bits(tensor, before[field], f"{name}: {field}")


@pytest.mark.parametrize("name", NAMES)
def test_a_step_that_keeps_no_state_changes_nothing(name):
    spec = parse(name)
    arguments = inputs(spec, length=24, heads=2)
    _, state = stepped(tokens(arguments, 0, 20), spec)
    before = {field: t.clone() for field, t in state.tensors.items()}
    with torch.no_grad():
        once, nothing = attend(**tokens(arguments, 20, 21), spec=spec, initial_state=state)
        again, _ = attend(**tokens(arguments, 20, 21), spec=spec, initial_state=state, output_final_state=True)
    equal(nothing, None, "no state")
    same_bits(once, again, name)
    for field, tensor in state.tensors.items():
        same_bits(tensor, before[field], f"{name}: {field}")


@pytest.mark.parametrize("name", NAMES)
def test_sequences_of_different_lengths(name, monkeypatch):
    """Prompts padded in front: slots are empty in places, and keys leave at different steps."""
    spec = parse(name)
    arguments = inputs(spec, length=60, heads=2, batch=3)
    mask = torch.ones(3, 60, dtype=torch.bool)
    for b, padding in enumerate((0, 5, 14)):
        mask[b, :padding] = False
    whole, end = attend(**arguments, spec=spec, key_mask=mask, output_final_state=True, form="chunked")
    with torch.no_grad():
        _, state = attend(**tokens(arguments, 0, 20), spec=spec, key_mask=mask[:, :20], output_final_state=True)
    counted = Counted(monkeypatch)
    out, state = stepped(tokens(arguments, 20, 60), spec, state)
    # In each sequence keys leave at two or three of the forty steps.
    holds(30 <= counted.served <= 36, f"{name}: {counted.served} compiled steps")
    close(out, whole[:, 20:], "fp64", name)
    close_states(tidy(state), tidy(end), "fp64", name)


@pytest.mark.parametrize("name", NAMES)
def test_beams_and_rollback_between_steps(name):
    spec, order = parse(name), torch.tensor([1, 0, 1])
    arguments = inputs(spec, length=46, heads=2, batch=2)
    _, state = stepped(tokens(arguments, 0, 44), spec, record_past=True)
    back = state.rollback(6).permute(order)
    moved = {part: t[order] if part != "parameters" else t for part, t in tokens(arguments, 38, 46).items()}
    out, state = stepped(moved, spec, back)
    expected, end = attend(**arguments, spec=spec, output_final_state=True, form="chunked")
    close(out, expected[order, 38:], "fp64", name)
    close_states(state, end.permute(order), "fp64", name)


def test_threads_share_the_heads(monkeypatch):
    spec = parse("taylor:0..2@mean2+w4h3e16")
    arguments = inputs(spec, length=40, heads=6, kv_heads=3, batch=2)
    out, _ = stepped(arguments, spec)
    monkeypatch.setattr("termwise.attention.compiled_step.SHARED", 0)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        shared, _ = stepped(arguments, spec)
    finally:
        torch.set_num_threads(threads)
    same_bits(shared, out, "each head by one thread")


def test_gradients_and_padding_go_to_the_general_engine(monkeypatch):
    spec = parse("taylor:0@mean5+w4s2h3e16")
    arguments = inputs(spec, length=24, heads=2, requires_grad=True)
    _, state = stepped(tokens(arguments, 0, 20), spec)
    counted = Counted(monkeypatch)
    last = tokens(arguments, 20, 21)
    out, _ = attend(**last, spec=spec, initial_state=state)
    holds(out.requires_grad, "a graph is kept")
    with torch.no_grad():
        padded, _ = attend(**last, spec=spec, initial_state=state, key_mask=torch.tensor([[False]]))
    equal(float(padded.abs().max()), 0.0, "a row of padding is zero")
    equal(counted.asked, 0, "neither is a plain step")


def test_large_scores_do_not_overflow():
    """Slots or groups may lie far above the others: everything is taken relative to the largest."""
    spec = parse("taylor:0..1@mean3+w4h2e8")
    for spread in (30.0, 300.0):
        arguments = inputs(spec, length=30, spread=spread)
        expected, _ = attend(**arguments, spec=spec, form="chunked")
        close(stepped(arguments, spec)[0], expected, "fp64", f"spread {spread:g}")
