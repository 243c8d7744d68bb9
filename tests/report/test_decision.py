"""The verdict: each answer from planted figures, every missing figure named, nothing recommended by an absence."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from termwise.report.decision import MISSING, Answer, Evidence, Figure, Limits, decide

LIMITS = Limits(max_loss_rise=0.05, is_default=False, stamp="2026-01-01T00:00:00Z")
GOOD = Evidence(
    loss_rise=Figure(0.02, 0.01, 0.03),
    memory=Figure(0.25, 0.25, 0.25),
    latency=Figure(0.6, 0.55, 0.65),
    rival=Figure(-0.03, -0.05, -0.01),
    checks_passed=30,
    is_soaked=True,
    is_timed_on_target=True,
)
RECOMMENDED = (Answer.ADOPT, Answer.CONDITIONS)


def with_(**changes):
    return dataclasses.replace(GOOD, **changes)


def test_everything_good_is_adopted():
    decision = decide(GOOD, LIMITS)
    assert (decision.answer, decision.rule, decision.missing, decision.conditions) == (
        Answer.ADOPT,
        "all_hold",
        (),
        (),
    )


@pytest.mark.parametrize(
    ("changes", "answer", "rule"),
    [
        ({"checks_failed": ("rollback",)}, Answer.REJECT, "checks_failed"),
        ({"loss_rise": Figure(0.08, 0.06, 0.10)}, Answer.REJECT, "loss_too_high"),
        ({"loss_rise": Figure(0.08)}, Answer.REJECT, "loss_too_high"),
        ({"rival": Figure(0.01, -0.01, 0.03)}, Answer.REJECT, "rival_is_as_good"),
        ({"rival": Figure(0.0)}, Answer.REJECT, "rival_is_as_good"),
        ({"memory": Figure(1.2, 1.2, 1.2), "latency": Figure(1.0, 0.9, 1.1)}, Answer.REJECT, "no_gain"),
        ({"loss_rise": MISSING}, Answer.UNKNOWN, "loss_missing"),
        ({"loss_rise": Figure(0.04, 0.02, 0.06)}, Answer.UNKNOWN, "loss_undecided"),
        ({"loss_rise": Figure(0.02)}, Answer.UNKNOWN, "loss_undecided"),
        ({"rival": MISSING}, Answer.UNKNOWN, "rival_missing"),
        ({"memory": MISSING, "latency": MISSING}, Answer.UNKNOWN, "gain_missing"),
        ({"memory": MISSING, "latency": Figure(1.0, 0.9, 1.1)}, Answer.UNKNOWN, "gain_missing"),
    ],
)
def test_each_rule(changes, answer, rule):
    decision = decide(with_(**changes), LIMITS)
    assert (decision.answer, decision.rule) == (answer, rule)


@pytest.mark.parametrize(
    ("changes", "condition"),
    [
        ({"checks_passed": None}, "verify"),
        ({"is_soaked": False}, "soak"),
        ({"is_timed_on_target": False}, "target"),
        ({"rival": Figure(-0.01, -0.03, 0.01)}, "rival_undecided"),
        ({"latency": MISSING}, "measure_latency"),
        ({"memory": MISSING}, "measure_memory"),
        ({"latency": Figure(1.5, 1.4, 1.6)}, "worse_latency"),
        ({"memory": Figure(1.5, 1.5, 1.5)}, "worse_memory"),
    ],
)
def test_each_condition(changes, condition):
    decision = decide(with_(**changes), LIMITS)
    assert decision.answer is Answer.CONDITIONS
    assert decision.conditions == (condition,)


def test_limits_nobody_chose_are_a_condition():
    assert decide(GOOD, Limits()).conditions == ("choose_limits",)


@pytest.mark.parametrize(
    ("name", "value"),
    [("loss_rise", MISSING), ("memory", MISSING), ("latency", MISSING), ("rival", MISSING), ("checks_passed", None),
     ("is_soaked", False), ("is_timed_on_target", False)],
)  # fmt: skip
def test_each_missing_figure_is_named_and_keeps_from_adoption(name, value):
    decision = decide(with_(**{name: value}), LIMITS)
    assert len(decision.missing) == 1
    assert decision.answer is not Answer.ADOPT


def test_models_trained_from_scratch_have_no_rival():
    assert decide(with_(rival=MISSING, has_rival=False), LIMITS).answer is Answer.ADOPT


def figures(low, high):
    number = st.floats(low, high)
    intervals = st.tuples(number, st.floats(0, 0.2), st.floats(0, 0.2)).map(
        lambda t: Figure(t[0], t[0] - t[1], t[0] + t[2])
    )
    return st.one_of(st.just(MISSING), number.map(Figure), intervals)


evidences = st.builds(
    Evidence,
    loss_rise=figures(-0.2, 0.2),
    memory=figures(0.0, 2.0),
    latency=figures(0.0, 2.0),
    rival=figures(-0.2, 0.2),
    checks_passed=st.one_of(st.none(), st.just(9)),
    checks_failed=st.sampled_from([(), ("beam reorder",)]),
    is_soaked=st.booleans(),
    is_timed_on_target=st.booleans(),
)


@given(evidences, st.sampled_from(["loss_rise", "memory", "latency", "rival"]))
def test_taking_a_figure_away_never_makes_a_recommendation(evidence, name):
    without = dataclasses.replace(evidence, **{name: MISSING})
    if decide(evidence, LIMITS).answer not in RECOMMENDED:
        assert decide(without, LIMITS).answer not in RECOMMENDED
    if decide(evidence, LIMITS).answer is Answer.CONDITIONS:
        assert decide(without, LIMITS).answer is not Answer.ADOPT


@given(evidences)
def test_what_is_recommended_is_proven(evidence):
    decision = decide(evidence, LIMITS)
    if decision.answer in RECOMMENDED:
        assert evidence.loss_rise.high <= LIMITS.max_loss_rise
        assert evidence.rival.value < 0
        assert not evidence.checks_failed
        assert min(f.high for f in (evidence.memory, evidence.latency) if f.high is not None) < 1
    if decision.answer is Answer.ADOPT:
        assert evidence.rival.high < 0
        assert not decision.missing


@given(evidences, st.floats(0, 0.2))
def test_a_stricter_limit_never_recommends_more(evidence, stricter):
    loose, strict = LIMITS, dataclasses.replace(LIMITS, max_loss_rise=min(stricter, LIMITS.max_loss_rise))
    if decide(evidence, strict).answer in RECOMMENDED:
        assert decide(evidence, loose).answer in RECOMMENDED


def test_two_equal_models_are_rarely_recommended():
    """2,000 pairs of equal models: loss, memory and latency are noise around no difference."""
    generator = np.random.default_rng(0)

    def interval(center, spread, n=8):
        from scipy import special

        values = center + spread * generator.standard_normal(n)
        half = special.stdtrit(n - 1, 0.975) * values.std(ddof=1) / n**0.5
        return Figure(values.mean(), values.mean() - half, values.mean() + half)

    answers = []
    for _ in range(2000):
        evidence = Evidence(
            loss_rise=interval(0.0, 0.02), memory=Figure(1.0, 1.0, 1.0), latency=interval(1.0, 0.05), has_rival=False,
            checks_passed=9, is_soaked=True, is_timed_on_target=True,
        )  # fmt: skip
        answers.append(decide(evidence, LIMITS).answer)
    assert sum(answer in RECOMMENDED for answer in answers) / len(answers) <= 0.06


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Figure(None, 0.0, 1.0), "interval without a value"),
        (lambda: Figure(1.0, 0.5), "both ends"),
        (lambda: Limits(max_loss_rise=-1), "max_loss_rise=-1"),
        (lambda: Limits(max_latency_ratio=float("nan")), "max_latency_ratio=nan"),
        (lambda: Limits(max_memory_ratio=True), "max_memory_ratio=True"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()
