"""Training in chunks: the gradients of the parallel form, from a few states instead of tokens x features."""

from __future__ import annotations

import dataclasses
import sys
import weakref
from math import comb, isqrt

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from termwise.attention import blocks
from termwise.attention.forms import attend
from termwise.attention.rows import RowCounts
from termwise.attention.state import AttentionState
from tests.attention.compare import all_close, close, equal, holds, same_bits
from tests.attention.peak import MIB, peaks_of
from tests.attention.running import clone, run_form, weights_like
from tests.attention.slicing import tokens
from tests.attention.values import inputs, spec_of

VALUES = (
    "taylor:0..2", "taylor:0..4@mean+gi+ga+decay", "taylor:0..2@mean+w8s2+decay", "taylor:0..2+w70s3", "power:3|identity+gi+ga+decay",
    "elu1|runninggate+decay", "relu:2+decay", "taylor:0..2|layer", "taylor:0..2@mean+gc", "drop+w8s2|l2",
    "drop+w8s2h4e16", "taylor:0..2@mean+w8s1h4e16+gi+ga", "taylor:0..1@mean3+w4h3e32",
)  # fmt: skip
BOTH_WAYS = ("taylor:0..2", "taylor:0..2@mean|rms+gi+gb", "elu1", "power:2", "unit|identity+gc", "elu1|runninggate")


