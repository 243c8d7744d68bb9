"""The compiled loops against the torch forms: every value, token by token, in chunks, and where they must step aside."""

from __future__ import annotations

import copy
import dataclasses
import gc
import logging
import os
import pickle
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from termwise.attention import backends
from termwise.attention.backends import compiled, compiled_loops, products
from termwise.attention.backends.gradients import folded, reading
from termwise.attention.backends.products import fold_into, parts_of, read_from
from termwise.attention.backends.tables import tables_of
from termwise.attention.cost import cost
from termwise.attention.forms import attend
from termwise.attention.monomials import features, multiplicities, total_width
from termwise.attention.state import AttentionState
from tests.attention.compare import close, close_states, equal, holds, refused, relative_rms, same_bits
from tests.attention.running import clone
from tests.attention.slicing import tokens
from tests.attention.values import NAMES, inputs, is_long_series, spec_of, turn_of, window_of

SERVED = [n for n in NAMES if spec_of(n).is_constant_size and not is_long_series(spec_of(n))]


@pytest.fixture
def torch_forms(monkeypatch):
    """What happens where numba does not load."""
    monkeypatch.setattr(backends, "compiled_loops", lambda: None)
    for steps in ("compiled_step", "evicting_step"):
        monkeypatch.setattr(f"termwise.attention.{steps}.compiled_loops", lambda: None)


def stepped(
    arguments: dict, spec, first: int, state: AttentionState | None = None
) -> tuple[torch.Tensor, AttentionState]:
    """A first part at once, the rest token by token."""
    length, outputs = arguments["query"].shape[1], []
    with torch.no_grad():
        for start, stop in [(0, first), *((t, t + 1) for t in range(first, length))]:
            form = "auto" if stop - start == 1 else "parallel"
            out, state = attend(
                **tokens(arguments, start, stop), spec=spec, form=form, initial_state=state, output_final_state=True
            )
            outputs.append(out)
    assert state is not None
    return torch.cat(outputs, dim=1), state


def test_numba_is_here():
    holds(compiled_loops() is not None, "the development environment has numba: all tests below mean something")


@pytest.mark.parametrize("name", SERVED)
def test_steps(name):
    """Token by token from a short prompt, past two folds, against all at once: outputs and state, in float64."""
    spec, turn = spec_of(name), turn_of(name)
    kv_heads, group, batch = ((1, 2, 1), (2, 2, 1), (2, 1, 2), (1, 1, 2))[turn % 4]
    arguments = inputs(
        spec, length=window_of(spec) + 200, heads=kv_heads * group, kv_heads=kv_heads, batch=batch, seed=turn
    )
    expected, end = attend(**arguments, spec=spec, form="parallel", output_final_state=True)
    out, state = stepped(arguments, spec, first=1 + turn % 9)
    close(out, expected, "fp64", name)
    close_states(state, end, "fp64", name)
    # Where keys leave all the time there is nothing for it to do.
    every = spec.local.evict_every if spec.local else None
    is_general = every is not None and state.count.max() % every == 0
    equal(state.room is not None, not is_general, f"{name}: the compiled step ran")


@pytest.mark.parametrize("name", SERVED)
def test_steps_in_float32(name):
    """The promise for float32, from inputs of bfloat16 in turn."""
    spec = spec_of(name)
    length = window_of(spec) + 135
    exact = inputs(spec, length=length, heads=2, kv_heads=1, seed=turn_of(name), mean=0.5, spread=0.7)
    given = clone(exact, torch.bfloat16 if turn_of(name) % 2 else torch.float32, requires_grad=False)
    wide = clone(given, torch.float32, requires_grad=False)
    expected, _ = attend(**clone(given, torch.float64, requires_grad=False), spec=spec, form="parallel")
    parallel, _ = attend(**wide, spec=spec, form="parallel")
    out, state = stepped(wide, spec, first=4)
    error, allowed = (float((o.double() - expected).square().mean().sqrt()) for o in (out, parallel))
    # No worse than a few times the rounding of the parallel form on these very numbers, sums that cancel included.
    holds(
        error <= 8 * allowed + 1e-5 * float(expected.square().mean().sqrt()),
        f"{name}: {error:.3g}, parallel {allowed:.3g}",
    )
    rough, end = stepped(given, spec, first=4)
    equal((rough.dtype, end.key.dtype, state.key.dtype), (given["query"].dtype, torch.float32, torch.float32), name)
    close(rough.double(), out.to(rough.dtype).double(), "rounded", f"{name}: the same sums, rounded once")


