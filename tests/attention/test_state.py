"""The state: handed over anywhere, it is as if the sequence had never been cut. It is never changed, and refuses what it cannot do."""

from __future__ import annotations

import pytest
import torch

from termwise.attention.forms import attend
from termwise.attention.names import parse
from termwise.attention.state import AttentionState
from tests.attention.compare import all_close, close, close_states, equal, holds, same_bits
from tests.attention.running import gradients, run_form
from tests.attention.slicing import permuted, rows, tokens
from tests.attention.stateful import KINDS, form_of, in_parts
from tests.attention.values import NAMES, inputs, is_long_series, spec_of

STATEFUL = [n for n in NAMES if not is_long_series(spec_of(n))]
# A sequence cut anywhere ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STATEFUL)
def test_a_split_sequence_is_the_whole(name):
    spec = spec_of(name)
    turn = STATEFUL.index(name)
    length = 150 + (spec.local.window if spec.local else 0)
    cuts = ([1, 66, 67, length - 9], [64, 128], [130], [3, 63, 127, length - 1])[turn % 4]
    arguments = inputs(spec, length=length, heads=1, seed=turn)
    whole, state = attend(**arguments, spec=spec, form="parallel", output_final_state=True)
    parts, last = in_parts(arguments, spec, cuts, turn=turn)
    close(parts, whole, "fp64", f"{name} cut at {cuts}")
    close_states(last, state, "fp64", name)


@pytest.mark.parametrize("name", KINDS)
def test_gradients_flow_through_a_handed_state(name):
    spec = parse(name)
    arguments = inputs(spec, length=140, heads=2, seed=3, requires_grad=True)
    whole, expected = run_form(arguments, spec, "parallel")
    parts, _ = in_parts(arguments, spec, [40, 131])
    close(parts.detach(), whole, "fp64", name)
    all_close(gradients(parts, arguments), expected, "fp64 gradient", f"{name}: gradient of")


@pytest.mark.parametrize("name", KINDS)
def test_decoding_one_token_at_a_time(name):
    spec = parse(name)
    arguments = inputs(spec, batch=2, length=140, heads=2, seed=4)
    whole, _ = attend(**arguments, spec=spec, form="parallel")
    out, _ = in_parts(arguments, spec, list(range(120, 140)))
    close(out, whole, "fp64", name)


@pytest.mark.parametrize("name", KINDS)
def test_prompts_of_different_lengths_continue_as_if_alone(name):
    """Padded left and right in one batch, then continued together: every row as it would be alone."""
    spec = parse(name)
    arguments = inputs(spec, batch=3, length=150, heads=2, seed=5)
    mask = torch.ones(3, 140, dtype=torch.bool)
    mask[0, :75] = False
    mask[1, 70:] = False
    mask[1, 3] = False
    poisoned = {
        name: t
        if name == "parameters"
        else torch.cat(
            [torch.where(mask.reshape(3, 140, *[1] * (t.dim() - 2)), t[:, :140], torch.nan), t[:, 140:]], dim=1
        )
        for name, t in arguments.items()
    }
    _, state = attend(**tokens(poisoned, 0, 140), spec=spec, key_mask=mask, output_final_state=True)
    equal(state.count.tolist(), mask.sum(dim=1).tolist(), name)
    out, after = in_parts(tokens(poisoned, 140, 150), spec, [4], state=state)
    for b in range(3):
        kept = torch.cat([mask[b].nonzero()[:, 0], torch.arange(140, 150)])
        alone = {n: (t[b : b + 1, kept] if n != "parameters" else t) for n, t in arguments.items()}
        alone["parameters"] = {
            n: t[b : b + 1, kept] if n == "running_gate_score" else t for n, t in arguments["parameters"].items()
        }
        expected, expected_state = attend(**alone, spec=spec, form="parallel", output_final_state=True)
        close(out[b : b + 1], expected[:, -10:], "fp64", f"{name}, row {b}")
        again, _ = attend(**rows(tokens(arguments, 140, 141), b, b + 1), spec=spec, initial_state=after.split()[b])
        wanted, _ = attend(**rows(tokens(arguments, 140, 141), b, b + 1), spec=spec, initial_state=expected_state)
        close(again, wanted, "fp64", f"{name}, row {b}, one token later")


