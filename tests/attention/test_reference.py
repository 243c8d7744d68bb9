"""The two definitions: the loop of the package and the dense matrices of the tests."""

from __future__ import annotations

import pytest
import torch

from termwise.attention.forms import attend
from tests.attention import oracle
from tests.attention.compare import all_close, close
from tests.attention.running import run_form, run_oracle
from tests.attention.values import NAMES, inputs, spec_of


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_is_the_dense_definition(name):
    """The package's loop in float64 and the tests' dense matrices, written apart, agree on everything at once."""
    spec = spec_of(name)
    arguments = inputs(spec, batch=2, length=10, heads=4, kv_heads=2, seed=3, requires_grad=True)
    mask = torch.ones(2, 10, dtype=torch.bool)
    mask[0, 2:5] = False
    out, found = run_form(arguments, spec, "reference", key_mask=mask, scale=0.4)
    expected, wanted = run_oracle(arguments, spec, key_mask=mask, scale=0.4)
    close(out, expected, "fp64", name)
    all_close(found, wanted, "fp64 gradient", f"{name}: gradient of")
    half = {
        n: t.to(torch.float32) if n != "parameters" else {m: p.float() for m, p in t.items()}
        for n, t in arguments.items()
    }
    single, _ = attend(**half, spec=spec, form="reference", key_mask=mask, scale=0.4)
    close(
        single.detach().double(),
        oracle.attend(**half, spec=spec, key_mask=mask, scale=0.4).detach(),
        "rounded",
        f"{name}: float64 inside, float32 outside",
    )