@pytest.mark.parametrize("name", [n for n in SERVED if turn_of(n) % 3 == 0])
def test_two_continuations_of_one_state(name):
    """Each goes on as if it were alone, past a fold, and the state they began from is what it was."""
    spec = spec_of(name)
    arguments = inputs(spec, length=90, heads=2, kv_heads=1, seed=3)
    _, begun = stepped(tokens(arguments, 0, 60), spec, first=50)
    before = {n: t.clone() for n, t in begun.tensors.items()}
    one, two = (inputs(spec, length=140, heads=2, kv_heads=1, seed=s) for s in (4, 5))
    states, outputs = [begun, begun], [[], []]
    for t in range(140):
        for i, branch in enumerate((one, two)):
            with torch.no_grad():
                out, states[i] = attend(
                    **tokens(branch, t, t + 1), spec=spec, initial_state=states[i], output_final_state=True
                )
            outputs[i].append(out)
    for i, branch in enumerate((one, two)):
        expected, end = attend(**branch, spec=spec, initial_state=begun, output_final_state=True, form="parallel")
        close(torch.cat(outputs[i], dim=1), expected, "fp64", f"{name}, branch {i}")
        close_states(states[i], end, "fp64", f"{name}, branch {i}")
    for field, tensor in begun.tensors.items():
        same_bits(tensor, before[field], f"{name}: {field} of the state both began from")


@pytest.mark.parametrize("name", ["taylor:0..2@mean+w8s2", "softmax", "elu1", "taylor:0..2@mean+decay"])
def test_rollback_reorder_and_step_again(name):
    spec = spec_of(name)
    arguments = inputs(spec, length=150, heads=2, kv_heads=1, batch=2, seed=3)
    _, state = stepped(tokens(arguments, 0, 140), spec, first=20)
    back = state.rollback(30).permute(torch.tensor([1, 0, 1]))
    with torch.no_grad():
        expected, end = attend(**arguments, spec=spec, form="parallel", output_final_state=True)
        swapped = tokens(arguments, 110, 150)
        again = {n: t[[1, 0, 1]] for n, t in swapped.items() if n != "parameters"} | {
            "parameters": swapped["parameters"]
        }
    out, state = stepped(again, spec, first=1, state=back)
    close(out, expected[[1, 0, 1], 110:], "fp64", name)
    close_states(state, end.permute(torch.tensor([1, 0, 1])), "fp64", name)


def test_padded_prompts_then_steps():
    """Sequences of different lengths fold at different steps."""
    for name in ("taylor:0..2@mean+w8s2", "power:2+decay", "unit|identity+gc"):
        spec = spec_of(name)
        arguments = inputs(spec, length=230, heads=2, kv_heads=1, batch=2, seed=8)
        mask = torch.ones(2, 230, dtype=torch.bool)
        mask[1, :37] = False
        expected, _ = attend(**arguments, spec=spec, key_mask=mask, form="parallel")
        prompt = tokens({**arguments, "key_mask": mask}, 0, 60)
        with torch.no_grad():
            first, state = attend(**prompt, spec=spec, output_final_state=True)
        out, _ = stepped(tokens(arguments, 60, 230), spec, first=1, state=state)
        close(torch.cat([first, out], dim=1), expected, "fp64", name)


def test_what_the_step_leaves_to_the_general_engine():
    """Gradients, masked tokens and a first token; and an error is worded by it."""
    spec = spec_of("taylor:0..2@mean")
    arguments = inputs(spec, length=40, requires_grad=True)
    _, state = attend(
        **clone(tokens(arguments, 0, 39), torch.float64, requires_grad=False), spec=spec, output_final_state=True
    )
    last = tokens(arguments, 39, 40)
    out, after = attend(**last, spec=spec, initial_state=state, output_final_state=True)
    holds(out.requires_grad and after.room is None, "gradients flow")
    with torch.no_grad():
        plain, _ = attend(**last, spec=spec, initial_state=state)
        masked, unmoved = attend(
            **last,
            spec=spec,
            initial_state=state,
            key_mask=torch.zeros(1, 1, dtype=torch.bool),
            output_final_state=True,
        )
    close(plain, out.detach(), "fp64", "with and without gradients")
    same_bits(masked, torch.zeros_like(masked), "a padded token has no output")
    equal(unmoved.count.tolist(), [39], "and does not count")
    with torch.no_grad(), pytest.raises(ValueError, match="allowed are numbers up to 0"):
        attend(**last, spec=spec, initial_state=state, log_decay=torch.full((1, 1, 1), 0.5, dtype=torch.float64))