# Never changed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_two_continuations_of_one_state_do_not_see_each_other(name):
    spec = parse(name)
    arguments = inputs(spec, length=160, seed=6)
    _, state = attend(**tokens(arguments, 0, 130), spec=spec, output_final_state=True)
    before = {n: t.clone() for n, t in state.tensors.items()}
    other = {**tokens(inputs(spec, length=160, seed=60), 130, 160)}
    first, _ = in_parts(tokens(arguments, 130, 160), spec, [5], state=state)
    second, _ = in_parts(other, spec, [5], state=state)
    again, _ = in_parts(tokens(arguments, 130, 160), spec, [5], state=state)
    same_bits(again, first, name)
    holds(not torch.equal(first, second), f"{name}: the other continuation is another")
    for field, tensor in before.items():
        if tensor.numel():
            same_bits(state.tensors[field], tensor, f"{name}: {field}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["taylor:0..2@mean", "drop+w8s2", "exp"])
def test_a_state_does_not_share_memory_with_what_was_given(name, dtype):
    """Neither may the caller's later writes reach it, nor may it hold on to more than its own bytes."""
    spec = parse(name)
    for length in (1, 3, 64, 192):
        arguments = inputs(spec, length=length, heads=1, dtype=dtype)
        for form, size in {
            form_of(spec, 0),
            form_of(spec, 2),
            ("recurrent", None),
            ("chunked", 64) if spec.is_constant_size else ("fused", None),
        }:
            _, state = attend(**arguments, spec=spec, form=form, chunk_size=size, output_final_state=True)
            kept = {n: t.clone() for n, t in state.tensors.items()}
            changed = {n: t.clone() for n, t in arguments.items() if n != "parameters"}
            for t in (arguments["key"], arguments["value"]):
                t.fill_(1e3)
            for field, tensor in kept.items():
                if tensor.numel():
                    same_bits(state.tensors[field], tensor, f"{name}, {form}, {length}: {field}")
            storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in state.tensors.values()}
            holds(
                sum(storages.values()) <= state.nbytes,
                f"{name}, {form}, {length}: {sum(storages.values())} bytes are held for {state.nbytes}",
            )
            arguments = {**changed, "parameters": {}}


# Batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_split_stack_permute(name):
    spec = parse(name)
    arguments = inputs(spec, batch=3, length=150, seed=8)
    mask = torch.ones(3, 140, dtype=torch.bool)
    mask[1, :100] = False
    _, state = attend(**tokens(arguments, 0, 140), spec=spec, key_mask=mask, output_final_state=True)
    later = tokens(arguments, 140, 150)
    expected, _ = attend(**later, spec=spec, initial_state=state)
    parts = state.split()
    equal([p.batch_size for p in parts], [1, 1, 1], name)
    for b, part in enumerate(parts):
        out, _ = attend(**rows(later, b, b + 1), spec=spec, initial_state=part)
        close(out, expected[b : b + 1], "fp64", f"{name}: row {b} of split")
    close_states(AttentionState.stack(parts), state, "fp64", f"{name}: stacked again")
    order = torch.tensor([2, 0, 0, 1])
    out, _ = attend(**permuted(later, order), spec=spec, initial_state=state.permute(order))
    close(out, expected[order], "fp64", f"{name}: permuted with a repeat")
    one = parts[1].permute(torch.tensor([0, 0]))
    out, _ = attend(**permuted(later, torch.tensor([1, 1])), spec=spec, initial_state=one)
    close(out, expected[[1, 1]], "fp64", f"{name}: one sequence for two beams")


def test_states_of_different_lengths_stack():
    for name in ("taylor:0..2@mean+decay", "taylor:0..2@mean+w8s2", "exp", "exp<5|runninggate*count"):
        spec = parse(name)
        arguments = inputs(spec, batch=3, length=220, seed=9)
        lengths = (1, 70, 210)
        states = [
            attend(**rows(tokens(arguments, 0, n), b, b + 1), spec=spec, output_final_state=True)[1]
            for b, n in enumerate(lengths)
        ]
        later = tokens(arguments, 210, 220)
        out, _ = attend(**later, spec=spec, initial_state=AttentionState.stack(states))
        for b, state in enumerate(states):
            expected, _ = attend(**rows(later, b, b + 1), spec=spec, initial_state=state)
            close(out[b : b + 1], expected, "fp64", f"{name}: row {b}")
