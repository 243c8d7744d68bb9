"""The formula of a state's size is the size of its live tensors; widths and break-even lengths are math section 9's."""

from __future__ import annotations

import pytest
import torch

import termwise as tw
from termwise.attention.names import parse
from tests.attention.compare import equal

EXTRA = (
    "taylor:0..2@mean+w8s4+decay",
    "drop+w8s2+decay",
    "exp|runninggate+decay",
    "taylor:0@mean",
    "taylor:0..2+w70s130",
    "minimax3:0..2@mean",
)
NAMES = [n for n in tw.catalogue.groups()["all"] if n not in ("softmax_taylor_80terms",)] + list(EXTRA)
HEADS, D, E = 3, 4, 6


@pytest.mark.parametrize("name", NAMES)
def test_state_bytes_are_the_formula(name: str) -> None:
    spec = tw.catalogue[name]
    for length in (1, 64, 128, 200, 400):
        query, value = torch.randn(1, length, HEADS, D), torch.randn(1, length, HEADS, E)
        ones = torch.rand(1, length, HEADS)
        parameters = {
            n: torch.rand([HEADS if isinstance(s, str) else s for s in shape])
            for n, shape in spec.parameters(E).items()
        }
        if spec.needs_running_gate:
            parameters["running_gate_score"] = ones
        _, state = tw.attend(
            query, query, value, spec, parameters=parameters, output_final_state=True,
            log_decay=-ones if spec.log_decay else None,
            input_gate=ones if spec.input_gate is True else None,
            output_gate=ones if spec.output_gate else None,
        )  # fmt: skip
        assert state is not None
        equal(tw.cost(spec, D, E, length, kv_heads=HEADS).state_bytes, state.nbytes, f"{length} tokens")


@pytest.mark.parametrize(
    ("orders", "width", "features", "break_even"),
    [
        ("0..2", 64, 2145, 1089),
        ("0..3!", 64, 47905, 24327),
        ("0..3!", 32, 6545, 3375),
        ("0..4", 16, 4845, 2574),
        ("0..2", 16, 153, 81),
    ],
)
def test_widths_and_break_even(orders: str, width: int, features: int, break_even: int) -> None:
    costs = tw.cost(parse(f"taylor:{orders}"), width, width, 8192)
    equal((costs.features, costs.break_even), (features, break_even))
    equal(costs.moment_bytes, 4 * features * (width + 1))