def test_a_room_does_not_disturb_a_graph():
    """A gradient through an earlier state is not spoilt by tokens appended behind it; states cross inference mode."""
    spec = spec_of("taylor:0..2@mean+w8s2")
    arguments = inputs(spec, length=140)
    with torch.inference_mode():
        _, inner = stepped(tokens(arguments, 0, 100), spec, first=90)
    _, state = stepped(tokens(arguments, 100, 120), spec, first=1, state=inner)
    token = {n: t.requires_grad_() if n != "parameters" else t for n, t in tokens(arguments, 120, 121).items()}
    out, _ = attend(**token, spec=spec, initial_state=state)
    stepped(clone(tokens(arguments, 121, 125), torch.float64, requires_grad=False), spec, first=1, state=state)
    out.sum().backward()
    holds(bool(torch.isfinite(token["query"].grad).all()), "backward runs")


@pytest.mark.parametrize("name", ["taylor:0..2", "taylor:0..2@mean+w8s2", "elu1"])
def test_live_bytes_of_steps(name):
    """A room holds as many keys as a buffer ever does and one more, the token that makes a fold due: never more, however long."""
    spec = spec_of(name)
    exact = inputs(spec, length=600, dtype=torch.float32)
    _, state = stepped(tokens(exact, 0, 150), spec, first=140)
    sizes = []
    for t in range(150, 600):
        _, state = stepped(tokens(exact, t, t + 1), spec, first=1, state=state)
        sizes.append(state.nbytes)
    most = max(cost(spec, 3, 4, length).state_bytes for length in range(512, 576))
    equal([max(sizes[:200]), max(sizes[200:])], [most + 4 * (3 + 4) + 8] * 2, f"{name}: bytes")


@pytest.mark.parametrize("name", ["taylor:0..2@mean+w8s2", "softmax"])
@pytest.mark.parametrize("how", [copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state))])
def test_a_copied_state_goes_on_by_itself(name, how):
    """Copies of a state in a room, its arrays ready: both go on, and neither sees the other."""
    spec = spec_of(name)
    arguments = inputs(spec, length=200)
    _, state = stepped(tokens(arguments, 0, 120), spec, first=100)
    other = how(state)
    expected, end = attend(**arguments, spec=spec, form="parallel", output_final_state=True)
    for begun in (state, other):
        out, after = stepped(tokens(arguments, 120, 200), spec, first=1, state=begun)
        close(out, expected[:, 120:], "fp64", name)
        close_states(after, end, "fp64", name)


@pytest.mark.parametrize("name", ["taylor:0..2@mean+w8s2", "softmax"])
def test_threads_that_go_on_from_one_state(name):
    """Each claims a place or copies: the numbers are those of a thread alone."""
    spec = spec_of(name)
    arguments = inputs(spec, length=150)
    _, state = stepped(tokens(arguments, 0, 100), spec, first=90)
    branches = [inputs(spec, length=60, seed=seed) for seed in range(8)]
    alone = [stepped(branch, spec, first=1, state=state)[0] for branch in branches]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda branch: stepped(branch, spec, first=1, state=state)[0], branches))
    for got, wanted in zip(together, alone, strict=True):
        same_bits(got, wanted, name)


def test_ranks_written_out_then_a_step():
    """A public method that only widens counts and ranks."""
    spec = spec_of("taylor:0..2@mean+w8s2")
    arguments = inputs(spec, length=200, batch=3)
    expected, _ = attend(**arguments, spec=spec, form="parallel")
    _, state = stepped(tokens(arguments, 0, 120), spec, first=100)
    out, _ = stepped(tokens(arguments, 120, 200), spec, first=1, state=state.with_batch_ranks())
    close(out, expected[:, 120:], "fp64", "with_batch_ranks")


@pytest.mark.parametrize("wanted", ["query", "key", "value"])
@pytest.mark.parametrize("form", ["recurrent", "chunked"])
def test_gradients_of_one_input_alone(wanted, form):
    """Moments that a graph has saved are not added to in place."""
    spec, found = spec_of("taylor:0..2"), []
    for one in ("parallel", form):
        arguments = inputs(spec, length=400)
        arguments[wanted].requires_grad_()
        out, _ = attend(**arguments, spec=spec, form=one, output_final_state=True)
        found.append(torch.autograd.grad(out.square().sum(), arguments[wanted])[0])
    close(found[1], found[0], "fp64 gradient", f"{form}: gradient of {wanted}")


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize(
    ("form", "size", "length"),
    [("chunked", None, 257), ("chunked", None, 513), ("chunked", 64, 193), ("recurrent", None, 140)],
)
def test_gradients_where_a_block_is_one_token(form, size, length, heads):
    """One column is not the same as one coefficient for all columns."""
    for name in ("taylor:0..2@mean", "taylor:0..2@mean+decay"):
        spec, found = spec_of(name), []
        for one, chunk in (("parallel", None), (form, size)):
            arguments = inputs(spec, length=length, heads=heads, kv_heads=1, requires_grad=True)
            out, _ = attend(**arguments, spec=spec, form=one, chunk_size=chunk)
            found.append(torch.autograd.grad(out.square().sum(), [arguments[n] for n in ("query", "key", "value")]))
        for n, got, wanted in zip(("query", "key", "value"), found[1], found[0], strict=True):
            close(got, wanted, "fp64 gradient", f"{name}, {form} {size}, {length} tokens: gradient of {n}")


