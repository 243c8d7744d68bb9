"""Decode at depth: one token at a time against what so many earlier tokens left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from termwise.attention.forms import attend
from termwise.attention.spec import AttentionSpec
from termwise.attention.state import AttentionState
from termwise.bench import agreement
from termwise.bench.baseline import FusedAttention
from termwise.bench.config import BASELINE
from termwise.bench.estimate import STRETCH
from termwise.bench.inputs import Shape, form_of, piece, plain_tensors, tensors
from termwise.bench.prefill import state_figures
from termwise.bench.rows import Figure, Row
from termwise.bench.timing import CLOCKS, Spread, interleaved, seconds, synchronize

# Of the consecutive tokens of a sample. Two folds of 64 lie inside, so their mean is what a token costs in the long run.
CHECKED = (0, 62, 63, 64, 65, 127)
# Tokens at a time while a state of some depth is made, untimed.
PIECE = 2048
READS = 32
Times = list[float]


@torch.no_grad()
def measure(
    specs: Mapping[str, AttentionSpec], shape: Shape, length: int, repeats: int, seed: int, half_state: bool = False
) -> list[Row]:
    """A row of the baseline and of every spec after `length` tokens. `half_state`: states are read from a bfloat16 copy."""
    plain = plain_tensors(shape, length + STRETCH, seed)
    runs: dict[str, Callable[[], Times]] = {BASELINE: _baseline(plain, shape, length)}
    rows: dict[str, Row] = {}
    for name, spec in specs.items():
        given = tensors(spec, shape, length + STRETCH, seed, plain)
        try:
            state = state_after(spec, given, length)
            state = state.reading_half() if half_state else state
        except ValueError as error:
            rows[name] = Row(name, "decode", length, missing=str(error))
            continue
        form, why = form_of(spec, shape, 1, depth=length)
        failed = _disagreement(spec, given, state, length)
        row = Row(name, "decode", length, num_tokens=STRETCH, form=form, why=why, failed=failed)
        rows[name] = replace(row, figures=tuple(state_figures(spec, shape, length, state)))
        if failed is None:
            runs[name] = _steps(spec, given, state, length, shape)
            if spec.is_constant_size:
                runs[f"read {name}"] = reads(_bytes_read(state), shape)
    for run in runs.values():
        run()
    times = interleaved(runs, repeats)
    found = [Row(BASELINE, "decode", length, *_samples(times[BASELINE]), form="sdpa", figures=_single(times[BASELINE]))]
    for name, row in rows.items():
        if name in times:
            samples, _ = _samples(times[name])
            ratios = [ours / theirs for ours, theirs in zip(found[0].samples, samples, strict=True)]
            figures = (*row.figures, *_single(times[name]), *_over_read(times, name))
            row = replace(row, samples=samples, ratios=tuple(ratios), figures=figures)
        found.append(row)
    return found


def state_after(spec: AttentionSpec, given: dict[str, Any], length: int) -> AttentionState:
    """The state after the first `length` tokens, made piece by piece."""
    state = None
    for start in range(0, length, PIECE):
        tokens = piece(given, start, min(start + PIECE, length))
        _, state = attend(**tokens, spec=spec, initial_state=state, output_final_state=True)
    assert state is not None
    return state


def _steps(
    spec: AttentionSpec, given: dict[str, Any], state: AttentionState, start: int, shape: Shape
) -> Callable[[], Times]:
    """Seconds of each of the next tokens, every time from the same state."""
    tokens = [piece(given, start + i, start + i + 1) for i in range(STRETCH)]

    def run() -> Times:
        last, clock, now = state, [], CLOCKS[shape.clock]
        for token in tokens:
            started = now()
            _, after = attend(**token, spec=spec, initial_state=last, output_final_state=True)
            synchronize(shape.device)
            clock.append(now() - started)
            assert after is not None
            last = after
        return clock

    return run


def _baseline(plain: dict[str, Tensor], shape: Shape, start: int) -> Callable[[], Times]:
    attention = FusedAttention(shape, start + STRETCH)
    attention.fill(plain["key"], plain["value"], 0)
    tokens = [piece(plain, start + i, start + i + 1) for i in range(STRETCH)]
    return lambda: [
        seconds(lambda place=start + i, token=token: attention.step(**token, start=place), shape)  # type: ignore[misc]
        for i, token in enumerate(tokens)
    ]


def reads(num_bytes: int, shape: Shape) -> Callable[[], Times]:
    """Seconds of reading as many bytes once, as a sum."""
    held = torch.ones(max(1, num_bytes // 4), device=shape.device)
    return lambda: [seconds(held.sum, shape) for _ in range(READS)]


def _bytes_read(state: AttentionState) -> int:
    """What a step reads of a state: in place of the moments their copy, if there is one."""
    return state.nbytes - (state.moments.nbytes if state.half is not None and state.moments is not None else 0)


def _disagreement(spec: AttentionSpec, given: dict[str, Any], state: AttentionState, length: int) -> str | None:
    """Why these steps may not be timed; None where they agree with the definition."""
    outputs, now = [], state
    for i in range(STRETCH):
        out, after = attend(
            **piece(given, length + i, length + i + 1), spec=spec, initial_state=now, output_final_state=True
        )
        assert after is not None
        outputs.append(out)
        now = after
    checked = CHECKED[-2:] if spec.log_decay else CHECKED
    rows = [length + i for i in checked]
    return agreement.of_rows(spec, given, rows, torch.cat([outputs[i] for i in checked], dim=1)).reason


def _samples(rounds: list[Times]) -> tuple[tuple[float, ...], int]:
    """The mean over the stretch, a repeat, and its number of tokens."""
    return tuple(sum(clock) / len(clock) for clock in rounds), STRETCH


def _single(rounds: list[Times]) -> tuple[Figure, ...]:
    """Single steps: most only read, every 64th folds."""
    spread = Spread.of([step for clock in rounds for step in clock])
    return (Figure("speed", "decode_single", "s", spread.median, spread, "single steps, percentiles 10, 50 and 90"),)


def _over_read(times: Mapping[str, list[Times]], name: str) -> tuple[Figure, ...]:
    """The amortised step over one read of as many bytes as the state has, round by round."""
    if f"read {name}" not in times:
        return ()
    pairs = zip(times[name], times[f"read {name}"], strict=True)
    over = [sum(step) / len(step) / Spread.of(read).median for step, read in pairs]
    read = Spread.of([one for clock in times[f"read {name}"] for one in clock])
    return (
        Figure("speed", "state_read", "s", read.median, read, "the sum of as many bytes"),
        Figure("speed", "decode_over_read", "1", None, Spread.of(over), "amortised step over one read, round by round"),
    )
