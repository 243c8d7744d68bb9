"""Float32 and half types over the whole catalogue, and decays of every size."""

from __future__ import annotations

import pytest
import torch

from termwise.attention.forms import attend
from termwise.attention.kernels import FeatureMap, Polynomial
from tests.attention import oracle
from tests.attention.cancelling import cancelling_gradients, divisor_share, is_forced
from tests.attention.compare import all_close, close, equal, holds, relative_rms, rms
from tests.attention.running import clone, run_form, run_oracle
from tests.attention.slicing import tokens
from tests.attention.tolerances import (
    LEFT_OUT_MASS,
    LEFT_OUT_MASS_OF_FORCED_GRADIENTS,
    LEFT_OUT_SHARE,
    LEFT_OUT_SHARE_OF_FORCED_GRADIENTS,
    LOW_PRECISION_FACTOR,
)
from tests.attention.values import NAMES, forms, inputs, is_long_series, spec_of, turn_of, window_of


def length_of(name: str) -> int:
    """Behind one fold; short where there is none."""
    spec = spec_of(name)
    return window_of(spec) + 131 if spec.is_constant_size and not is_long_series(spec) else 40


def precise_inputs(name: str, dtype: torch.dtype, **options) -> dict:
    """One head, with queries to which few rows of keys are next to nothing."""
    spec = spec_of(name)
    arguments = inputs(spec, length=length_of(name), heads=1, seed=turn_of(name), **options)
    if isinstance(spec.kernel, Polynomial) and min(spec.kernel.orders) > 2:
        # (q.k)^4 of a short query is hardly there.
        arguments["query"] = 3 * arguments["query"] / arguments["query"].norm(dim=-1, keepdim=True)
    if isinstance(spec.kernel, FeatureMap) and spec.kernel.name == "relu":
        # One query in eight of width 3 has no positive part.
        arguments["query"] = arguments["query"] + 1
    return clone(arguments, dtype)


def heavy_rows(name: str, arguments: dict, least: float = LEFT_OUT_MASS, share: float = LEFT_OUT_SHARE) -> torch.Tensor:
    """(B, T, H) rows whose divisor (|Z|, or |U| under a vector norm) is at least `least` of what was summed; the others are counted."""
    is_heavy = divisor_share(clone(arguments, torch.float64, requires_grad=False), spec_of(name)) >= least
    left_out = 1 - float(is_heavy.double().mean())
    holds(left_out <= share, f"{name}: {left_out:.1%} of the rows would be left out, allowed {share:.0%}")
    return is_heavy


def expect_float32(name: str, arguments: dict, served: list, row: str) -> None:
    """Outputs and gradients in float32 against float64 from the same numbers, rows that cancel left out."""
    spec = spec_of(name)
    is_heavy = safe = heavy_rows(name, arguments)
    if is_forced(spec):
        safe = heavy_rows(name, arguments, LEFT_OUT_MASS_OF_FORCED_GRADIENTS, LEFT_OUT_SHARE_OF_FORCED_GRADIENTS)
    expected = run_oracle(clone(arguments, torch.float64), spec, where=safe)
    for form, size in served:
        out, found = run_form(arguments, spec, form, size, where=safe)
        equal(out.dtype, torch.float32, name)
        what = f"{name}, {form} {size}"
        close(out[is_heavy], expected[0][is_heavy], row, what)
        expect_gradients(spec, found, expected[1], f"{what}: gradient of")


def expect_gradients(spec, found: dict, expected: dict, what: str) -> None:
    cancelling = cancelling_gradients(spec)
    for row, names in (("fp32 gradient", found.keys() - cancelling), ("fp32 cancelling gradient", cancelling)):
        all_close({n: found[n] for n in names}, {n: expected[n] for n in names}, row, what)


@pytest.mark.parametrize("name", NAMES)
def test_float32(name):
    served = forms(name)
    arguments = precise_inputs(name, torch.float32, mean=0.5)
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
    """No form errs more than twice the plain low-precision parallel form: sums are kept in float32 whatever the inputs are.

    For exponentials served by fused attention that plain form is softmax written out in the type of the inputs, every step of it;
    for all other values, which nobody runs in half precision as they stand, it is `form="parallel"`, whose sums are in float32.
    """
    spec = spec_of(name)
    dtype = (torch.bfloat16, torch.float16)[turn_of(name) % 2]
    arguments = {n: t.detach() if isinstance(t, torch.Tensor) else t for n, t in precise_inputs(name, dtype).items()}
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