def test_gradients_where_the_last_part_is_one_column(monkeypatch):
    """Features of 145 queries are made 3 at a time, by a cache that holds those of 2."""
    spec = spec_of("taylor:0..4@mean")
    shape = {"length": 300, "heads": 1, "key_width": 12, "value_width": 2, "spread": 0.7}
    _, state = attend(**inputs(spec, **shape), spec=spec, form="chunked", output_final_state=True)
    tables = tables_of(spec, 12, torch.float64)
    for name in ("IN_CACHE", "KEPT"):
        monkeypatch.setattr(products, name, 2 * tables.num_monomials)
    parts = [part.stop - part.start for part in parts_of(tables, 145)]
    equal((len(parts), parts[-1]), (49, 1), "parts, the last of them")
    found = []
    for compiled_too in (True, False):
        arguments = inputs(spec, **(shape | {"length": 145}), seed=1, requires_grad=True)
        with pytest.MonkeyPatch.context() as patch:
            if not compiled_too:
                patch.setattr(backends, "compiled_loops", lambda: None)
            out, _ = attend(**arguments, spec=spec, form="parallel", initial_state=state)
            found.append(torch.autograd.grad(out.square().sum(), [arguments[n] for n in ("query", "key", "value")]))
    for got, wanted in zip(*found, strict=True):
        close(got, wanted, "fp64 gradient", "compiled against torch")


def test_gradients_of_a_given_state_through_one_token():
    """Every tensor of it, against the torch form."""
    spec, found = spec_of("taylor:0..2@mean+w8s2"), []
    _, state = attend(**inputs(spec, length=300, heads=1), spec=spec, output_final_state=True)
    names = ("key", "value", "moments", "mass", "decayed_count", "reference")
    for compiled_too in (True, False):
        leaves = {n: state.tensors[n].clone().requires_grad_() for n in names}
        with pytest.MonkeyPatch.context() as patch:
            if not compiled_too:
                patch.setattr(backends, "compiled_loops", lambda: None)
            begun = dataclasses.replace(state, **leaves)
            out, _ = attend(**inputs(spec, length=1, heads=1, seed=2), spec=spec, initial_state=begun)
            found.append(torch.autograd.grad(out.square().sum(), list(leaves.values())))
    for name, got, wanted in zip(names, *found, strict=True):
        close(got, wanted, "fp64 gradient", f"gradient of {name}")


def test_a_gradient_of_a_gradient_is_refused():
    """By either road; silently it would lack a term."""
    spec = spec_of("taylor:0..2")
    _, state = attend(**inputs(spec, length=200), spec=spec, output_final_state=True)
    arguments = inputs(spec, length=3, requires_grad=True)
    out, _ = attend(**arguments, spec=spec, initial_state=state, form="parallel")
    with pytest.raises(RuntimeError) as error:
        torch.autograd.grad(out.sum(), arguments["query"], create_graph=True)
    holds("gradient of a gradient" in str(error.value), str(error.value))


@pytest.mark.parametrize("name", ["taylor:0..2@mean", "elu1"])
def test_old_states_are_freed_at_once(name):
    """No cycle keeps the moments and buffers of earlier folds until the collector runs."""
    spec = spec_of(name)
    _, state = stepped(inputs(spec, length=150), spec, first=140)
    old = weakref.ref(state.moments)
    gc.collect()
    gc.disable()
    try:
        _, state = stepped(inputs(spec, length=300, seed=1), spec, first=1, state=state)
        equal(old(), None, f"{name}: what an earlier fold left")
    finally:
        gc.enable()


def test_a_default_device_elsewhere():
    """CPU tensors stay on the CPU, and nothing of the other device is kept for later calls."""
    spec = spec_of("taylor:0..2")
    arguments = inputs(spec, length=400)
    expected, _ = attend(**arguments, spec=spec, form="chunked")
    products._thread.__dict__.clear()
    with torch.device("meta"), torch.no_grad():
        inside, _ = attend(**arguments, spec=spec, form="chunked", chunk_size=400)
    with torch.no_grad():
        after, _ = attend(**arguments, spec=spec, form="chunked")
    close(after, expected, "fp64", "afterwards")
    equal(inside.device.type, "cpu", "inside")


