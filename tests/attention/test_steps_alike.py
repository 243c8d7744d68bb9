"""What makes steps fast must not show: memory used again, checks left out, sums in registers."""

from __future__ import annotations

import gc

import numba
import numpy as np
import pytest
import torch

from termwise.attention import compiled_step, forms, reuse
from termwise.attention.backends import compiled_loops
from termwise.attention.forms import attend
from tests.attention.compare import close, equal, holds, refused, same_bits
from tests.attention.slicing import tokens
from tests.attention.values import inputs, spec_of


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_memory_comes_back_when_the_last_view_is_gone():
    """A view of a view keeps it, an array over it too; then the next tensor of the size has it."""
    like, size = torch.empty(0), reuse.SMALLEST
    whole = reuse.empty(like, size)
    place, view, array = address(whole), whole.view(2, -1)[1:, 3:], whole[5:].numpy()
    del whole
    others = [reuse.empty(like, size) for _ in range(3)]
    holds(place not in map(address, others), "held by a view and an array")
    del view
    others += [reuse.empty(like, size) for _ in range(3)]
    holds(place not in map(address, others), "held by an array")
    del array
    gc.collect()
    again = [reuse.empty(like, size) for _ in range(6)]
    holds(place in map(address, again), "nobody holds it")
    equal(len({address(t) for t in (*others, *again)}), 12, "no two alive share")


def test_dead_memory_is_bounded():
    for _ in range(4):
        reuse.empty(torch.empty(0), reuse.LARGEST // 8 - 64)
    holds(sum(m.nbytes for m in reuse._dead) <= reuse.LARGEST + reuse.ALIGNED, "bytes of dead memory")
    equal(reuse.empty(torch.empty(0, device="meta"), reuse.SMALLEST).device.type, "meta", "other devices: as ever")


def test_every_state_of_a_long_text_stays_what_it_was():
    """States whose moments are large enough to be used again, some kept, some dropped: none that is kept changes."""
    spec = spec_of("taylor:0..2")
    arguments = inputs(spec, length=700, heads=2, kv_heads=2, key_width=20, value_width=90, dtype=torch.float32)
    with torch.no_grad():
        _, state = attend(**tokens(arguments, 0, 60), spec=spec, output_final_state=True)
        kept = []
        for t in range(60, 700):
            _, state = attend(**tokens(arguments, t, t + 1), spec=spec, initial_state=state, output_final_state=True)
            if t % 150 == 0:
                kept.append((state, state.moments.clone(), state.key.clone()))
        _, wanted = attend(**arguments, spec=spec, form="chunked", output_final_state=True)
    holds(state.moments.nbytes >= reuse.SMALLEST, "large enough")
    for early, moments, key in kept:
        same_bits(early.moments, moments, "moments of a state that was kept")
        same_bits(early.key, key, "its keys")
    close(state.moments, wanted.moments, "fp32", "moments in the end")


def test_a_step_unlike_the_one_before_is_checked(monkeypatch):
    """After steps that needed no check: other shapes, a misspelt form, a decay, another spec's scale."""
    spec = spec_of("taylor:0..2")
    arguments = inputs(spec, length=40, heads=2, kv_heads=2)
    checked = []
    monkeypatch.setattr(forms, "check", lambda given, check=forms.check: (checked.append(1), check(given)))
    with torch.no_grad():
        _, state = attend(**tokens(arguments, 0, 30), spec=spec, output_final_state=True)
        for t in range(30, 36):
            _, state = attend(**tokens(arguments, t, t + 1), spec=spec, initial_state=state, output_final_state=True)
        equal(len(checked), 2, "the prompt and the first step")
        last = tokens(arguments, 36, 37) | {"spec": spec, "initial_state": state}
        plain, _ = attend(**last)
        equal(len(checked), 2, "a step like the others")
        narrow = {name: last[name][..., :2] for name in ("query", "key")}
        for changed in (
            {"form": "fast"}, {"log_decay": torch.full((1, 1, 2), 0.5)}, narrow,
            {"scale": 2.0}, {"spec": spec_of("taylor:0..4")}, {"value": last["value"].float()}, {"chunk_size": 0},
            {"parameters": {"gain": last["query"]}},
        ):  # fmt: skip
            with refused():
                attend(**(last | changed))
        masked, _ = attend(**(last | {"key_mask": torch.zeros(1, 1, dtype=torch.bool)}))
    same_bits(masked, torch.zeros_like(masked), "a masked token has no output")
    out, _ = attend(**(last | {"query": last["query"].clone().requires_grad_()}))
    holds(out.requires_grad, "gradients flow")
    close(out.detach(), plain, "fp64", "the same step with a gradient")


def test_another_thread_may_step_from_a_copy_in_the_same_room(monkeypatch):
    """A state and its copy that reads bfloat16 share a room; whichever arrays the other puts there meanwhile, each reads its own."""
    spec = spec_of("taylor:0..2")
    arguments = inputs(spec, length=300, heads=2, kv_heads=2, dtype=torch.float32)
    with torch.no_grad():
        _, state = attend(**tokens(arguments, 0, 298), spec=spec, output_final_state=True)
        _, state = attend(**tokens(arguments, 298, 299), spec=spec, initial_state=state, output_final_state=True)
        last, half = tokens(arguments, 299, 300) | {"spec": spec}, state.reading_half()
        rounded, _ = attend(**last, initial_state=half)
        others = state.room.ready
        plain, _ = attend(**last, initial_state=state)
        holds(not torch.equal(plain, rounded), "the copy is rounded")

        def serves(ready, asking, real=compiled_step.Ready.serves):
            found = real(ready, asking)
            asking.room.ready = others
            return found

        monkeypatch.setattr(compiled_step.Ready, "serves", serves)
        same_bits(attend(**last, initial_state=state)[0], plain, "the other thread's arrays came between")


@pytest.mark.parametrize("width", [1, 3, 16, 31, 64, 127])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint16])
def test_sums_of_weighted_rows(width, dtype):
    """Against numpy in float64, however the columns divide into vectors, and whatever is left of the rows."""
    holds(compiled_loops() is not None, "numba is here")
    from termwise.attention.backends.vectors import add_weighted_rows

    add = numba.njit(lambda weights, rows, out: add_weighted_rows(weights, rows, out))
    make = np.random.default_rng(width)
    number = np.float64 if dtype == np.float64 else np.float32
    for length in (0, 1, 7, 64):
        rows = make.standard_normal((length, width)).astype(number)
        held = torch.from_numpy(rows).bfloat16()
        bits = held.view(torch.int16).numpy().view(np.uint16)
        weights, out = make.standard_normal(length).astype(number), make.standard_normal(width).astype(number)
        exact = held.double().numpy() if dtype == np.uint16 else rows.astype(np.float64)
        wanted = out + weights.astype(np.float64) @ exact
        add(weights, bits if dtype == np.uint16 else rows, out)
        row = "fp64" if number == np.float64 else "fp32"
        close(torch.from_numpy(out), torch.from_numpy(wanted).to(torch.from_numpy(out).dtype), row, f"{length} rows")
