"""Precision: float32 and half types over the whole catalogue, and the figures of math section 10."""

from __future__ import annotations

import pytest
import torch

from termwise.attention.forms import attend
from termwise.attention.normalizers import RowSum
from tests.attention import oracle
from tests.attention.compare import all_close, close, equal, holds, relative_rms, rms
from tests.attention.running import clone, run_form, run_oracle
from tests.attention.slicing import tokens
from tests.attention.tolerances import LEFT_OUT_MASS, LEFT_OUT_MASS_OF_GRADIENTS, LEFT_OUT_SHARE, LOW_PRECISION_FACTOR
from tests.attention.values import NAMES, forms, inputs, is_long_series, spec_of, turn_of, window_of


def length_of(name: str) -> int:
    """Behind one fold; short where there is none."""
    spec = spec_of(name)
    return window_of(spec) + 131 if spec.is_constant_size and not is_long_series(spec) else 40


def heavy_rows(name: str, arguments: dict, least: float = LEFT_OUT_MASS) -> torch.Tensor:
    """(B, T, H) rows whose divisor (|Z|, or |U| under a vector norm) is at least 1e-2 of what was summed; the others are counted."""
    share = oracle.divisor_share(clone(arguments, torch.float64, requires_grad=False), spec_of(name))
    is_heavy = share >= least
    left_out = 1 - float(is_heavy.double().mean())
    holds(left_out <= LEFT_OUT_SHARE, f"{name}: {left_out:.0%} of the rows would be left out")
    return is_heavy


def expect_float32(name: str, arguments: dict, served: list, row: str) -> None:
    """Outputs and gradients in float32 against float64 from the same numbers, rows that cancel left out."""
    spec = spec_of(name)
    is_heavy = heavy_rows(name, arguments)
    safe = heavy_rows(name, arguments, LEFT_OUT_MASS_OF_GRADIENTS) if isinstance(spec.normalizer, RowSum) else is_heavy
    expected = run_oracle(clone(arguments, torch.float64), spec, where=safe)
    for form, size in served:
        out, found = run_form(arguments, spec, form, size, where=safe)
        equal(out.dtype, torch.float32, name)
        close(out[is_heavy], expected[0][is_heavy], row, f"{name}, {form} {size}")
        all_close(found, expected[1], "fp32 gradient", f"{name}, {form} {size}: gradient of")


@pytest.mark.parametrize("name", NAMES)
def test_float32(name):
    spec = spec_of(name)
    arguments = inputs(
        spec, length=length_of(name), heads=1, seed=turn_of(name), dtype=torch.float32, mean=0.5, requires_grad=True
    )
    served = forms(name)
    expect_float32(name, arguments, [served[turn_of(name) % len(served)]], "fp32")


def plain_softmax(arguments: dict, spec) -> torch.Tensor:
    """Softmax attention of one head as anyone writes it, every step in the type of the inputs."""
    query, key, value = (arguments[n][0, :, 0] for n in ("query", "key", "value"))
    t, s = torch.arange(len(query))[:, None], torch.arange(len(key))[None]
    visible = (s <= t) if spec.local is None else (s <= t) & ((t - s < spec.local.window) | (s < spec.local.sinks))
    weights = torch.softmax((query @ key.T * query.shape[1] ** -0.5).masked_fill(~visible, -torch.inf), dim=1)
    value = value * arguments["input_gate"][0, :, 0, None] if "input_gate" in arguments else value
    out = oracle.normalize_softmax(
        spec.normalizer, weights @ value, {n: p[0] for n, p in arguments["parameters"].items()}
    )
    return (out * arguments["output_gate"][0, :, 0, None] if spec.output_gate == "after" else out).to(query.dtype)[
        None, :, None
    ]


@pytest.mark.parametrize("name", NAMES)
def test_half_precision(name):
    """Whatever the inputs are, sums are kept in float32: no form errs more than twice the plain parallel one.

    Fused attention hands its output over in the type of the inputs, so it is held against softmax written out in that type.
    """
    spec = spec_of(name)
    dtype = (torch.bfloat16, torch.float16)[turn_of(name) % 2]
    arguments = inputs(spec, length=length_of(name), heads=1, seed=turn_of(name), dtype=dtype)
    exact = clone(arguments, torch.float64, requires_grad=False)
    is_heavy = heavy_rows(name, arguments)
    expected = oracle.attend(**exact, spec=spec)[is_heavy]
    plain, _ = attend(**arguments, spec=spec, form="parallel")
    equal(plain.dtype, dtype, name)
    allowed = LOW_PRECISION_FACTOR * relative_rms(plain[is_heavy], expected)
    holds(allowed < 0.02, f"{name}: the parallel form itself errs by {allowed / 2:.3g} in {dtype}")
    served = forms(name)
    fused_allowed = allowed
    if ("fused", None) in served and spec.input_gate != "count":
        fused_allowed = max(
            allowed, LOW_PRECISION_FACTOR * relative_rms(plain_softmax(arguments, spec)[is_heavy], expected)
        )
    last = served[2 + turn_of(name) % (len(served) - 2)] if len(served) > 2 else served[0]
    for form, size in {served[0], last}:
        limit = fused_allowed if form in ("auto", "fused") else allowed
        options = {"form": form, "chunk_size": size, "output_final_state": not is_long_series(spec)}
        out, state = attend(**arguments, spec=spec, **options)
        error = relative_rms(out[is_heavy], expected)
        holds(error <= limit, f"{name}, {form} {size}, {dtype}: {error:.3g}, allowed {limit:.3g}")
        holds(state is None or state.key.dtype == torch.float32, f"{name}: the state is kept in float32")