@pytest.mark.parametrize("name", ["exp", "exp|l2", "taylor:0..2"])
def test_steps_under_autocast(name):
    """Sums as without it, in the type of the query."""
    spec = spec_of(name)
    arguments = inputs(spec, length=150, dtype=torch.float32)
    _, state = stepped(tokens(arguments, 0, 140), spec, first=130)
    found = []
    for is_on in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_on):
            whole, _ = attend(**arguments, spec=spec)
            found.append((whole, stepped(tokens(arguments, 140, 150), spec, first=1, state=state)[0]))
    for got, wanted in zip(*found, strict=True):
        same_bits(got, wanted, name)


@pytest.mark.parametrize("name", ["taylor:0..2@mean", "softmax"])
def test_a_step_of_no_sequences(name):
    spec = spec_of(name)
    empty = {n: t[:0] if n != "parameters" else t for n, t in inputs(spec, length=3).items()}
    _, state = attend(**tokens(empty, 0, 2), spec=spec, output_final_state=True)
    out, _ = attend(**tokens(empty, 2, 3), spec=spec, initial_state=state, output_final_state=True)
    equal(tuple(out.shape), (0, 1, 2, 4), name)


def test_a_traced_step_is_no_constant():
    """What numba computes would be one; a tracer gets the torch forms."""
    equal(float(in_a_child(TRACED).split()[-1]) < 1e-5, True, "relative error on other inputs than those traced")


TRACED = """
import warnings, torch
warnings.simplefilter("ignore")
from termwise.attention.forms import attend
from termwise.attention.catalogue import catalogue
spec = catalogue["taylor:0..2"]
given, others = ([torch.randn(1, 140, 1, 3) for _ in range(3)] for _ in range(2))
first, last = [t[:, :139] for t in given], [t[:, 139:] for t in given]
with torch.no_grad():
    _, state = attend(*first, spec, output_final_state=True)
    traced = torch.jit.trace(lambda q, k, v: attend(q, k, v, spec, initial_state=state)[0], last, check_trace=False)
    other = [t[:, :1] for t in others]
    wanted = attend(*other, spec, initial_state=state)[0]
    print(float((traced(*other) - wanted).norm() / wanted.norm()))
"""


def test_forward_mode_over_a_cache():
    """The tangent of a value goes through, as in the general engine."""
    spec = spec_of("exp")
    arguments = inputs(spec, length=20)
    _, state = attend(**tokens(arguments, 0, 19), spec=spec, output_final_state=True)
    last, tangent = tokens(arguments, 19, 20), torch.ones(1, 1, 1, 4, dtype=torch.float64)
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(last["value"], tangent)
        out, _ = attend(**{**last, "value": dual}, spec=spec, initial_state=state, form="parallel")
        found = torch.autograd.forward_ad.unpack_dual(out).tangent
    moved, _ = attend(**{**last, "value": last["value"] + tangent}, spec=spec, initial_state=state)
    still, _ = attend(**last, spec=spec, initial_state=state)
    close(found, moved - still, "fp64", "the output is linear in the value")


def test_forward_mode_is_not_lost():
    """A step has no tangents to give: refused by torch, never silently without."""
    spec = spec_of("taylor:0..2")
    arguments = inputs(spec, length=130)
    _, state = stepped(tokens(arguments, 0, 129), spec, first=120)
    last = tokens(arguments, 129, 130)
    with torch.autograd.forward_ad.dual_level():
        last["query"] = torch.autograd.forward_ad.make_dual(last["query"], torch.ones_like(last["query"]))
        with pytest.raises(NotImplementedError) as error:
            attend(**last, spec=spec, initial_state=state)
    holds("jvp" in str(error.value), str(error.value))


def test_a_state_of_inference_mode_goes_on_outside():
    """Without a gradient nothing has to be saved of it, and folds do not ask."""
    spec = spec_of("taylor:0..2@mean")
    arguments = inputs(spec, length=400)
    expected, _ = attend(**arguments, spec=spec, form="parallel")
    with torch.inference_mode():
        _, state = stepped(tokens(arguments, 0, 150), spec, first=140)
    out, _ = attend(
        **tokens(arguments, 150, 400), spec=spec, initial_state=state, form="chunked", output_final_state=True
    )
    close(out, expected[:, 150:], "fp64", "gradients enabled, none wanted")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_makes_threads_of_its_own():
    told = in_a_child(FORKED)
    equal(told.split()[-4:], ["child", "True", "parent", "0"], told)


FORKED = """
import os, signal, torch
import termwise.attention.compiled_step as step
from termwise.attention.forms import attend
from termwise.attention.catalogue import catalogue
step.SHARED = 0
torch.set_num_threads(2)
x = torch.randn(1, 140, 4, 2)
_, state = attend(x, x, x, catalogue["taylor:0..2"], output_final_state=True)
run = lambda: attend(x[:, :1], x[:, :1], x[:, :1], catalogue["taylor:0..2"], initial_state=state, output_final_state=True)[0]
out = run()
child = os.fork()
if child == 0:
    signal.alarm(30)
    print("child", bool((run() == out).all()), flush=True)
    os._exit(0)
print("parent", os.waitpid(child, 0)[1])
"""


