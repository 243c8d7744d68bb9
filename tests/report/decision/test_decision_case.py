"""Several runs together: what belongs to one candidate, who stands first, what is left out and why."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from pathlib import Path

import pytest
from planted_runs import CONTEXT, bench, convert, documents, inspect, plan, spec, study, verify
from planted_runs import Planted as Run

from termwise.report.decision.case import gather
from termwise.report.decision.limits import Limits
from termwise.report.decision.rules import Answer, Outcome
from termwise.results import config_hash

LIMITS = Limits(context=CONTEXT)


def names(case) -> list[str]:
    return [one.evidence.candidate for one in case.verdicts]


def of(case, name):
    return next(one for one in case.verdicts if one.evidence.candidate == name)


def test_a_plan_and_the_conversion_that_follows_it_are_one_candidate(tmp_path):
    layers = [[{"kv_heads": [0], "spec": spec()}]]
    planned = plan(tmp_path / "p", layers=layers)
    made = convert(tmp_path / "c", plan=str(planned), plan_hash=config_hash(layers))
    case = gather([made, planned], LIMITS)
    assert sorted(names(case)) == ["plan:10%", "plan:25%"]
    found = of(case, "plan:25%").evidence
    assert set(found.sources) == {str(made), str(planned)} and found.is_chosen
    # What runs before what was planned: the bytes of the folder, and the loss of its own texts.
    assert found.memory.change.source == str(made) and found.today == "small"
    assert found.memory.change.why == "decision.why.half_cache"


@pytest.mark.parametrize(
    ("gain", "over_window", "taken", "value"),
    [
        ((-0.04, -0.01), -0.2, "p", -0.025),
        ((-0.04, -0.01), -0.001, "p", -0.025),
        ((-0.04, 0.02), -0.2, "p", -0.01),
        ((-0.04, -0.01), 0.1, "c", 0.1),
        ((0.01, 0.03), -0.2, "p", 0.02),
        (None, -0.2, "c", -0.2),
    ],
)
def test_the_hardest_rival_of_equal_bytes_counts(tmp_path, gain, over_window, taken, value):
    layers = [[{"kv_heads": [0], "spec": spec()}]]
    planned = plan(tmp_path / "p", {0.25: ((0.0, 0.03), gain)}, layers=layers)
    made = convert(tmp_path / "c", plan=str(planned), plan_hash=config_hash(layers), over_window=over_window)
    found = of(gather([made, planned], LIMITS), "plan:25%").evidence.slots
    assert Path(found.source).name == taken
    assert found.value == pytest.approx(value)


def test_a_plan_of_slots_alone_is_no_rival_of_itself(tmp_path):
    planned = plan(tmp_path / "p", {0.25: ((0.0, 0.03), (0.0, 0.0))}, slots_plan="p0.25", over_uniform=(-0.05, -0.02))
    case = gather([planned], LIMITS)
    found = of(case, "plan:25%")
    assert found.evidence.slots.value == pytest.approx(-0.035) and found.decision.outcomes["slots"] is Outcome.BETTER
    assert [one.kind for one in case.components] == ["choice"]


def test_a_conversion_of_another_plan_is_another_candidate(tmp_path):
    layers = [[{"kv_heads": [0], "spec": spec()}]]
    planned = plan(tmp_path / "p", layers=layers)
    made = convert(tmp_path / "c", plan=str(planned), plan_hash="of an older plan.json")
    assert sorted(names(gather([made, planned], LIMITS))) == ["c", "plan:10%", "plan:25%"]


def test_without_its_file_a_plan_is_known_by_its_place(tmp_path):
    planned = plan(tmp_path / "p")
    made = convert(tmp_path / "c", plan=f"{planned}/plan.json")
    assert sorted(names(gather([made, planned], LIMITS))) == ["plan:10%", "plan:25%"]


def test_a_tuned_conversion_is_a_model_of_its_own_and_says_how_long_it_was_tuned(tmp_path):
    layers = [[{"kv_heads": [0], "spec": spec()}]]
    planned = plan(tmp_path / "p", layers=layers)
    made = convert(tmp_path / "c", plan=str(planned), plan_hash=config_hash(layers), tune=1800.0)
    case = gather([made, planned], LIMITS)
    assert sorted(names(case)) == ["c", "plan:10%", "plan:25%"]
    assert of(case, "c").evidence.complexity.tuning_hours == 0.5
    log = made / "runs" / "converted" / "0" / "matching" / "log.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text('{"step": 1, "seconds": 60.0}\n{"step": 2, "seconds": 360.0}\n{"step": 3, "sec')
    assert of(gather([made], LIMITS), "c").evidence.complexity.tuning_hours == pytest.approx(0.1)


def test_checks_and_times_belong_to_the_folder_they_were_made_on(tmp_path):
    one, other = convert(tmp_path / "one"), convert(tmp_path / "other")
    folders = [
        one, other, verify(tmp_path / "v", one / "model", failed=("parallel",)), bench(tmp_path / "b", str(other)),
    ]  # fmt: skip
    case = gather(folders, LIMITS)
    assert of(case, "one").evidence.checks.num_failed == 2 and not of(case, "other").evidence.checks.were_run
    assert of(case, "other").evidence.latency.change.is_there
    assert of(case, "one").evidence.latency.change.why == "decision.why.no_latency"
    assert names(case) == ["other", "one"]


def test_runs_about_something_else_are_read_and_called_unused(tmp_path):
    made, stranger = convert(tmp_path / "c"), bench(tmp_path / "b", "elu1", is_folder=False)
    case = gather([made, stranger], LIMITS)
    assert case.unused == (str(stranger),) and not case.refused and len(case.readings) == 2


def test_a_variant_is_known_by_all_its_names(tmp_path):
    folder = study(tmp_path / "s", {"linear_elu": (0.0, 0.02)})
    run = json.loads((folder / "run.json").read_text())
    run["resolved"]["variants"][1] |= {"short_name": "elu1", "equal_names": ["katharopoulos"]}
    (folder / "run.json").write_text(json.dumps(run))
    timed = bench(tmp_path / "b", "elu1", measure="decode", lengths=(256,), is_folder=False)
    found = gather([folder, timed], Limits()).verdicts[0].evidence
    assert found.latency.change.value == pytest.approx(0.5)
    assert found.latency.change.why == "decision.why.attention_alone"
    assert dict(found.latency.change.fields) == {"kv_heads": 8, "key_width": 64}
    assert found.complexity.own_kernels == 4


def test_bytes_at_the_users_context_come_from_a_benchmark_where_the_study_has_none(tmp_path):
    folder = study(tmp_path / "s", {"elu1": (0.0, 0.02)})
    timed = bench(tmp_path / "b", "elu1", measure="decode", is_folder=False, state=150.0)
    alone, both = (gather(folders, LIMITS).verdicts[0] for folders in ([folder], [folder, timed]))
    assert alone.evidence.memory.change.why == "decision.why.lengths"
    assert dict(alone.evidence.memory.change.fields) == {"context": CONTEXT, "lengths": (64, 256)}
    assert both.evidence.memory.change.value == pytest.approx(0.15)
    assert both.decision.reason == "accuracy_context"


def test_two_studies_of_one_variant_stay_two_candidates_and_are_told_apart(tmp_path):
    first = study(tmp_path / "first", {"elu1": (0.0, 0.02), "taylor:0..2": (0.0, 0.02)})
    second = study(tmp_path / "second", {"elu1": (0.2, 0.4)})
    case = gather([first, second], Limits())
    assert sorted(names(case)) == ["first:elu1", "second:elu1", "taylor:0..2"]
    assert of(case, "second:elu1").decision.answer is Answer.REJECT
    assert names(gather([first, second], Limits(candidate="second:elu1")))[0] == "second:elu1"
    assert names(gather([first, second], Limits(candidate="elu1")))[0] == "first:elu1"


def test_of_several_benchmarks_the_asked_machine_counts_else_the_newest(tmp_path):
    made = convert(tmp_path / "c")
    folders = [
        made,
        bench(tmp_path / "old", str(made), cpu="Xeon", created="2026-01-01T00:00:00+00:00", ratio=(3.0, 2.9, 3.1)),
        bench(tmp_path / "new", str(made), cpu="EPYC", created="2026-03-01T00:00:00+00:00", ratio=(2.0, 1.9, 2.1)),
    ]
    for order in itertools.permutations(folders):
        newest, asked = (
            gather(order, limits).verdicts[0].evidence for limits in (LIMITS, Limits(context=CONTEXT, machine="Xeon"))
        )
        assert newest.machine == "EPYC" and newest.latency.change.value == pytest.approx(0.5)
        assert asked.machine == "Xeon" and asked.latency.change.value == pytest.approx(1 / 3)


def test_a_failure_found_by_any_verification_counts(tmp_path):
    made = convert(tmp_path / "c")
    good, bad = verify(tmp_path / "good", made), verify(tmp_path / "bad", made, failed=("chunked", "parallel"))
    for order in ([made, good, bad], [bad, made, good]):
        assert gather(order, LIMITS).verdicts[0].decision.reason == "checks_failed"


def test_losses_of_folders_come_from_an_evaluation_without_an_interval(tmp_path):
    made = convert(tmp_path / "c", rise=None)
    scored = Run(tmp_path / "e", "evaluate", {"models": ["models/original", str(made)], "context": CONTEXT})
    scored.folder.update(variants=[{"name": name} for name in ("models/original", str(made), "taylor:0..2")])
    for name, loss in (("models/original", 3.0), (str(made), 3.02), ("taylor:0..2", 5.0)):
        scored.add("loss", "held_out_nats", loss, variant=name, seed=0, n=9000)
    found = gather([made, scored.write()], LIMITS).verdicts[0]
    change = found.evidence.accuracy.change
    assert change.value == pytest.approx(0.02) and change.low is None and change.why == "decision.why.no_interval"
    assert found.decision.reason == "accuracy_open" and found.evidence.accuracy_context == CONTEXT


def test_two_runs_in_other_precisions_are_not_mixed_and_say_so(tmp_path):
    made = convert(tmp_path / "c")
    timed = bench(tmp_path / "b", str(made), dtype="bfloat16")
    found = gather([made, timed], LIMITS).verdicts[0].evidence
    assert found.latency.change.why == "decision.why.precision"
    assert dict(found.latency.change.fields) == {"taken": "bfloat16", "other": "float32"}


def test_the_order_of_folders_changes_no_answer(tmp_path):
    made = convert(tmp_path / "c")
    folders = [
        made, plan(tmp_path / "p"), study(tmp_path / "s", {"elu1": (0.0, 0.02), "bad": (0.2, 0.3)}),
        verify(tmp_path / "v", made), bench(tmp_path / "b", str(made)), inspect(tmp_path / "i"), tmp_path / "nowhere",
    ]  # fmt: skip
    expected = gather(folders, LIMITS)
    chance = random.Random(3)
    for _ in range(6):
        chance.shuffle(folders)
        found = gather(folders, LIMITS)
        assert found.verdicts == expected.verdicts and found.components == expected.components
        assert len(found.readings) == 6 and found.refused == expected.refused


def test_a_folder_given_twice_counts_once(tmp_path):
    made = convert(tmp_path / "c")
    case = gather([made, made], LIMITS)
    assert len(case.readings) == 1 and len(case.verdicts) == 1


def test_the_best_answer_stands_first_then_the_least_rise(tmp_path):
    folder = study(
        tmp_path / "s", {"bad": (0.2, 0.3), "worse": (0.0, 0.04), "better": (-0.02, 0.01), "open": (0.0, 0.2)}
    )
    assert names(gather([folder], Limits())) == ["better", "worse", "open", "bad"]


def test_of_what_cannot_be_adopted_the_plans_own_choice_stands_first(tmp_path):
    points = {
        0.1: ((0.2, 0.3), (-0.05, -0.01)),
        0.25: ((0.1, 0.12), (-0.05, -0.01)),
        0.4: ((0.07, 0.1), (-0.05, -0.01)),
    }
    case = gather([plan(tmp_path / "p", points, chosen=0.25)], LIMITS)
    assert names(case) == ["plan:25%", "plan:40%", "plan:10%"]
    assert [one.evidence.is_chosen for one in case.verdicts] == [True, False, False]


def test_a_candidate_can_be_asked_for_and_an_unknown_one_is_refused_with_the_near_name(tmp_path):
    folder = plan(tmp_path / "p")
    assert names(gather([folder], Limits(context=CONTEXT, candidate="plan:10%")))[0] == "plan:10%"
    assert names(gather([folder], Limits(context=CONTEXT, candidate="p:10%")))[0] == "plan:10%"
    with pytest.raises(
        ValueError, match=r"no candidate 'plan:11%'; did you mean 'plan:10%'\?; candidates are plan:10%, plan:25%"
    ):
        gather([folder], Limits(candidate="plan:11%"))


def test_a_plan_made_for_another_context_says_so(tmp_path):
    folder = plan(tmp_path / "p", context=2048)
    found = of(gather([folder], LIMITS), "plan:25%")
    assert found.evidence.memory.change.why == "decision.why.other_context"
    assert dict(found.evidence.memory.change.fields) == {"measured": 2048, "context": CONTEXT}
    assert found.decision.reason == "accuracy_context"


def test_a_plan_tells_both_losses_and_bytes_of_its_choice(tmp_path):
    found = of(gather([plan(tmp_path / "p")], LIMITS), "plan:25%").evidence
    assert found.accuracy.today.value == pytest.approx(3.1) and found.accuracy.candidate.value == pytest.approx(3.35)
    assert (found.memory.today.value, found.memory.candidate.value) == (2_000_000, 500_000)
    assert found.memory.change.value == pytest.approx(0.249)
    assert found.complexity.tuning_hours == 0.0 and found.complexity.platforms == ("Linux x86_64",)


def test_without_the_bytes_of_every_head_a_plan_has_no_sum_of_them(tmp_path):
    about = {"name": "small", "num_layers": 2, "num_kv_heads": 1}
    whole, short = plan(tmp_path / "whole", about=about), plan(tmp_path / "short", about=about)
    lines = (short / "records.jsonl").read_text().splitlines(keepends=True)
    (short / "records.jsonl").write_text("".join(lines[:-1]))
    found = {
        one.evidence.sources[0]: one.evidence.memory
        for one in gather([whole, short], LIMITS).verdicts
        if one.evidence.is_chosen
    }
    assert found[str(whole)].today.value == 2_000_000
    assert not found[str(short)].today.is_there and not found[str(short)].candidate.is_there
    assert found[str(short)].change == dataclasses.replace(found[str(whole)].change, source=str(short))


def test_slots_of_a_conversion_are_paired_by_document(tmp_path):
    made = convert(tmp_path / "c", over_window=-0.2)
    found = gather([made], LIMITS).verdicts[0].evidence.slots
    assert found.value == pytest.approx(-0.2) and found.high < 0 and found.n == 12
    made = Run(tmp_path / "d", "convert", {"model": "m", "plan": "p"})
    documents(made, "original", 3.0)
    documents(made, "converted", 3.0)
    made.add("loss", "held_out_document", 3.1, variant="window of equal bytes", document="other", n=300)
    made.add("loss", "held_out_nats", 3.1, variant="window of equal bytes", n=300)
    found = gather([made.write()], LIMITS).verdicts[0].evidence.slots
    assert found.value is None and found.why == "decision.why.other_documents"


def test_without_anything_put_up_what_was_measured_is_weighed(tmp_path):
    model = tmp_path / "some" / "model"
    case = gather([verify(tmp_path / "v", model), bench(tmp_path / "b", str(model))], LIMITS)
    assert len(case.verdicts) == 1
    found = case.verdicts[0]
    assert found.decision.reason == "accuracy_missing" and found.evidence.checks.has_soak
    assert found.evidence.latency.change.is_there


def test_a_conversion_of_another_model_is_another_candidate_though_its_heads_keep_the_same(tmp_path):
    layers = [[{"spec": "exp"}]]
    planned = plan(tmp_path / "p", layers=layers)
    made = convert(tmp_path / "c", plan=str(planned), plan_hash=config_hash(layers), model="models/another")
    names = {one.evidence.candidate: one.evidence.sources for one in gather([planned, made], Limits()).verdicts}
    assert names["plan:25%"] == (str(planned),) and names["c"] == (str(made),)