def test_the_count_gate_counts_beyond_256_in_bfloat16():
    spec = spec_of("linear_cosine")
    arguments = inputs(spec, length=700, heads=1, dtype=torch.bfloat16)
    expected = oracle.attend(**clone(arguments, torch.float64, requires_grad=False), spec=spec)
    error = relative_rms(attend(**arguments, spec=spec)[0], expected)
    holds(error <= LOW_PRECISION_FACTOR * relative_rms(expected.to(torch.bfloat16), expected), f"error {error:.3g}")


# The table of section 10 ----------------------------------------------------------------------------------------------


def around_a_mean(mean: float, key_width: int, length: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> dict:
    """Scores of spread 2 about `mean` for every query, from keys that share a large vector."""
    make = torch.Generator().manual_seed(seed)
    query, key = (torch.randn(1, length, 1, key_width, generator=make, dtype=torch.float64) * 2**0.5 for _ in range(2))
    shared = (abs(mean) * key_width**0.5) ** 0.5
    query[..., 0] = shared
    key[..., 0] = shared if mean > 0 else -shared
    value = torch.randn(1, length, 1, 4, generator=make, dtype=torch.float64)
    return {"query": query.to(dtype), "key": key.to(dtype), "value": value.to(dtype)}


def rows_by_definition(name: str, arguments: dict, rows: list[int]) -> torch.Tensor:
    """Some rows alone, in float64: one query against all keys up to its own."""
    exact = {n: t.double() for n, t in arguments.items()}
    out = [
        oracle.attend(
            exact["query"][:, t : t + 1],
            exact["key"][:, : t + 1],
            exact["value"][:, : t + 1],
            spec_of(name),
            causal=False,
        )
        for t in rows
    ]
    return torch.cat(out, dim=1)


ROWS = [64, 127, 128, 500, 1023, 2048, 3000, 3777, 4000, 4031, 4032, 4063, 4090, 4095]


@pytest.mark.parametrize(("key_width", "top"), [(64, 2), (16, 4)])
@pytest.mark.parametrize("mean", [3.6, 8.0, 25.0, -8.0, -25.0])
def test_moments_about_the_first_key(key_width, top, mean):
    """T = 4096, spread 2, center mean: 1e-5, at a mean of 25 with four orders 1e-4."""
    name = f"taylor:0..{top}@mean"
    arguments = around_a_mean(mean, key_width, 4096)
    expected = rows_by_definition(name, arguments, ROWS)
    out, _ = attend(**arguments, spec=spec_of(name), form="chunked")
    row = "fp32 far" if top == 4 and abs(mean) == 25 else "fp32"
    close(out[:, ROWS], expected, row, f"{name}, d={key_width}, mean {mean}")


def test_a_calibrated_reference_key_does_better():
    arguments = around_a_mean(25.0, 16, 2048)
    name, rows = "taylor:0..4@mean", [500, 1000, 1500, 2000, 2047]
    expected = rows_by_definition(name, arguments, rows)
    reference = {"reference_key": arguments["key"].mean(dim=1)[0]}
    first, _ = attend(**arguments, spec=spec_of(name), form="chunked")
    calibrated, _ = attend(**arguments, spec=spec_of(name), form="chunked", parameters=reference)
    close(calibrated[:, rows], expected, "fp32 far", "about the mean key")
    holds(relative_rms(calibrated[:, rows], expected) < relative_rms(first[:, rows], expected), "it loses fewer digits")
    double = {n: t.double() for n, t in arguments.items()}
    given = {"reference_key": reference["reference_key"].double() + 1}
    out, state = attend(**double, spec=spec_of(name), form="chunked", parameters=given, output_final_state=True)
    close(out[:, rows], expected, "fp64", "and changes nothing but rounding")
    close(state.reference[0], given["reference_key"] * 16**-0.25, "fp64", "the state says which it is")


def test_the_parallel_form_at_a_large_mean():
    arguments = around_a_mean(25.0, 16, 1100)
    rows = [64, 500, 1024, 1099]
    for name in ("taylor:0..4@mean", "taylor:0..2@mean", "exp"):
        close(
            attend(**arguments, spec=spec_of(name), form="parallel")[0][:, rows],
            rows_by_definition(name, arguments, rows),
            "fp32",
            name,
        )


@pytest.mark.parametrize("name", ["taylor:0..2@mean", "elu1"])
def test_token_by_token_sums(name):
    """Hundreds of tokens folded one at a time within a call."""
    arguments = (
        around_a_mean(3.6, 8, 600)
        if "@mean" in name
        else inputs(spec_of(name), length=600, heads=1, key_width=8, dtype=torch.float32, spread=0.7)
    )
    arguments = {n: t for n, t in arguments.items() if n != "parameters"}
    rows = [64, 200, 512, 599]
    out, _ = attend(**arguments, spec=spec_of(name), form="recurrent")
    close(out[:, rows], rows_by_definition(name, arguments, rows), "fp32", name)


def test_16_thousand_tokens_around_zero():
    """Spread at most 1, folded in chunks of 64: 3e-7 by the table, promised 1e-5; so too for a bfloat16 input's sums."""
    name, rows = "taylor:0..2", [4000, 9999, 16383]
    arguments = inputs(spec_of(name), length=16384, heads=1, key_width=8, dtype=torch.float32, spread=0.7, mean=0.0)
    arguments = {n: t for n, t in arguments.items() if n != "parameters"}
    expected = rows_by_definition(name, arguments, rows)
    out, state = attend(**arguments, spec=spec_of(name), form="chunked", output_final_state=True)
    close(out[:, rows], expected, "16k", name)
    exact = torch.ones(1, 1, dtype=torch.float64) * int(state.boundary)
    close(state.decayed_count, exact, "fp64", "whole numbers are exact")
    rough = {n: t.bfloat16() for n, t in arguments.items()}
    out, _ = attend(**rough, spec=spec_of(name), form="chunked")
    expected = rows_by_definition(name, rough, rows)
    holds(
        relative_rms(out[:, rows], expected) <= LOW_PRECISION_FACTOR * relative_rms(expected.bfloat16(), expected),
        "bfloat16 inputs, float32 sums",
    )


# Decay ------------------------------------------------------------------------------------------------------------------

MIXED = torch.tensor([0.0, -1e-6, -5.0, -50.0, -1e4, 0.0, -1e-6, -1e-6, -0.3, -1e4, -1e4, 0.0, -5.0])


DECAYED = (
    *(
        "power:2+decay",
        "taylor:0..2@mean+decay",
        "taylor:0..2@mean+w6s2+decay",
        "taylor:0..2+w8s2+decay",
        "retnet",
        "exp+decay",
    ),
    *("elu1|runninggate+decay", "drop+w5s2+decay", "exp<2+decay", "taylor:0..4@mean+gi+ga+decay", "elu1:2+decay"),
)


@pytest.mark.parametrize("name", DECAYED)
def test_decays_of_every_size_in_one_chunk(name):
    spec = spec_of(name)
    arguments = inputs(spec, length=150, heads=1, seed=3, mean=0.5)
    arguments["log_decay"][0, 10:140, 0] = MIXED.repeat(10).double()
    expect_float32(name, clone(arguments, torch.float32), forms(name)[1:4], "decay")


@pytest.mark.parametrize(
    "name", ["power:2+decay", "taylor:0..2@mean+w2s1+decay", "retnet", "exp+decay", "drop+w5s2+decay"]
)
def test_a_decay_of_zero_forgets_everything(name):
    """log_decay = -inf: what came before has no weight, twice over too; nothing turns into NaN."""
    spec = spec_of(name)
    arguments = inputs(spec, length=140, heads=1)
    arguments["log_decay"][0, [5, 6, 90]] = -torch.inf
    finite = {**arguments, "log_decay": arguments["log_decay"].clamp(min=-1e4)}
    expected = run_oracle(clone(finite, torch.float64), spec)
    for form, size in (*forms(name)[1:4], ("reference", None)):
        out, found = run_form(clone(arguments, torch.float64), spec, form, size)
        close(out, expected[0], "fp64", f"{name}, {form}")
        all_close(found, expected[1], "fp64 gradient", f"{name}, {form}: gradient of")
    fresh = tokens(arguments, 90, 140)
    if spec.local is None:  # sinks and counts of slots are of the whole sequence
        close(
            attend(**arguments, spec=spec)[0][:, 90:],
            attend(**fresh, spec=spec)[0],
            "fp64",
            f"{name}: as if it began there",
        )


def test_a_long_slow_decay():
    """-0.02 a token for 16k tokens: a difference of running sums in float32 would be 2e-4 wrong."""
    length, rows = 16384, [5000, 16000, 16383]
    arguments = inputs(spec_of("power:2+decay"), length=length, heads=1, key_width=4, dtype=torch.float32)
    arguments["log_decay"][:] = -0.02
    arguments["log_decay"][:, 100::1000] = -1e4
    arguments.pop("parameters")
    out, _ = attend(**arguments, spec=spec_of("power:2+decay"), form="chunked")
    total = arguments["log_decay"][0, :, 0].double().cumsum(dim=0)
    expected = []
    for t in rows:
        start = max(0, t - 3000)
        a = (total[t] - total[start : t + 1]).exp()
        weights = a * (arguments["key"][0, start : t + 1, 0].double() @ arguments["query"][0, t, 0].double()) ** 2
        expected.append(weights @ arguments["value"][0, start : t + 1, 0].double() / weights.sum())
    close(out[0, rows, 0], torch.stack(expected), "decay", "16k tokens")
    holds(rms(out) > 0.1, "of order one")
