"""The forms agree on this very model: every check, in which stages it is made, and how much work it is.

cached = full = chunked = padded = packed = reordered = rolled back = the definition
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from termwise.evaluation import batches, decoding, forms, states
from termwise.evaluation.exam import Exam, Sizes
from termwise.evaluation.judging import Outcome
from termwise.evaluation.verify_config import STAGES

# Against float32, as a plain processor computes them; what is left is estimated by what was seen so far.
SLOWNESS = {"float64": 2.0, "even": 2.0, "float32": 1.0, "bfloat16": 1.5}


@dataclass(frozen=True)
class Check:
    """One check. `work`: tokens that are read in long calls, and calls of a token or a few."""

    name: str
    run: Callable[[Exam], Outcome]
    work: Callable[[Sizes], tuple[int, int]]
    stages: tuple[str, ...] = STAGES
    needs_cache: bool = True
    is_long: bool = False


def _full(times: float) -> Callable[[Sizes], tuple[int, int]]:
    return lambda sizes: (round(times * sizes.main), 0)


def _batch(times: float, calls: int) -> Callable[[Sizes], tuple[int, int]]:
    return lambda sizes: (round(times * 4 * sizes.batch_fold), calls)


def _documents(times: float, calls: int = 0) -> Callable[[Sizes], tuple[int, int]]:
    """Of the sequences of a batch, each as long as it is."""
    return lambda sizes: (round(times * sum(prefix + sizes.more for prefix in sizes.prefixes)), calls)


def _generated(runs: int) -> Callable[[Sizes], tuple[int, int]]:
    return lambda sizes: (2 * runs * sizes.first_fold, runs * decoding.NEW)


WIDE = ("float64", "even")
DECODED = ("float64", "float32")
CHECKS: tuple[Check, ...] = (
    Check("definition", forms.definition, _full(6), WIDE, needs_cache=False),
    Check("parallel", forms.plain, _full(1), ("float32", "bfloat16"), needs_cache=False),
    Check("sensitivity", forms.sensitivity, _full(2), needs_cache=False),
    Check("full", forms.full, _full(1), needs_cache=False),
    Check("chunked", forms.chunked, _full(3), needs_cache=False),
    Check("recurrent", forms.recurrent, lambda sizes: (sizes.main, sizes.main)),
    Check("token_by_token", forms.token_by_token, lambda sizes: (0, sizes.main)),
    Check("beyond_256", forms.beyond_256, lambda sizes: (0, 0)),
    Check("moved", forms.moved, _full(1), ("bfloat16",), needs_cache=False),
    Check("prefill_1", forms.split_at(1), lambda sizes: (sizes.main, 12), is_long=True),
    Check("prefill_63", forms.split_at(63), lambda sizes: (sizes.main, 12)),
    Check("prefill_64", forms.split_at(64), lambda sizes: (sizes.main, 12), is_long=True),
    Check("prefill_65", forms.split_at(65), lambda sizes: (sizes.main, 12), is_long=True),
    Check("prefill_127", forms.split_at(127), lambda sizes: (sizes.main, 12), is_long=True),
    Check("random_splits", forms.random_splits, lambda sizes: (3 * sizes.main, sizes.main // 6)),
    Check("same_states", states.same_states, _full(1)),
    Check("wide_sums", states.wide_sums, _full(1)),
    Check("padded_left", batches.padded("left"), _batch(3, 9)),
    Check("padded_right", batches.padded("right"), _batch(3, 9)),
    Check("padded_inside", batches.padded("scattered"), _batch(3, 9), is_long=True),
    Check("padded_nan", batches.nan_under_padding, _batch(6, 18)),
    Check("in_a_batch", batches.in_a_batch, _documents(2)),
    Check("packed", batches.packed, _documents(2.5), needs_cache=False),
    Check("packed_continued", batches.packed_then_continued, _documents(1.5, 9)),
    Check("packed_apart", batches.packed_apart, _documents(2), needs_cache=False),
    Check("reordered", batches.reordered, _batch(2, 6)),
    Check("beams_apart", batches.repeated, _batch(1, 6)),
    Check("branches", states.branches, lambda sizes: (sizes.batch_fold, 44)),
    Check("rolled_back", states.rolled_back, lambda sizes: (sizes.main, 90)),
    Check("rolled_back_batch", batches.rolled_back_together, _batch(1, 24)),
    Check("saved", states.saved, lambda sizes: (sizes.first_fold, 3)),
    Check("causal", forms.causal, _full(16)),
    Check("greedy", decoding.greedy, _generated(1), DECODED),
    Check("second_call", decoding.second_call, _batch(0.75, 2 * decoding.NEW), DECODED),
    Check("greedy_padded", decoding.in_a_padded_batch, _batch(3, 6 * decoding.NEW), DECODED),
    Check("prompt_lookup", decoding.prompt_lookup, _generated(1), DECODED),
    Check("assisted", decoding.assisted, _generated(3), DECODED),
    Check("beams", decoding.beams, lambda sizes: (6 * 24 * 54, 3 * 24), DECODED),
)


def planned(stages: Sequence[str], *, is_quick: bool) -> Iterator[tuple[str, Check]]:
    """Stage and check, in order; the stages one after another, since each casts the model."""
    for stage in stages:
        for check in CHECKS:
            if stage in check.stages and not (is_quick and check.is_long):
                yield stage, check


# What the others rest on, or what tells most of a model in little time.
FIRST = frozenset({
    "definition", "sensitivity", "parallel", "full", "chunked", "token_by_token", "beyond_256", "prefill_64", "padded_left",
    "packed_apart", "reordered", "rolled_back", "causal", "greedy",
})  # fmt: skip
SOAK = "soak"
RANKS = {
    ("original", True): 0, ("float64", True): 0, ("float32", True): 1, ("bfloat16", True): 3, ("float64", False): 4,
    ("float32", False): 4,
}  # fmt: skip
SOAK_RANKS = {"float32": 2, "bfloat16": 5}


def rank(stage: str, name: str) -> int:
    """Which checks a budget is spent on first: the smallest.

    >>> rank("float64", "definition"), rank("float32", "soak"), rank("even", "definition")
    (0, 2, 6)
    """
    return SOAK_RANKS[stage] if name == SOAK else RANKS.get((stage, name in FIRST or stage == name), 6)


def run_check(check: Check, exam: Exam) -> Outcome:
    """What a check found. An exception is a failure; what the model says is not supported, by name, is left out."""
    if check.needs_cache and exam.model.model.no_state is not None:
        return Outcome(None, status="excluded", reason=f"no state: {exam.model.model.no_state}")
    try:
        with exam.at_work():
            return check.run(exam)
    except ValueError as error:
        if "not supported" in str(error):
            return Outcome(None, status="excluded", reason=str(error))
        return _raised(error)
    except (
        RuntimeError,
        IndexError,
        TypeError,
        AttributeError,
        KeyError,
        AssertionError,
        NotImplementedError,
    ) as error:
        return _raised(error)


def _raised(error: Exception) -> Outcome:
    return Outcome(None, status="failed", reason=f"{type(error).__name__}: {' '.join(str(error).split())}")


def verdicts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """How many ended how."""
    found: dict[str, Any] = {}
    for outcome in outcomes:
        found[outcome.status] = found.get(outcome.status, 0) + 1
    return found
