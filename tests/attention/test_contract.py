"""The contract: every value in every form equals the definition, outputs and every gradient, in float64.

Lengths are those of the promise and one behind which keys are folded in every form. Each value meets every length and every
form; the pairs rotate from value to value. The definition is met twice: `form="reference"` and the dense oracle of these tests.
"""

from __future__ import annotations

import pytest
import torch

from termwise.attention.catalogue import catalogue
from termwise.attention.forms import attend
from tests.attention.compare import all_close, close, close_states, refused
from tests.attention.running import run_form, run_oracle
from tests.attention.values import NAMES, forms, inputs, is_long_series, spec_of, turn_of, window_of

LENGTHS = (1, 2, 63, 64, 65, 127)
CONSTANT = [name for name in NAMES if spec_of(name).is_constant_size and not is_long_series(spec_of(name))]


def folding_length(name: str) -> int:
    """A length whose final state has folded once: 64 keys behind the window and the 64 that rollback needs."""
    return window_of(spec_of(name)) + 131


def seed_of(name: str) -> int:
    return sum(map(ord, name))


def expect_same(name: str, arguments: dict, form: tuple[str, int | None], expected: tuple, **options) -> None:
    spec = spec_of(name)
    out, found = run_form(arguments, spec, *form, **options)
    what = f"{name}, {form[0]}{'' if form[1] is None else f' by {form[1]}'}, {out.shape[1]} tokens"
    close(out, expected[0], "fp64", what)
    all_close(found, expected[1], "fp64 gradient", f"{what}: gradient of")


@pytest.mark.parametrize("name", NAMES)
def test_short_lengths(name):
    spec = spec_of(name)
    served = forms(name)
    for i, length in enumerate(LENGTHS):
        arguments = inputs(spec, length=length, seed=seed_of(name) + i, requires_grad=True)
        expected = run_oracle(arguments, spec)
        turn = turn_of(name) + i
        rotating = served[2 + turn % (len(served) - 2)] if len(served) > 2 else ("parallel", None)
        for form in {("auto", None), ("parallel", None), rotating}:
            expect_same(name, arguments, form, expected)
        if length <= 2 or i == 2 + turn % 4:
            expect_same(name, arguments, ("reference", None), expected)


@pytest.mark.parametrize("name", NAMES)
def test_every_form_behind_a_fold(name):
    spec = spec_of(name)
    length = 70 if is_long_series(spec) else folding_length(name)
    arguments = inputs(spec, length=length, seed=seed_of(name), requires_grad=True)
    expected = run_oracle(arguments, spec)
    for form in forms(name):
        expect_same(name, arguments, form, expected)


@pytest.mark.parametrize("name", [n for n in NAMES if not is_long_series(spec_of(n))])
def test_final_state(name):
    spec = spec_of(name)
    for length in (3, folding_length(name)):
        arguments = inputs(spec, length=length, heads=1, seed=seed_of(name))
        _, expected = attend(**arguments, spec=spec, form="reference", output_final_state=True)
        for form, chunk_size in forms(name):
            _, state = attend(**arguments, spec=spec, form=form, chunk_size=chunk_size, output_final_state=True)
            close_states(state, expected, "fp64", f"{name}, {form} {chunk_size}, {length} tokens")


@pytest.mark.parametrize("name", CONSTANT)
def test_1334_tokens(name):
    spec = spec_of(name)
    arguments = inputs(
        spec, length=1334, heads=1, value_width=2, seed=seed_of(name), requires_grad=turn_of(name) % 3 == 0
    )
    with torch.set_grad_enabled(arguments["query"].requires_grad):
        expected = run_form(arguments, spec, "parallel")
        expect_same(name, arguments, ("chunked", (None, 50)[turn_of(name) % 2]), expected)


def test_no_tokens():
    arguments = inputs(catalogue["softmax"], length=1)
    for name in ("query", "key", "value"):
        arguments[name] = arguments[name][:, :0]
    for form in ("auto", "parallel", "recurrent", "fused", "reference"):
        with refused("0 queries and 0 keys", "at least one"):
            attend(**arguments, spec=catalogue["softmax"], form=form)
    with refused("at least one"):
        attend(**arguments, spec=catalogue["taylor:0..2"], form="chunked")