def padded(length: int) -> Tensor:
    """Two sequences, one padded in front, one behind and once in the middle."""
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[0, : length // 3] = False
    mask[1, -7:] = False
    mask[1, 20] = False
    return mask


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("is_padded", [False, True])
def test_gradients_are_those_of_the_parallel_form(name, is_padded):
    spec, length = spec_of(name), 150
    options = {"key_mask": padded(length)} if is_padded else {}
    arguments = inputs(spec, batch=2, length=length, heads=4, kv_heads=2, requires_grad=True)
    expected = run_form(arguments, spec, "parallel", **options)
    found = run_form(arguments, spec, "chunked", 16, **options)
    close(found[0], expected[0], "fp64", name)
    all_close(found[1], expected[1], "fp64 gradient", f"{name}: gradient of")


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_gradients_both_ways(name):
    spec, length = spec_of(name), 90
    arguments = inputs(spec, batch=2, length=length, heads=4, kv_heads=2, requires_grad=True)
    options = {"causal": False, "key_mask": padded(length)}
    expected = run_form(arguments, spec, "parallel", **options)
    found = run_form(arguments, spec, "chunked", 16, **options)
    close(found[0], expected[0], "fp64", name)
    all_close(found[1], expected[1], "fp64 gradient", f"{name}: gradient of")


def differentiable(state: AttentionState) -> AttentionState:
    floating = {n: t.detach().requires_grad_() for n, t in state.tensors.items() if t.is_floating_point()}
    return dataclasses.replace(state, **floating)


def through_a_state(arguments: dict, spec, before: AttentionState, form: str, size: int | None):
    """The output, the final state, and gradients of both with respect to the arguments and the state handed in."""
    before = differentiable(before)
    out, after = attend(
        **arguments, spec=spec, form=form, chunk_size=size, initial_state=before, output_final_state=True
    )
    ends = [out, *(t for t in after.tensors.values() if t.requires_grad and torch.isfinite(t).all())]
    total = sum((end * weights_like(end)).sum() for end in ends)
    starts = {name: t for name, t in before.tensors.items() if t.requires_grad and t.numel()}
    starts |= {name: t for name, t in arguments.items() if isinstance(t, Tensor)} | arguments["parameters"]
    found = torch.autograd.grad(total, list(starts.values()), allow_unused=True)
    return out.detach(), dict(zip(starts, found, strict=True))


@pytest.mark.parametrize(
    "name",
    ["taylor:0..2", "taylor:0..2@mean+w8s2+decay", "taylor:0..1@mean+decay", "power:2+decay", "taylor:0..2|layer"],
)
def test_gradients_flow_through_states(name):
    """Into the tensors of the state handed in and out of those handed back, as in the recurrent form token by token."""
    spec = spec_of(name)
    whole = inputs(spec, batch=2, length=330, heads=4, kv_heads=2)
    _, before = attend(**tokens(whole, 0, 200), spec=spec, output_final_state=True)
    arguments = clone(tokens(whole, 200, 330), torch.float64)
    expected = through_a_state(arguments, spec, before, "recurrent", None)
    found = through_a_state(arguments, spec, before, "chunked", 16)
    close(found[0], expected[0], "fp64", name)
    all_close(found[1], expected[1], "fp64 gradient", f"{name}: gradient of")


def test_only_what_is_asked_for():
    """Gradients of one tensor alone, twice from one graph; bad rows counted once; random numbers left alone."""
    spec = spec_of("taylor:0..2|layer")
    arguments = inputs(spec, length=100)
    counts, drawn = RowCounts(), torch.get_rng_state()
    for name in ("query", "value", "norm_weight"):
        given = {**arguments, "parameters": dict(arguments["parameters"])}
        holder = given["parameters"] if name in given["parameters"] else given
        holder[name] = holder[name].clone().requires_grad_()
        out, _ = attend(**given, spec=spec, form="chunked", chunk_size=16, row_counts=counts)
        first, second = (
            torch.autograd.grad((out * weights_like(out)).sum(), holder[name], retain_graph=True)[0] for _ in range(2)
        )
        same_bits(first, second, f"{name}: once more")
        out, _ = attend(**given, spec=spec, form="parallel")
        close(first, torch.autograd.grad((out * weights_like(out)).sum(), holder[name])[0], "fp64 gradient", name)
    equal(counts.rows.tolist(), [300, 300], "three forward passes of 100 rows a head")
    equal(torch.get_rng_state().tolist(), drawn.tolist(), "torch's random state")


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_inside_a_checkpoint(use_reentrant):
    """A layer that is itself checkpointed, as transformers does it."""
    spec = spec_of("taylor:0..2@mean+w8s2")
    arguments = inputs(spec, length=100, requires_grad=True)
    names = ("query", "key", "value")

    def layer(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(query, key, value, spec, form="chunked", chunk_size=16)[0]

    expected = run_form(arguments, spec, "parallel")[1]
    out = checkpoint(layer, *(arguments[name] for name in names), use_reentrant=use_reentrant)
    (out * weights_like(out)).sum().backward()
    all_close({name: arguments[name].grad for name in names}, expected, "fp64 gradient", "gradient of")


def test_inputs_changed_before_the_backward_pass_are_noticed():
    arguments = inputs(spec_of("taylor:0..2"), length=100, requires_grad=True)
    out, _ = attend(**arguments, spec=spec_of("taylor:0..2"), form="chunked", chunk_size=16)
    with torch.no_grad():
        arguments["key"].mul_(2)
    with pytest.raises(RuntimeError) as error:
        out.sum().backward()
    holds("modified by an inplace operation" in str(error.value), str(error.value))


@pytest.mark.parametrize("form", ["parallel", "chunked"])
def test_autocast_does_not_reach_the_sums(form):
    """Outputs, state and gradients bit by bit as without it; in chunks also where backward() stands inside the block."""
    spec, found = spec_of("taylor:0..2@mean"), []
    for is_on, is_inside in ((False, False), (True, False), (True, form == "chunked")):
        arguments = inputs(spec, length=200, dtype=torch.float32, requires_grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_on):
            size = 64 if form == "chunked" else None
            out, state = attend(**arguments, spec=spec, form=form, chunk_size=size, output_final_state=True)
            if is_inside:
                out.sum().backward()
        if not is_inside:
            out.sum().backward()
        found.append((out.detach(), state.moments.detach(), arguments["key"].grad, arguments["query"].grad))
    for other in found[1:]:
        for got, expected in zip(other, found[0], strict=True):
            same_bits(got, expected, form)


def test_chunks_of_one_token_are_computed_anew_too():
    """What very large states come down to."""
    spec = spec_of("taylor:0..2@mean+w8s2")
    arguments = inputs(spec, length=40, requires_grad=True)
    out, found = run_form(arguments, spec, "chunked", 1)
    expected, gradient = run_form(arguments, spec, "parallel")
    close(out, expected, "fp64")
    all_close(found, gradient, "fp64 gradient", "gradient of")


def test_a_gradient_of_a_gradient_is_refused():
    arguments = inputs(spec_of("taylor:0..2"), length=40, requires_grad=True)
    out, _ = attend(**arguments, spec=spec_of("taylor:0..2"), form="chunked", chunk_size=16)
    with pytest.raises(RuntimeError) as error:
        torch.autograd.grad(out.sum(), arguments["key"], create_graph=True)
    holds("use form='parallel'" in str(error.value), str(error.value))


def test_bytes_kept_for_the_backward_pass():
    """4,096 tokens are 64 blocks: the inputs and 7 states behind them, each of 4 G (F (e + 1) + 1) bytes and two whole numbers."""
    spec, length, width, heads = spec_of("taylor:0..3!"), 4096, 6, 2
    arguments = inputs(
        spec, length=length, heads=heads, kv_heads=heads, key_width=width, value_width=width, dtype=torch.float32,
        requires_grad=True,
    )  # fmt: skip
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        attend(**arguments, spec=spec, form="chunked", chunk_size=64)
    inputs_bytes = 3 * 4 * length * heads * width + 8 * length  # query, key, value, and the ranks of the keys
    state_bytes = 4 * heads * (comb(width + 3, 3) * (width + 1) + 1) + 2 * 8
    # The empty state before the first block is an input too.
    holds(
        sum(saved.values()) <= inputs_bytes + 8 * state_bytes,
        f"{sum(saved.values())} bytes, inputs {inputs_bytes}, a state {state_bytes}",
    )


@pytest.mark.parametrize("causal", [True, False])
def test_states_alive_at_once(monkeypatch, causal):
    """2 sqrt(n) and the few at hand, of n blocks."""
    alive: weakref.WeakSet[AttentionState] = weakref.WeakSet()
    most = 0

    def watched(step):
        def call(*args):
            nonlocal most
            out, state = step(*args)
            alive.add(state)
            most = max(most, len(alive))
            return out, state

        return call

    for name in ("_block", "_take_in", "_read_all"):
        monkeypatch.setattr(blocks, name, watched(getattr(blocks, name)))
    spec, num_blocks = spec_of("taylor:0..2"), 100
    arguments = inputs(spec, length=num_blocks * 4, requires_grad=True)
    out, _ = attend(**arguments, spec=spec, form="chunked", chunk_size=4, causal=causal)
    out.sum().backward()
    holds(isqrt(num_blocks) <= most <= 2 * isqrt(num_blocks) + 2, f"{most} states alive, {num_blocks} blocks")


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_forward_and_backward_hold_a_few_states_and_a_few_blocks():
    """8,192 tokens, orders 0..3 at d = 32: tokens x features are 204 MiB, a state for every block 105 MiB, scores 256 MiB."""
    length, width = 8192, 32
    cases = {
        "orders 0..3": ("taylor:0..3!", length, width, {}),
        "both ways": ("taylor:0..3!", length, width, {"causal": False}),
        "a window": ("taylor:0..3!@mean+w64s4", length, width, {}),
    }
    peaks = peaks_of(cases, trains=True)
    num_features, num_blocks = comb(width + 3, 3), length // 64
    features_bytes = 4 * 64 * num_features  # of one block
    state_bytes = 4 * num_features * (width + 1)
    states = 2 * (isqrt(num_blocks - 1) + 1) * state_bytes
    # Outputs, gradients and what stands between, of token size; the states; the graph of one block.
    bound = 12 * 4 * length * width + states + 24 * features_bytes
    holds(bound < num_blocks * min(state_bytes, features_bytes), "far less than a state or the features of every block")
    for name, peak in peaks.items():
        holds(peak < bound, f"{name}: {peak / MIB:.0f} MiB beside its inputs, {bound / MIB:.0f} MiB are allowed")
