"""One value of each way of keeping keys, and sequences run in parts with the state handed over."""

from __future__ import annotations

import itertools

import torch

from termwise.attention.forms import attend
from termwise.attention.names import parse
from tests.attention.slicing import tokens

# One of each way of keeping keys: moments about zero and a reference, slots, decay, running gate, count gate, dropped keys, the cache.
KINDS = (
    "taylor:0..2", "taylor:0..2@mean", "taylor:0..2@mean+w8s2", "taylor:0..4@mean+w5s1|l2", "taylor:0..2@mean+w8s2+decay", "power:2+decay",
    "taylor:0..1@mean+decay", "elu1|runninggate+decay", "taylor:0..2+w7s2|runninggate", "unit|identity+gc", "elu1", "taylor:0..2|layer",
    "drop+w8s2|l2", "drop+w1s2+decay", "exp", "exp+decay", "exp<5|runninggate*count", "exp+gc", "minimax3:0..4@mean",
    "drop+w8s2h4e16", "taylor:0..2@mean+w8s2h5e16+gi", "taylor:0..1@mean3+w4s1h3e7", "taylor:0..2+w8e32",
)  # fmt: skip
FOLDING = tuple(name for name in KINDS if not parse(name).evicts)  # keys leave as they come, or never
EVICTING = tuple(name for name in KINDS if parse(name).evicts)  # at fixed positions


def form_of(spec, turn: int) -> tuple[str, int | None]:
    choices = (
        (("chunked", 16), ("recurrent", None), ("parallel", None))
        if spec.is_constant_size
        else (("parallel", None), ("recurrent", None), ("auto", None))
    )
    return choices[turn % 3]


def in_parts(arguments: dict, spec, cuts: list[int], state=None, turn: int = 0, **options):
    """Outputs of consecutive calls, each in the next form, and the last state."""
    length, outputs = arguments["query"].shape[1], []
    edges = [0, *cuts, length]
    for i, (start, stop) in enumerate(itertools.pairwise(edges)):
        form, size = form_of(spec, turn + i) if stop - start > 1 else ("auto", None)
        out, state = attend(
            **tokens(arguments, start, stop),
            spec=spec,
            form=form,
            chunk_size=size,
            initial_state=state,
            output_final_state=True,
            **options,
        )
        outputs.append(out)
    return torch.cat(outputs, dim=1), state
