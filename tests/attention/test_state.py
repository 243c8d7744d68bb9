"""The state: handed over anywhere, it is as if the sequence had never been cut. It is never changed, and refuses what it cannot do."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from termwise.attention.forms import attend
from termwise.attention.names import parse
from termwise.attention.state import AttentionState
from tests.attention.compare import all_close, close, close_states, equal, holds, refused, same_bits
from tests.attention.running import gradients, run_form
from tests.attention.slicing import permuted, rows, tokens
from tests.attention.values import NAMES, inputs, is_long_series, spec_of, turn_of

STATEFUL = [n for n in NAMES if not is_long_series(spec_of(n))]
# One of each way of keeping keys: moments about zero and a reference, slots, decay, running gate, count gate, dropped keys, the cache.
KINDS = (
    "taylor:0..2", "taylor:0..2@mean", "taylor:0..2@mean+w8s2", "taylor:0..4@mean+w5s1|l2", "taylor:0..2@mean+w8s2+decay", "power:2+decay",
    "taylor:0..1@mean+decay", "elu1|runninggate+decay", "taylor:0..2+w7s2|runninggate", "unit|identity+gc", "elu1", "taylor:0..2|layer",
    "drop+w8s2|l2", "drop+w1s2+decay", "exp", "exp+decay", "exp<5|runninggate*count", "exp+gc", "minimax3:0..4@mean",
)  # fmt: skip
CONSTANT = [n for n in KINDS if parse(n).is_constant_size]


def form_of(spec, turn: int) -> tuple[str, int | None]:
    choices = (
        (("chunked", 16), ("recurrent", None), ("parallel", None))
        if spec.is_constant_size
        else (("parallel", None), ("recurrent", None), ("auto", None))
    )
    return choices[turn % 3]


def in_parts(arguments: dict, spec, cuts: list[int], state=None, turn: int = 0, **options):
    """Outputs of consecutive calls, each in the next form, and the last state."""
    length, outputs = arguments["query"].shape[1], []
    edges = [0, *cuts, length]
    for i, (start, stop) in enumerate(itertools.pairwise(edges)):
        form, size = form_of(spec, turn + i) if stop - start > 1 else ("auto", None)
        out, state = attend(
            **tokens(arguments, start, stop),
            spec=spec,
            form=form,
            chunk_size=size,
            initial_state=state,
            output_final_state=True,
            **options,
        )
        outputs.append(out)
    return torch.cat(outputs, dim=1), state


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


# Time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_rollback_then_continue_is_a_fresh_run(name):
    spec = parse(name)
    length = 128 + (spec.local.window - 1 if spec.local else 0)  # the fold is as near as it ever comes
    arguments = inputs(spec, batch=2, length=length + 20, seed=10)
    _, state = attend(**tokens(arguments, 0, length), spec=spec, output_final_state=True)
    for taken in (1 + turn_of(name) % 63, 64):
        back = state.rollback(taken)
        equal(back.count.tolist(), [length - taken], f"{name}: count")
        _, fresh = attend(**tokens(arguments, 0, length - taken), spec=spec, output_final_state=True)
        later = tokens(arguments, length - taken, length + 20)
        out, after = attend(**later, spec=spec, initial_state=back, output_final_state=True)
        expected, expected_state = attend(**later, spec=spec, initial_state=fresh, output_final_state=True)
        close(out, expected, "fp64", f"{name}, {taken} tokens back")
        close(
            in_parts(later, spec, [1], state=after)[0],
            in_parts(later, spec, [1], state=expected_state)[0],
            "fp64",
            f"{name}, {taken} back, later",
        )
    close_states(state.rollback(0), state, "fp64", f"{name}: nothing taken back")
    if spec.is_constant_size:
        with refused("rollback", "64", "earlier state"):
            state.rollback(length + 1)
    with refused("rollback", "-1"):
        state.rollback(-1)


@pytest.mark.parametrize("name", KINDS)
def test_rollback_to_nothing(name):
    spec = parse(name)
    arguments = inputs(spec, length=40, seed=11)
    _, state = attend(**tokens(arguments, 0, 20), spec=spec, output_final_state=True)
    out, _ = attend(**tokens(arguments, 20, 40), spec=spec, initial_state=state.rollback(20))
    expected, _ = attend(**tokens(arguments, 20, 40), spec=spec)
    close(out, expected, "fp64", name)


@pytest.mark.parametrize(
    "name", ["power:2+decay", "taylor:0..2@mean+w8s2+decay", "exp+decay", "drop+w1s2+decay", "drop+w5s2+decay"]
)
def test_rollback_undoes_a_decay_of_minus_1e4(name):
    """What was forgotten completely comes back: decay is kept in logs, and folded sums are not decayed beyond their last key."""
    spec = parse(name)
    for dtype, row in ((torch.float64, "fp64"), (torch.float32, "decay")):
        arguments = inputs(spec, length=200, seed=12, dtype=dtype)
        arguments["log_decay"][:, 180:190] = torch.tensor(
            [-1e4, -50.0, -1e-6, 0.0, -5.0, -1e4, -0.1, 0.0, -1e4, -50.0]
        ).to(dtype)[None, :, None]
        _, state = attend(**tokens(arguments, 0, 190), spec=spec, output_final_state=True)
        later = tokens(arguments, 190, 200)
        expected, _ = attend(
            **later, spec=spec, initial_state=attend(**tokens(arguments, 0, 180), spec=spec, output_final_state=True)[1]
        )
        out, _ = attend(**later, spec=spec, initial_state=state.rollback(10))
        close(out, expected, row, f"{name}, {dtype}")


def test_rollback_of_padded_rows_counts_real_keys():
    spec = parse("taylor:0..2@mean+decay")
    arguments = inputs(spec, batch=2, length=160, seed=13)
    mask = torch.ones(2, 150, dtype=torch.bool)
    mask[0, 30:140] = False
    _, state = attend(**tokens(arguments, 0, 150), spec=spec, key_mask=mask, output_final_state=True)
    out, _ = attend(**tokens(arguments, 150, 160), spec=spec, initial_state=state.rollback(6))
    for b in range(2):
        kept = torch.cat([mask[b].nonzero()[:-6, 0], torch.arange(150, 160)])
        alone = {n: t[b : b + 1, kept] for n, t in arguments.items() if n != "parameters"}
        close(out[b : b + 1], attend(**alone, spec=spec)[0][:, -10:], "fp64", f"row {b}")


MERGING = [n for n in KINDS if parse(n).input_gate != "count"]


@pytest.mark.parametrize("name", MERGING)
def test_merging_two_segments(name):
    spec = parse(name)
    arguments = inputs(spec, batch=2, length=420, seed=14)
    for cut, end in ((1, 3), (3, 200), (40, 90), (150, 151), (200, 400)):
        first = attend(**tokens(arguments, 0, cut), spec=spec, output_final_state=True)[1]
        second = attend(**tokens(arguments, cut, end), spec=spec, output_final_state=True)[1]
        later = tokens(arguments, end, end + 20)
        out, after = attend(**later, spec=spec, initial_state=first.merge(second), output_final_state=True)
        whole = attend(**tokens(arguments, 0, end), spec=spec, output_final_state=True)[1]
        expected, _ = attend(**later, spec=spec, initial_state=whole)
        close(out, expected, "fp64", f"{name}: {cut} and {end - cut} tokens")
        equal(after.count.tolist(), [end + 20] * len(after.count), name)
        back = first.merge(second).rollback(min(end, 64))
        close(
            attend(**later, spec=spec, initial_state=back)[0],
            attend(**later, spec=spec, initial_state=whole.rollback(min(end, 64)))[0],
            "fp64",
            f"{name}: {cut} and {end - cut} tokens, rolled back",
        )


def test_merging_is_associative_and_takes_padded_rows():
    spec = parse("taylor:0..2@mean+w4s2+decay")
    arguments = inputs(spec, batch=2, length=330, seed=15)
    mask = torch.ones(2, 330, dtype=torch.bool)
    mask[0, 10:150] = False
    mask[1, 200:202] = False
    edges = (0, 20, 160, 300)
    parts = [
        attend(**tokens(arguments, a, b), key_mask=mask[:, a:b], spec=spec, output_final_state=True)[1]
        for a, b in itertools.pairwise(edges)
    ]
    later = tokens(arguments, 300, 330)
    _, whole = attend(**tokens(arguments, 0, 300), key_mask=mask[:, :300], spec=spec, output_final_state=True)
    expected, _ = attend(**later, spec=spec, initial_state=whole)
    for merged in (parts[0].merge(parts[1]).merge(parts[2]), parts[0].merge(parts[1].merge(parts[2]))):
        close(attend(**later, spec=spec, initial_state=merged)[0], expected, "fp64", "merged")


def test_merging_refuses_a_gate_by_count():
    spec = parse("unit|identity+gc")
    arguments = inputs(spec, length=10)
    _, state = attend(**arguments, spec=spec, output_final_state=True)
    with refused("count", "merge"):
        state.merge(state)


def test_translating_the_reference_changes_nothing():
    for name in ("taylor:0..2@mean", "taylor:0..4@mean", "taylor:0..2@mean+w5s1+decay", "minimax3:0..4@mean"):
        spec = parse(name)
        arguments = inputs(spec, length=250, heads=2, kv_heads=2, seed=16)
        _, state = attend(**tokens(arguments, 0, 230), spec=spec, output_final_state=True)
        moved = state.translate(
            state.reference + torch.randn(1, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        )
        holds(not torch.allclose(moved.moments, state.moments), "the moments are others")
        later = tokens(arguments, 230, 250)
        close(
            attend(**later, spec=spec, initial_state=moved)[0],
            attend(**later, spec=spec, initial_state=state)[0],
            "fp64",
            name,
        )
        close_states(moved.translate(state.reference), state, "fp64", name)
    with refused("center='mean'"):
        attend(**inputs(parse("power:2"), length=3), spec=parse("power:2"), output_final_state=True)[1].translate(
            torch.zeros(1, 1, 3)
        )


def test_a_given_reference_key_changes_nothing():
    """Whatever key the moments are about, one for each kv head, in every form and across calls."""
    name = "taylor:0..2@mean+w4s1+decay"
    spec = parse(name)
    arguments = inputs(spec, batch=2, length=200, heads=4, kv_heads=2, seed=18)
    expected, _ = attend(**arguments, spec=spec)
    given = {"reference_key": torch.tensor([[0.5, -1.0, 2.0], [1.0, 1.0, -0.3]], dtype=torch.float64)}
    for form, size in (("parallel", None), ("chunked", 30), ("recurrent", None)):
        out, state = attend(
            **{**arguments, "parameters": given}, spec=spec, form=form, chunk_size=size, output_final_state=True
        )
        close(out, expected, "fp64", form)
        wanted = given["reference_key"] * state.scale**0.5
        close(state.reference, wanted.expand(2, 2, 3), "fp64", f"{form}: the state's reference")
    out, _ = in_parts({**arguments, "parameters": given}, spec, [3, 150])
    close(out, expected, "fp64", "in parts")


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
