"""From planted run folders to each of the four answers, and what each missing figure does to them."""

from __future__ import annotations

import pytest
from planted_runs import CONTEXT, MACHINE, bench, convert, inspect, plan, study, verify

from termwise.report.decision.case import gather
from termwise.report.decision.limits import Limits
from termwise.report.decision.rules import Answer, Outcome

LIMITS = Limits(context=CONTEXT, machine="epyc 9654", engines=("transformers",))


@pytest.fixture
def everything(tmp_path):
    """A conversion that keeps every limit, verified, timed on the machine it will run on."""

    def plant(*, made=None, checked=None, timed=None, limits=LIMITS):
        model = convert(tmp_path / "converted", **(made or {}))
        folders = [model]
        if checked is not None:
            folders.append(verify(tmp_path / "verified", model, **checked))
        if timed is not None:
            folders.append(bench(tmp_path / "timed", str(model), **timed))
        return gather(folders, limits).verdicts[0]

    return plant


def test_all_that_is_asked_for_is_adopted(everything):
    found = everything(checked={}, timed={})
    assert found.decision.answer is Answer.ADOPT and found.decision.reason == "all_hold"
    assert found.decision.missing == () and found.decision.conditions == ()
    assert found.decision.outcomes == {
        "accuracy": Outcome.WITHIN, "memory": Outcome.BETTER, "latency": Outcome.BETTER, "slots": Outcome.BETTER,
    }  # fmt: skip
    evidence = found.evidence
    assert evidence.candidate == "converted" and evidence.today == "original" and evidence.machine == MACHINE["cpu"]
    assert evidence.memory.change.value == pytest.approx(0.25)
    assert evidence.latency.change.value == pytest.approx(0.5)
    assert evidence.slots.value == pytest.approx(-0.2)
    assert evidence.crossing.value == 1500
    assert len(evidence.sources) == 3


@pytest.mark.parametrize(
    ("more", "condition", "missing"),
    [
        ({"timed": {}}, "verify", "checks"),
        ({"timed": {}, "checked": {"is_whole": False}}, "verify", "checks"),
        ({"timed": {}, "checked": {"soak": 0}}, "soak", "soak"),
        ({"timed": {}, "checked": {"soak": 1024}}, "soak", "soak"),
        ({"timed": {}, "checked": {"left": ("drift",)}}, "soak", "soak"),
        ({"checked": {}}, "bench", "latency"),
        ({"checked": {}, "timed": {"ratio": None}}, "bench", "latency"),
        ({"checked": {}, "timed": {"lengths": (1024,)}}, "bench", "latency"),
        ({"checked": {}, "timed": {"cpu": ""}}, "bench_on_target", "machine"),
        ({"checked": {}, "timed": {}, "made": {"share": None}}, "memory", "memory"),
    ],
)
def test_what_a_deployment_needs_and_is_missing_is_a_condition_and_named(everything, more, condition, missing):
    decision = everything(**more).decision
    assert decision.answer is Answer.CONDITIONS
    assert condition in decision.conditions and missing in decision.missing
    assert decision.reason == decision.conditions[0] == decision.next_stage


@pytest.mark.parametrize(
    ("limits", "condition"),
    [
        (Limits(context=CONTEXT), "bench_on_target"),
        (Limits(context=CONTEXT, machine="Xeon"), "bench_on_target"),
        (Limits(context=CONTEXT, machine="EPYC", engines=("vLLM",)), "engine"),
    ],
)
def test_another_machine_or_engine_is_a_condition(everything, limits, condition):
    decision = everything(checked={}, timed={}, limits=limits).decision
    assert decision.answer is Answer.CONDITIONS and decision.conditions == (condition,)


def test_a_small_gain_that_is_shown_is_a_gain(everything):
    decision = everything(made={"share": 0.96}, checked={}, timed={"ratio": (0.5, 0.49, 0.51)}).decision
    assert decision.answer is Answer.CONDITIONS and decision.conditions == ("accept_latency",)


def test_slower_but_smaller_has_to_be_accepted(everything):
    decision = everything(checked={}, timed={"ratio": (0.5, 0.49, 0.51)}).decision
    assert decision.answer is Answer.CONDITIONS and decision.conditions == ("accept_latency",)


@pytest.mark.parametrize(
    ("more", "limits", "reason"),
    [
        ({"made": {"rise": None}}, {}, "accuracy_missing"),
        ({"made": {"rise": (0.01, 0.09)}}, {}, "accuracy_open"),
        ({"made": {"over_window": None}}, {}, "slots_missing"),
        ({"made": {"over_window": 0.0}}, {}, "slots_open"),
        ({"made": {"text_context": 512}}, {}, "accuracy_context"),
        ({"made": {"share": None}}, {"memory": 0.5}, "memory_missing"),
        ({"timed": None}, {"latency": 0.8}, "latency_missing"),
        ({"timed": {"ratio": (1.2, 0.9, 1.6), "num_repeats": 3}}, {"latency": 0.9}, "latency_open"),
        ({"made": {"share": None}, "timed": None}, {}, "gain_open"),
        ({"made": {"share": 1.5}, "timed": {"ratio": (1.2, 0.5, 2.9)}}, {}, "gain_open"),
        ({"made": {"demonstration": True}}, {}, "demonstration"),
    ],
)
def test_what_decides_and_is_missing_or_open_cannot_be_said(everything, more, limits, reason):
    found = everything(**({"checked": {}, "timed": {}} | more), limits=LIMITS.model_copy(update=limits))
    assert (found.decision.answer, found.decision.reason) == (Answer.OPEN, reason)
    assert found.decision.next_stage == reason