def test_states_stacked_with_and_without_a_copy():
    spec = spec_of("taylor:0..2")
    exact = inputs(spec, length=200, dtype=torch.float32)
    _, state = attend(**exact, spec=spec, output_final_state=True)
    for order in ((state, state.reading_half()), (state.reading_half(), state)):
        equal(AttentionState.stack(order).half, None, "a copy of all or of none")
    equal(AttentionState.stack([state.reading_half()] * 2).half.shape[0], 2, "of all")


def test_merged_states_fold_when_due():
    """A boundary that is no multiple of 64."""
    spec = spec_of("taylor:0..2@mean")
    arguments = inputs(spec, length=500)
    expected, _ = attend(**arguments, spec=spec, form="parallel")
    first, second = (
        attend(**tokens(arguments, *part), spec=spec, output_final_state=True)[1] for part in ((0, 30), (30, 250))
    )
    out, state = stepped(tokens(arguments, 250, 500), spec, first=1, state=first.merge(second))
    close(out, expected[:, 250:], "fp64", "merged, then token by token")
    holds(state.key.shape[2] <= 128, f"{state.key.shape[2]} keys wait to be folded")


def test_an_old_room_is_let_go():
    """A state whose tensors have been replaced keeps nothing of the old buffer alive."""
    for name in ("taylor:0..2@mean+w8s2", "softmax"):
        _, state = stepped(inputs(spec_of(name), length=120, batch=2), spec_of(name), first=100)
        holds(state.room is not None, f"{name}: in a room")
        for changed in (state.permute(torch.tensor([1, 0])), state.rollback(3), AttentionState.stack(state.split())):
            equal(changed.room, None, f"{name}: a copy of the buffer is no part of the room")


def test_threads_share_the_heads(monkeypatch):
    """The same bits from one thread and from three, padding and grouped heads included."""
    monkeypatch.setattr("termwise.attention.compiled_step.SHARED", 0)
    spec = spec_of("taylor:0..2@mean+w8s2")
    arguments = inputs(spec, length=300, heads=8, kv_heads=4, batch=2)
    outputs = []
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        outputs.append(stepped(arguments, spec, first=3)[0])
    same_bits(*outputs, "one thread and three")


