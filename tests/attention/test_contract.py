"""The contract: every value in every form equals the definition, outputs and every gradient, in float64.

Lengths are those of the promise and one behind which keys are folded in every form. Each value meets every length and every
form; the pairs rotate from value to value. The definition is met twice: `form="reference"` and the dense oracle of these tests.
"""

from __future__ import annotations

import pytest

from termwise.attention.catalogue import catalogue
from termwise.attention.forms import attend
from tests.attention.compare import all_close, close, close_states, refused
from tests.attention.running import run_form, run_oracle
from tests.attention.values import NAMES, forms, inputs, is_long_series, spec_of, turn_of, window_of

LENGTHS = (1, 2, 63, 64, 65, 127)


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
    spec, turn = spec_of(name), turn_of(name)
    served = forms(name)
    others = served[2:] or served
    for i, length in enumerate(LENGTHS):
        arguments = inputs(spec, length=length, seed=seed_of(name) + i, requires_grad=True)
        expected = run_oracle(arguments, spec)
        # One of `auto` and `parallel` at every length, one of the others at every second.
        expect_same(name, arguments, served[(turn + i) % 2], expected)
        if (turn + i) % 2:
            expect_same(name, arguments, others[(turn + i // 2) % len(others)], expected)
        # The loop at 1, 2 and one of the longer lengths, which rotates.
        if length <= 2 or i == 2 + turn % 4:
            expect_same(name, arguments, ("reference", None), expected)


@pytest.mark.parametrize("name", NAMES)
def test_behind_a_fold(name):
    """Where far keys are read from the state: in chunks of the default size, and in one other form."""
    spec, turn = spec_of(name), turn_of(name)
    length = 70 if is_long_series(spec) else folding_length(name)
    arguments = inputs(spec, length=length, seed=seed_of(name), requires_grad=True)
    expected = run_oracle(arguments, spec)
    served = forms(name)
    for form in {
        ("chunked", None) if spec.is_constant_size and len(served) > 2 else served[0],
        served[turn % len(served)],
    }:
        expect_same(name, arguments, form, expected)


@pytest.mark.parametrize("name", [n for n in NAMES if not is_long_series(spec_of(n))])
def test_final_state(name):
    """Every moment and the exact slots, before and behind a fold, against sums that are written out."""
    spec, turn = spec_of(name), turn_of(name)
    served = forms(name)
    for length in (3, folding_length(name)):
        arguments = inputs(spec, length=length, heads=1, key_width=2, value_width=2, seed=seed_of(name))
        _, expected = attend(**arguments, spec=spec, form="reference", output_final_state=True)
        for form, chunk_size in {served[1], served[2 + turn % (len(served) - 2)]}:
            _, state = attend(**arguments, spec=spec, form=form, chunk_size=chunk_size, output_final_state=True)
            close_states(state, expected, "fp64", f"{name}, {form} {chunk_size}, {length} tokens")


@pytest.mark.parametrize("name", [n for n in NAMES if not is_long_series(spec_of(n))])
def test_1334_tokens(name):
    """Too long for the loop: chunks against all scores at once, caches against the dense definition, gradients too."""
    spec, turn = spec_of(name), turn_of(name)
    arguments = inputs(spec, length=1334, heads=1, value_width=2, seed=seed_of(name), requires_grad=True)
    if spec.is_constant_size:
        expect_same(name, arguments, ("chunked", (None, 100)[turn % 2]), run_form(arguments, spec, "parallel"))
    else:
        expect_same(name, arguments, forms(name)[turn % 2], run_oracle(arguments, spec))


def test_no_tokens():
    arguments = inputs(catalogue["softmax"], length=1)
    for name in ("query", "key", "value"):
        arguments[name] = arguments[name][:, :0]
    for form in ("auto", "parallel", "recurrent", "fused", "reference"):
        with refused("0 queries and 0 keys", "at least one"):
            attend(**arguments, spec=catalogue["softmax"], form=form)
    with refused("at least one"):
        attend(**arguments, spec=catalogue["taylor:0..2"], form="chunked")