@pytest.mark.parametrize(
    ("more", "limits", "reason"),
    [
        ({"checked": {"failed": ("parallel",)}}, {}, "checks_failed"),
        ({"checked": {"failed": ("drift",)}}, {}, "checks_failed"),
        ({"made": {"rise": (0.06, 0.2)}}, {}, "accuracy_broken"),
        ({"made": {"rise": (0.06, 0.2), "text_context": 512}}, {}, "accuracy_broken"),
        ({}, {"memory": 0.2}, "memory_broken"),
        ({"timed": {"ratio": (0.5, 0.49, 0.51)}}, {"latency": 1.1}, "latency_broken"),
        ({"made": {"over_window": 0.1}}, {}, "slots_broken"),
        ({"made": {"share": 1.5}, "timed": {"ratio": (0.5, 0.49, 0.51)}}, {}, "no_gain"),
        ({"made": {"share": 1.0}, "timed": {"ratio": (1.0, 0.999, 1.001)}}, {}, "no_gain"),
        ({"made": {"share": 1.0}, "timed": {"ratio": (1.01, 0.98, 1.04)}}, {}, "no_gain"),
    ],
)
def test_what_speaks_against_it_rejects(everything, more, limits, reason):
    found = everything(**({"checked": {}, "timed": {}} | more), limits=LIMITS.model_copy(update=limits))
    assert (found.decision.answer, found.decision.reason) == (Answer.REJECT, reason)
    assert found.decision.next_stage == "stop" and found.decision.conditions == ()


def test_an_unfinished_verification_that_found_a_failure_rejects(everything):
    found = everything(checked={"failed": ("parallel",), "is_whole": False}, timed={})
    assert found.decision.reason == "checks_failed"
    assert "parallel, float32" in found.evidence.checks.failed


def test_a_demonstration_says_nothing_against_either(everything):
    assert (
        everything(made={"rise": (0.06, 0.2), "demonstration": True}, checked={}, timed={}).decision.answer
        is Answer.OPEN
    )


def test_a_study_with_too_few_seeds_cannot_say(tmp_path):
    case = gather([study(tmp_path / "s", {"taylor:0..2": None})], Limits())
    found = case.verdicts[0]
    assert found.decision.reason == "accuracy_open"
    assert found.evidence.accuracy.change.why == "decision.why.too_few_seeds"
    assert not found.evidence.needs_slots and found.evidence.context == 256


def test_a_study_alone_gives_conditions_at_best_and_says_no(tmp_path):
    folder = study(tmp_path / "s", {"good": (-0.01, 0.04), "bad": (0.2, 0.4), "same": (-0.2, 0.2)})
    found = {one.evidence.candidate: one.decision for one in gather([folder], Limits()).verdicts}
    assert found["good"].answer is Answer.CONDITIONS and found["good"].conditions == ("verify", "bench")
    assert found["bad"].answer is Answer.REJECT and found["same"].answer is Answer.OPEN


def test_a_plan_beaten_by_slots_alone_is_rejected_and_one_that_was_not_compared_stays_open(tmp_path):
    points = {0.1: ((0.0, 0.01), (0.01, 0.05)), 0.2: ((0.0, 0.01), None), 0.25: ((0.0, 0.01), (-0.05, -0.01))}
    found = {one.evidence.candidate: one.decision for one in gather([plan(tmp_path / "p", points)], Limits()).verdicts}
    assert found["plan:10%"].reason == "slots_broken" and found["plan:20%"].reason == "slots_missing"
    assert found["plan:25%"].answer is Answer.CONDITIONS


def test_an_encoders_changes_are_no_losses(tmp_path):
    with pytest.raises(ValueError, match="nothing to decide on"):
        gather([inspect(tmp_path / "i", is_encoder=True)], Limits(accuracy=5))


def test_an_inspection_alone_never_recommends_a_rung(tmp_path):
    kept = {"taylor:0..4@mean+w64s4": 300.0}
    case = gather([inspect(tmp_path / "i", kept=kept, length=CONTEXT)], Limits(context=CONTEXT, accuracy=0.2))
    found = {one.evidence.candidate: one for one in case.verdicts}
    best = found["taylor:0..4@mean+w64s4"]
    assert (best.decision.answer, best.decision.reason) == (Answer.OPEN, "slots_missing")
    assert best.evidence.memory.change.value == pytest.approx(0.3)
    assert (best.evidence.memory.today.value, best.evidence.memory.candidate.value) == (4000, 1200)
    assert (best.evidence.accuracy.today.value, best.evidence.accuracy.candidate.value) == (3.3, pytest.approx(3.39))
    assert case.verdicts[0].evidence.candidate == "taylor:0..2@mean+w64s4" and case.verdicts[0].evidence.is_chosen
    assert found["drop+w64s4"].decision.answer is Answer.REJECT
