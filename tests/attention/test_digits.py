"""How many digits are left: the table of math section 10, around means and over many tokens."""

from __future__ import annotations

import pytest
import torch

from termwise.attention.forms import attend
from tests.attention import oracle
from tests.attention.compare import close, holds, relative_rms
from tests.attention.tolerances import LOW_PRECISION_FACTOR
from tests.attention.values import inputs, spec_of


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