@pytest.mark.parametrize("name", ["taylor:0..2", "taylor:0..4@mean+w8s2", "power:2", "taylor:0,2,4"])
def test_reading_a_bfloat16_copy(name):
    """Steps read moments rounded to bfloat16 and nothing else; sums stay in fp32, and folds refresh the copy."""
    spec = spec_of(name)
    arguments = inputs(spec, length=400, heads=2, kv_heads=1, dtype=torch.float32, spread=0.7)
    _, state = stepped(tokens(arguments, 0, 200), spec, first=190)
    half = state.reading_half()
    equal(
        (half.half.dtype, half.nbytes - state.nbytes), (torch.bfloat16, state.moments.nbytes // 2), f"{name}: the copy"
    )
    exact, end = stepped(tokens(arguments, 200, 400), spec, first=1, state=state)
    rough, after = stepped(tokens(arguments, 200, 400), spec, first=1, state=half)
    error = relative_rms(rough, exact)
    holds(1e-6 < error < 4e-3, f"{name}: {error:.3g}, bfloat16 rounds to 2e-3 on average and the buffer is exact")
    close_states(dataclasses.replace(after, half=None), end, "rounded", f"{name}: sums")
    same_bits(after.half, after.moments.bfloat16(), f"{name}: the copy after two folds")
    kept = state.permute(torch.tensor([0, 0])).reading_half().permute(torch.tensor([1]))
    same_bits(kept.half, half.half, f"{name}: the copy follows the batch")


def test_a_copy_needs_moments_in_float32():
    double, cache = inputs(spec_of("taylor:0..2"), length=4), inputs(spec_of("softmax"), length=4, dtype=torch.float32)
    for name, arguments, words in (("taylor:0..2", double, "torch.float64"), ("softmax", cache, "no moments")):
        _, state = attend(**arguments, spec=spec_of(name), output_final_state=True)
        with refused(words, "needs moments in float32"):
            state.reading_half()


def test_a_merged_and_a_translated_copy():
    spec = spec_of("taylor:0..2@mean")
    arguments = inputs(spec, length=400, dtype=torch.float32)
    first, second = (
        attend(**tokens(arguments, *part), spec=spec, output_final_state=True)[1] for part in ((0, 200), (200, 400))
    )
    for state in (first.reading_half().merge(second), first.reading_half().translate(second.reference)):
        same_bits(state.half, state.moments.bfloat16(), "the copy of the new moments")


@pytest.mark.parametrize("orders", [(0, 1, 2), (0, 1, 2, 3, 4), (2,), (0, 2, 4), (1, 3), (0,), (1,)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_folding_and_reading(orders, dtype):
    """The compiled products against features and einsum written out."""
    spec = spec_of(f"polynomial:{','.join(map(str, orders))}({','.join(['0.5'] * len(orders))})|l2")
    loops, d, e, heads = compiled_loops(), 5, 3, 2
    make = torch.Generator().manual_seed(1)
    key, query = (torch.randn(heads, 11, d, generator=make, dtype=dtype) for _ in range(2))
    value, weight = (
        torch.randn(heads, 11, e, generator=make, dtype=dtype),
        torch.rand(heads, 11, generator=make, dtype=dtype),
    )
    tables = tables_of(spec, d, dtype)
    moments, mass = (
        torch.ones(heads, total_width(d, orders), e, dtype=dtype),
        torch.ones(heads, total_width(d, orders), dtype=dtype),
    )
    phi = features(key, orders) * weight[..., None]
    wanted = moments + torch.einsum("nsf,nse->nfe", phi, value), mass + phi.sum(dim=1)
    fold_into(loops, tables, moments, mass, key, value, weight)
    row = "fp64" if dtype == torch.float64 else "fp32"
    close(moments, wanted[0], row, "moments")
    close(mass, wanted[1], row, "mass")
    gains = torch.rand(heads, len(tables.offsets), 11, generator=make, dtype=dtype)
    per_feature = torch.cat(
        [torch.from_numpy(multiplicities(d, n)).to(dtype)[:, None] * gains[:, n : n + 1] for n in orders], dim=1
    )
    seen = features(query, orders).transpose(1, 2) * per_feature
    u, z = read_from(loops, tables, moments, mass, query, gains)
    close(u, torch.einsum("nfc,nfe->nce", seen, moments), row, "weighted")
    close(z, torch.einsum("nfc,nf->nc", seen, mass), row, "mass")


@pytest.mark.parametrize("orders", [(0, 1, 2), (0, 1, 2, 3, 4), (2,), (0, 2, 4), (1, 3), (0,), (1,)])
@pytest.mark.parametrize("is_shared", [True, False])
def test_gradients_of_folding_and_reading(orders, is_shared):
    """Against autograd through features and einsum written out: every tensor that goes in."""
    spec = spec_of(f"polynomial:{','.join(map(str, orders))}({','.join(['0.5'] * len(orders))})|l2")
    loops, tables, d, e, heads = compiled_loops(), tables_of(spec, 5, torch.float64), 5, 3, 2
    make = torch.Generator().manual_seed(1)

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=make, dtype=torch.float64).requires_grad_()

    num_features, length = total_width(d, orders), 11
    given = [
        leaf(heads, num_features, e),
        leaf(heads, num_features),
        leaf(heads, length, d),
        leaf(heads, length, e),
        leaf(heads, length),
    ]
    query = leaf(heads, length, d)
    gains = (
        torch.ones(1, len(tables.offsets), length, dtype=torch.float64)
        if is_shared
        else leaf(heads, len(tables.offsets), length)
    )
    moments, mass = folded(loops, tables, *given)
    u, z = reading(loops, tables, moments, mass, query, gains)
    phi = features(given[2], orders) * given[4][..., None]
    wanted_moments, wanted_mass = given[0] + torch.einsum("nsf,nse->nfe", phi, given[3]), given[1] + phi.sum(dim=1)
    per_feature = [torch.from_numpy(multiplicities(d, n))[:, None] * gains[:, n : n + 1] for n in orders]
    seen = features(query, orders).transpose(1, 2) * torch.cat(per_feature, dim=1)
    wanted = torch.einsum("nfc,nfe->nce", seen, wanted_moments), torch.einsum("nfc,nf->nc", seen, wanted_mass)
    close(u, wanted[0], "fp64", "weighted")
    close(z, wanted[1], "fp64", "mass")
    leaves = [*given, query, *([] if is_shared else [gains])]
    back = [torch.randn(t.shape, generator=make, dtype=torch.float64) for t in (u, z)]
    expected = torch.autograd.grad(wanted, leaves, back, allow_unused=True)
    found = torch.autograd.grad((u, z), leaves, back)
    for name, g, w, t in zip(
        ("moments", "mass", "key", "value", "weight", "query", "gains"), found, expected, leaves, strict=False
    ):
        close(g, torch.zeros_like(t) if w is None else w, "fp64 gradient", f"orders {orders}: gradient of {name}")


@pytest.mark.parametrize("name", [n for n in SERVED if turn_of(n) % 4 == 1])
def test_chunks_with_and_without_numba(name, request):
    spec = spec_of(name)
    arguments = inputs(spec, length=window_of(spec) + 150, heads=2, kv_heads=1, batch=2, seed=5)
    with torch.no_grad():
        out, state = attend(**arguments, spec=spec, form="chunked", chunk_size=32, output_final_state=True)
        request.getfixturevalue("torch_forms")
        expected, end = attend(**arguments, spec=spec, form="chunked", chunk_size=32, output_final_state=True)
        equal(end.room, None, "no compiled step")
    close(out, expected, "fp64", name)
    close_states(state, end, "fp64", name)


def test_a_given_state_is_not_written_into():
    """Chunks add to moments of their own in place, never to those of the state they were given."""
    spec = spec_of("taylor:0..2@mean")
    arguments = inputs(spec, length=600)
    with torch.no_grad():
        _, state = attend(**tokens(arguments, 0, 300), spec=spec, form="chunked", output_final_state=True)
        before = {n: t.clone() for n, t in state.tensors.items()}
        for _ in range(2):
            attend(
                **tokens(arguments, 300, 600), spec=spec, form="chunked", initial_state=state, output_final_state=True
            )
    for name, tensor in state.tensors.items():
        same_bits(tensor, before[name], name)


def test_without_numba_it_is_said_once(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "numba", None)
    compiled_loops.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            equal([compiled_loops(), compiled_loops()], [None, None])
        equal([("numba does not load" in r.message) for r in caplog.records], [True], "one warning")
    finally:
        compiled_loops.cache_clear()


def in_a_child(program: str, **environment: str) -> str:
    child = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
        check=False,
    )
    return child.stderr + child.stdout


SUM = """
import sys, torch
from termwise.attention.forms import attend
from termwise.attention.catalogue import catalogue
x = torch.ones(1, 4, 1, 2)
_, state = attend(x, x, x, catalogue["taylor:0..2"], output_final_state=True)
out, state = attend(x[:, :1], x[:, :1], x[:, :1], catalogue["taylor:0..2"], initial_state=state, output_final_state=True)
print(float(out.sum()), "numba" in sys.modules, state.room is not None)
"""


def test_the_switch(tmp_path):
    """Off: no numba is loaded. Cached: compiled code stands in the user's cache folder, nowhere else. Anything else is refused."""
    equal(in_a_child(SUM, TERMWISE_COMPILED="off").split(), ["2.0", "False", "False"])
    kept = {"TERMWISE_COMPILED": "cached", "TERMWISE_CACHE": str(tmp_path)}
    told = in_a_child(SUM, **kept)
    holds("compiling attention for this machine, once" in told and told.endswith("2.0 True True\n"), told)
    holds(any(tmp_path.rglob("*.nbi")), "the index of compiled code")
    equal(in_a_child(SUM, **kept).split(), ["2.0", "True", "True"], "the second time nothing is compiled or said")
    holds("allowed are cached, uncached, off" in in_a_child(SUM, TERMWISE_COMPILED="maybe"), "a misspelt switch")


def test_a_folder_nobody_can_write(tmp_path):
    """Said, and nothing is kept anywhere else: not beside the source either."""
    (tmp_path / "file").write_text("in the way")
    beside = Path(compiled.__file__).parent / "__pycache__"
    before = set(beside.glob("*.nb?"))
    told = in_a_child(SUM, TERMWISE_COMPILED="cached", TERMWISE_CACHE=str(tmp_path / "file" / "below"))
    holds("2.0 True True" in told and "cannot be kept" in told, told)
    equal(set(beside.glob("*.nb?")) - before, set(), "compiled code beside the source")


def test_cache_folders(monkeypatch):
    monkeypatch.delenv("TERMWISE_CACHE", raising=False)
    for system, part in (("linux", ".cache"), ("darwin", "Caches"), ("win32", "Local")):
        monkeypatch.setattr(compiled.sys, "platform", system)
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.delenv("LOCALAPPDATA", raising=False)
        holds(part in str(compiled.cache_folder()), f"{system}: {compiled.cache_folder()}")


def test_nan_and_infinity_are_not_swallowed():
    """Sums may be taken in any order, but what is no number stays none."""
    spec = spec_of("taylor:0..2@mean+w8s2")
    arguments = inputs(spec, length=200)
    _, state = stepped(tokens(arguments, 0, 199), spec, first=190)
    last = {n: t.clone() if n != "parameters" else t for n, t in tokens(arguments, 199, 200).items()}
    last["query"][0, 0, 1] = torch.nan
    with torch.no_grad():
        out, _ = attend(**last, spec=spec, initial_state=state)
    equal(out.isnan()[0, 0, :, 0].tolist(), [False, True], "the head whose query is NaN, no other")
    holds(bool(np.isfinite(out[0, 0, 0].numpy()).all()), "the other head")
