"""Properties of the rules over any evidence: nothing missing is ever read as a number, worse is never better."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from termwise.report.decision.evidence import Checks, Complexity, Evidence
from termwise.report.decision.figures import MISSING, Figure, Pair
from termwise.report.decision.limits import Limits
from termwise.report.decision.rules import Answer, Outcome, decide, judge_loss, judge_ratio, judge_slots
from termwise.report.flaws import Flaw

RANK = {Answer.REJECT: 0, Answer.OPEN: 1, Answer.CONDITIONS: 2, Answer.ADOPT: 3}
# Values on both sides of the usual limits, so that every rule is reached often.
LOSSES, RATIOS = (-0.1, -0.01, 0.0, 0.02, 0.05, 0.06, 0.3), (0.2, 0.5, 0.9, 1.0, 1.1, 2.0)


@some.composite
def figures(draw, values):
    """Missing, without an interval, or with one."""
    kind = draw(some.sampled_from(["missing", "bare", "bounded", "bounded", "bounded"]))
    if kind == "missing":
        return MISSING
    low, value, high = sorted(draw(some.lists(some.sampled_from(values), min_size=3, max_size=3)))
    return Figure(value) if kind == "bare" else Figure(value, low, high)


@some.composite
def checks(draw):
    """Not made, broken off, passed, failed, with and without the soak."""
    return Checks(
        num_passed=draw(some.sampled_from([0, 20, 20, 20])),
        num_failed=draw(some.sampled_from([0, 0, 0, 2])),
        has_soak=draw(some.booleans()),
        is_whole=draw(some.sampled_from([True, True, False])),
    )


def pairs(values):
    """A change alone: the rules look at nothing else."""
    return some.builds(lambda change: Pair(change=change), figures(values))


EVIDENCE = some.builds(
    Evidence,
    candidate=some.just("a"),
    today=some.just("b"),
    context=some.sampled_from([None, 512, 4096]),
    accuracy_context=some.sampled_from([None, 512, 4096, 8192]),
    accuracy=pairs(LOSSES),
    memory=pairs(RATIOS),
    latency=pairs(RATIOS),
    slots=figures(LOSSES),
    needs_slots=some.booleans(),
    checks=checks(),
    complexity=some.builds(Complexity, engines=some.sampled_from([(), ("transformers",)])),
    machine=some.sampled_from(["", "AMD EPYC", "AMD EPYC"]),
    is_demonstration=some.sampled_from([False, False, False, True]),
    flaws=some.sampled_from([(), (), (), (Flaw("incomplete", "run"),)]),
)
LIMITS = some.builds(
    Limits,
    accuracy=some.sampled_from([0.0, 0.05, 0.2]),
    memory=some.sampled_from([None, None, 0.5, 1.2]),
    latency=some.sampled_from([None, None, 0.5, 1.2]),
    machine=some.sampled_from([None, "epyc", "xeon"]),
    engines=some.sampled_from([(), ("transformers",), ("vllm",)]),
)
ADOPTED = Evidence(
    "a", "b", 4096, 4096, Pair(change=Figure(0.01, 0.0, 0.02)), Pair(change=Figure(0.5, 0.5, 0.5)),
    Pair(change=Figure(0.5, 0.4, 0.6)), slots=Figure(-0.1, -0.2, -0.05), needs_slots=True, checks=Checks(20, has_soak=True),
    machine="AMD EPYC",
)  # fmt: skip
ASKED = Limits(machine="EPYC")


def without(evidence: Evidence, name: str) -> Evidence:
    """The same with one thing not measured."""
    empty = {"checks": Checks(), "slots": MISSING, "machine": ""}.get(name, Pair())
    return dataclasses.replace(evidence, **{name: empty})


def test_the_starting_point_of_these_tests_is_adopted():
    assert decide(ADOPTED, ASKED).answer is Answer.ADOPT


@pytest.mark.parametrize("name", ["accuracy", "memory", "latency", "slots", "checks", "machine"])
def test_without_any_one_of_its_figures_it_is_not_adopted_and_the_figure_is_named(name):
    found = decide(without(ADOPTED, name), ASKED)
    assert found.answer is not Answer.ADOPT and name in found.missing


@settings(max_examples=300, deadline=None)
@given(EVIDENCE, LIMITS, some.sampled_from(["incomplete", "implausible", "unfinished"]))
def test_a_run_with_something_wrong_is_never_recommended(evidence, limits, why):
    found = decide(dataclasses.replace(evidence, flaws=(Flaw(why, "run"),)), limits)
    assert found.answer in (Answer.OPEN, Answer.REJECT)


def test_without_the_soak_it_is_not_adopted():
    found = decide(dataclasses.replace(ADOPTED, checks=Checks(20)), ASKED)
    assert found.answer is Answer.CONDITIONS and found.conditions == ("soak",) and found.missing == ("soak",)


@settings(max_examples=500, deadline=None)
@given(EVIDENCE, LIMITS)
def test_nothing_is_adopted_with_anything_missing(evidence, limits):
    found = decide(evidence, limits)
    if found.answer is Answer.ADOPT:
        assert not found.missing and not found.conditions
        assert Outcome.MISSING not in found.outcomes.values() and Outcome.OPEN not in found.outcomes.values()
        assert not evidence.flaws and evidence.checks.num_failed == 0 and evidence.checks.has_soak and evidence.machine
    assert (found.answer is Answer.CONDITIONS) <= bool(found.conditions)
    assert bool(found.reason) and bool(found.next_stage)


@settings(max_examples=300, deadline=None)
@given(EVIDENCE, LIMITS)
def test_what_slots_alone_beat_is_never_recommended(evidence, limits):
    beaten = dataclasses.replace(evidence, needs_slots=True, slots=Figure(0.05, 0.01, 0.1))
    assert RANK[decide(beaten, limits).answer] <= RANK[Answer.OPEN]
    unproven = dataclasses.replace(evidence, needs_slots=True, slots=Figure(-0.05, -0.1, 0.01))
    assert RANK[decide(unproven, limits).answer] <= RANK[Answer.OPEN]


@settings(max_examples=500, deadline=None)
@given(EVIDENCE, LIMITS, some.floats(0, 1), some.sampled_from(["accuracy", "slots", "memory", "latency"]))
def test_worse_never_gives_a_better_answer(evidence, limits, shift, name):
    def moved(figure: Figure) -> Figure:
        ends = [None if end is None else end + shift for end in (figure.value, figure.low, figure.high)]
        return Figure(*ends)

    held = getattr(evidence, name)
    worse = moved(held) if name == "slots" else Pair(change=moved(held.change))
    changed = dataclasses.replace(evidence, **{name: worse})
    assert RANK[decide(changed, limits).answer] <= RANK[decide(evidence, limits).answer]


@settings(max_examples=500, deadline=None)
@given(EVIDENCE, LIMITS, some.floats(0, 1), some.sampled_from(["accuracy", "slots", "memory", "latency"]))
def test_a_wider_far_end_never_gives_a_better_answer(evidence, limits, wider, name):
    def widened(figure: Figure) -> Figure:
        return figure if figure.high is None else dataclasses.replace(figure, high=figure.high + wider)

    held = getattr(evidence, name)
    changed = dataclasses.replace(
        evidence, **{name: widened(held) if name == "slots" else Pair(change=widened(held.change))}
    )
    assert RANK[decide(changed, limits).answer] <= RANK[decide(evidence, limits).answer]


@settings(max_examples=500, deadline=None)
@given(EVIDENCE, LIMITS, some.sampled_from(["accuracy", "memory", "latency", "slots", "machine"]))
def test_a_missing_figure_is_never_read_as_a_good_one(evidence, limits, name):
    """Without what speaks against a candidate nothing can be said; never does a gap turn into a recommendation."""
    before, after = decide(evidence, limits).answer, decide(without(evidence, name), limits).answer
    assert RANK[after] <= max(RANK[before], RANK[Answer.OPEN])


@settings(max_examples=300, deadline=None)
@given(EVIDENCE, LIMITS)
def test_checks_that_were_not_made_never_give_more_than_conditions(evidence, limits):
    assert RANK[decide(without(evidence, "checks"), limits).answer] <= RANK[Answer.CONDITIONS]


@settings(max_examples=300, deadline=None)
@given(EVIDENCE, LIMITS)
def test_a_stricter_limit_never_gives_a_better_answer(evidence, limits):
    stricter = limits.model_copy(update={"accuracy": limits.accuracy / 2, "memory": (limits.memory or 2.0) / 2})
    assert RANK[decide(evidence, stricter).answer] <= RANK[decide(evidence, limits).answer]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(-0.2, -0.1, "better"), (-0.1, 0.05, "within"), (0.0, 0.05, "within"), (0.0, 0.051, "open"), (0.051, 0.2, "broken"), (0.05, 0.06, "open")],
)  # fmt: skip
def test_a_loss_passes_by_its_far_end_and_fails_by_its_near_end(low, high, expected):
    assert judge_loss(Figure((low + high) / 2, low, high), 0.05) == Outcome(expected)
    assert judge_loss(Figure(0.0), 0.05) is Outcome.OPEN and judge_loss(MISSING, 0.05) is Outcome.MISSING


@pytest.mark.parametrize(
    ("low", "high", "allowed", "expected"),
    [
        (0.4, 0.6, None, "better"), (0.9, 1.1, None, "within"), (1.1, 1.2, None, "worse"), (1.0, 1.0, None, "within"),
        (0.4, 0.6, 0.5, "open"), (0.51, 0.6, 0.5, "broken"), (0.4, 0.5, 0.5, "better"), (1.1, 1.2, 1.5, "worse"),
    ],
)  # fmt: skip
def test_bytes_and_seconds_against_today_and_a_limit(low, high, allowed, expected):
    assert judge_ratio(Figure((low + high) / 2, low, high), allowed) == Outcome(expected)
    assert judge_ratio(Figure(0.1), allowed) is Outcome.OPEN and judge_ratio(MISSING, allowed) is Outcome.MISSING


def test_slots_alone_are_beaten_only_beyond_the_interval():
    assert judge_slots(Figure(-0.1, -0.2, -0.01)) is Outcome.BETTER
    assert judge_slots(Figure(-0.1, -0.2, 0.0)) is Outcome.OPEN
    assert judge_slots(Figure(0.1, 0.01, 0.2)) is Outcome.BROKEN
    assert judge_slots(MISSING) is Outcome.MISSING


def test_a_loss_on_texts_of_unknown_length_is_not_taken_for_one_at_the_context():
    found = decide(dataclasses.replace(ADOPTED, accuracy_context=None), ASKED)
    assert found.answer is Answer.OPEN and found.reason == "accuracy_context"
