"""Prefill: `attend` over a whole prompt, its final state handed back, against the fused baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from termwise.attention.cost import cost, shared_bytes
from termwise.attention.forms import attend
from termwise.attention.monomials import total_width
from termwise.attention.spec import AttentionSpec
from termwise.attention.state import AttentionState, stored_orders
from termwise.bench import agreement
from termwise.bench.baseline import FusedAttention
from termwise.bench.config import BASELINE
from termwise.bench.inputs import Shape, form_of, plain_tensors, tensors
from termwise.bench.rows import Figure, Row
from termwise.bench.timing import Spread, interleaved, seconds

# A longer prompt is warmed up on its first tokens only.
WARM_LENGTH = 8192


@torch.no_grad()
def measure(specs: Mapping[str, AttentionSpec], shape: Shape, length: int, repeats: int, seed: int) -> list[Row]:
    """A row of the baseline and of every spec at one length."""
    baseline = FusedAttention(shape, length)
    plain = plain_tensors(shape, length, seed)
    given = {name: tensors(spec, shape, length, seed, plain) for name, spec in specs.items()}
    warm = {name: tensor[:, :WARM_LENGTH] for name, tensor in plain.items()}
    baseline.prefill(**warm)
    runs = {BASELINE: lambda: seconds(lambda: baseline.prefill(**plain), shape)}
    rows: dict[str, Row] = {}
    states: dict[str, list[Figure]] = {}
    for name, spec in specs.items():
        # This call warms up as well: the form, the shape and the tensors are those that are timed.
        try:
            out, state = attend(**given[name], spec=spec, output_final_state=True)
        except ValueError as error:
            rows[name] = Row(name, "prefill", length, missing=str(error))
            continue
        assert state is not None
        form, why = form_of(spec, shape, length)
        failed = agreement.of_prefill(spec, given[name], out).reason
        rows[name] = Row(name, "prefill", length, form=form, why=why, failed=failed)
        states[name] = state_figures(spec, shape, length, state)
        if failed is None:
            runs[name] = _run(spec, given[name], shape)
    times = interleaved(runs, repeats)
    found = [Row(BASELINE, "prefill", length, tuple(times[BASELINE]), length, form="sdpa")]
    for name, row in rows.items():
        if name in times:
            share = operations(specs[name], shape, length) / Spread.of(times[name]).median
            counted = Figure(
                "speed", "prefill_operations", "operations/s", share, method="4 features e a token and head"
            )
            ratios = [ours / theirs for ours, theirs in zip(times[BASELINE], times[name], strict=True)]
            row = Row(
                name, "prefill", length, tuple(times[name]), length, row.form, row.why, tuple(ratios),
                (*states[name], *([counted] if specs[name].is_constant_size else [])), started=row.started,
            )  # fmt: skip
        found.append(row)
    return found


def _run(spec: AttentionSpec, given: dict[str, Any], shape: Shape) -> Any:
    return lambda: seconds(lambda: attend(**given, spec=spec, output_final_state=True), shape)


def operations(spec: AttentionSpec, shape: Shape, length: int) -> int:
    """Multiplications and additions of a prompt as they are counted here: 4 features e for each token and query head."""
    features = total_width(shape.key_width, stored_orders(spec))
    return 4 * features * shape.value_width * length * shape.heads * shape.batch


def state_figures(spec: AttentionSpec, shape: Shape, length: int, state: AttentionState) -> list[Figure]:
    """Live bytes of the state, by the formula (a bfloat16 copy included where it has one), and of a cache of the same tokens."""
    reads_half = state.half is not None
    one = cost(spec, shape.key_width, shape.value_width, length, kv_heads=shape.kv_heads, reads_half=reads_half)
    formula = shape.batch * one.state_bytes - (shape.batch - 1) * shared_bytes(spec, length)
    cache = shape.batch * (one.cache_bytes if shape.dtype == torch.float32 else one.cache_bytes_half)
    return [
        Figure("memory", "state", "B", state.nbytes),
        Figure("memory", "state_formula", "B", formula),
        Figure("memory", "cache", "B", cache, method="keys and values of all tokens in the type of the inputs"),
    ]
