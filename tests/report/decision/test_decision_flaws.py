"""Runs that no decision may rest on: records gone since their end, values that cannot be, conversions broken off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from planted_runs import CONTEXT, bench, convert, inspect, plan, study, verify

from termwise.report import page
from termwise.report.decision.case import gather
from termwise.report.decision.limits import Limits
from termwise.report.decision.rules import Answer
from termwise.report.decision_page.engineer import engineer
from termwise.report.decision_page.manager import manager
from termwise.report.flaws import told
from termwise.report.plausible import implausible
from termwise.report.read import read
from termwise.report.words import words
from termwise.results import Record, RunFolder

LIMITS = Limits(context=CONTEXT, machine="EPYC")
RECORDS = Path(__file__).parents[3] / "benchmarks" / "records"


@pytest.fixture
def folders(tmp_path):
    """A conversion, its benchmark and its verification, all whole: adopted."""
    made = convert(tmp_path / "c")
    found = [made, bench(tmp_path / "b", str(made), state=100.0), verify(tmp_path / "v", made)]
    for folder in found:
        RunFolder.seal(folder)
    assert first(found).decision.answer is Answer.ADOPT
    return found


def first(folders):
    return gather(folders, LIMITS).verdicts[0]


def rewrite(folder, change):
    """Every line of records.jsonl through `change`, which drops it by None."""
    path = folder / "records.jsonl"
    records = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(record) + "\n" for record in records if record is not None))


def dropped(metric, **subject):
    def change(record):
        about = {"metric": record["metric"]} | record["subject"]
        return None if {"metric": metric} | subject == {k: about.get(k) for k in ("metric", *subject)} else record

    return change


@pytest.mark.parametrize(
    ("which", "gone", "said"),
    [
        (2, dropped("relative_rms", check="parallel"), "incomplete: 2 of 17 checks are missing"),
        (2, dropped("relative_rms", check="parallel", stage="float32"), "incomplete: one of 17 checks is missing"),
        (0, dropped("held_out_document", document="3"), "incomplete: 3 of 40 records are missing"),
        (1, dropped("step_ratio", length=1024), "incomplete: one of 7 records is missing"),
    ],
)
def test_lines_deleted_after_the_end_of_a_run_are_counted_and_nothing_is_adopted(folders, which, gone, said):
    rewrite(folders[which], gone)
    case = gather(folders, LIMITS)
    found = case.verdicts[0]
    assert found.decision.answer is Answer.OPEN and found.decision.reason == "incomplete"
    page_of = manager(case, words("en"))
    assert said in page_of.reason and str(folders[which]) in page_of.reason
    assert "不完全" in manager(case, words("ja")).reason
    behind = [
        line for one in engineer(case, words("en")).sections if one.key == "left-out" for line in one.blocks[0].lines
    ]
    assert any(said in line for line in behind)
    assert said in page.parts(read(folders[which]), words("en"))["progress"]


def test_what_is_left_of_the_checks_is_shown_as_not_all(folders):
    def lines():
        sections = engineer(gather(folders, LIMITS), words("en")).sections
        return next(one for one in sections if one.key == "checks").blocks[0].lines

    assert not any("not all" in line for line in lines())
    rewrite(folders[2], dropped("relative_rms", check="parallel"))
    assert any("These are not all" in line for line in lines()) and any("14" in line for line in lines())


def test_checks_that_are_gone_count_as_not_made(folders):
    before = first(folders).evidence.checks
    rewrite(folders[2], dropped("relative_rms", check="parallel"))
    after = first(folders).evidence.checks
    assert after.num_not_measured == before.num_not_measured + 2 and not after.is_whole and not after.were_run


def test_a_line_that_was_damaged_after_the_end_counts_as_gone(folders):
    path = folders[2] / "records.jsonl"
    path.write_text(path.read_text().replace('{"schema"', '{"schem', 1))
    assert first(folders).decision.reason == "incomplete"


def test_more_records_than_a_run_ended_with_are_a_run_that_goes_on(folders):
    run = json.loads((folders[2] / "run.json").read_text())
    run["num_records"]["check"] -= 3
    (folders[2] / "run.json").write_text(json.dumps(run))
    assert first(folders).decision.answer is Answer.ADOPT


@pytest.mark.parametrize("stated", [None, [], "many", {"check": "x"}, {"check": None}])
def test_without_a_count_nothing_is_known_to_be_gone(folders, stated):
    run = json.loads((folders[2] / "run.json").read_text()) | {"num_records": stated}
    (folders[2] / "run.json").write_text(json.dumps(run))
    rewrite(folders[2], dropped("relative_rms", check="parallel"))
    assert first(folders).decision.answer is Answer.ADOPT


def test_a_failure_that_is_left_still_speaks_against_an_incomplete_run(tmp_path):
    made = convert(tmp_path / "c")
    checked = verify(tmp_path / "v", made, failed=("parallel",))
    RunFolder.seal(checked)
    rewrite(checked, dropped("relative_rms", check="token_by_token"))
    assert first([made, checked]).decision.reason == "checks_failed"


@pytest.mark.parametrize("make", [lambda p: study(p, {"elu1": (0.0, 0.02)}), plan, inspect])
def test_every_command_whose_records_are_gone_says_so(tmp_path, make):
    folder = make(tmp_path / "r")
    RunFolder.seal(folder)
    kinds = {json.loads(line)["kind"] for line in (folder / "records.jsonl").read_text().splitlines()}
    for kind in kinds:
        whole = (folder / "records.jsonl").read_text()
        lines = whole.splitlines(keepends=True)
        place = next(n for n, line in enumerate(lines) if json.loads(line)["kind"] == kind)
        (folder / "records.jsonl").write_text("".join(lines[:place] + lines[place + 1 :]))
        found = [told(flaw, words("en")) for one in gather([folder], LIMITS).verdicts for flaw in one.evidence.flaws]
        assert found and all("is missing" in text for text in found)
        (folder / "records.jsonl").write_text(whole)


@pytest.mark.parametrize("finished", [False, None, 0])
def test_an_unfinished_conversion_is_not_adopted_though_it_has_all_figures(folders, finished):
    run = json.loads((folders[0] / "run.json").read_text()) | {"finished": finished}
    (folders[0] / "run.json").write_text(json.dumps(run))
    case = gather(folders, LIMITS)
    assert case.verdicts[0].decision.answer is Answer.OPEN and case.verdicts[0].decision.reason == "unfinished"
    told_first = manager(case, words("en"))
    assert "was not finished" in told_first.reason and "termwise convert" in told_first.next_stage
    assert "完了していません" in manager(case, words("ja")).reason


def changed(metric, number=0, **fields):
    """The `number`-th record of a metric says something else."""
    seen = []

    def change(record):
        if record["metric"] == metric:
            seen.append(record)
            return record | (fields if len(seen) == number + 1 else {})
        return record

    return change


@pytest.mark.parametrize(
    ("which", "change", "said"),
    [
        (0, changed("held_out_nats", value=-5), "held_out_nats = -5 nats/token"),
        (0, changed("held_out_nats", value=1e9), "held_out_nats = 1e+09 nats/token"),
        (0, changed("held_out_document", 3, value=-5), "held_out_document = -5 nats/token"),
        (0, changed("difference", value=-1e9, low=-2e9, high=0.0), "difference = -1e+09 nats/token"),
        (0, changed("difference", value=float("nan")), "difference: value = nan"),
        (0, changed("difference", low=float("-inf")), "difference: low = -inf"),
        (0, changed("difference", value=10**400), "difference: value = 1000000"),
        (0, changed("difference", level=1.0), "difference = 0.01 nats/token"),
        (0, changed("difference", n=1), "n = 1"),
        (0, changed("state", value=0), "state = 0 B"),
        (0, changed("state", value=-64), "state = -64 B"),
        (0, changed("state", value=1e300), "state = 1e+300 B"),
        (1, changed("step", 1, value=1e-30), "step = 1e-30 s/token"),
        (1, changed("step_ratio", value=1e27, low=9e26, high=1.1e27), "step_ratio = 1e+27 1"),
        (1, changed("step_ratio", value=0, low=0, high=0), "step_ratio = 0 1"),
        (2, changed("relative_rms", value=float("inf")), "relative_rms: value = inf"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_file_line_and_value_and_nothing_is_adopted(folders, which, change, said):
    rewrite(folders[which], change)
    case = gather(folders, LIMITS)
    assert not case.refused and case.verdicts[0].decision.answer is Answer.OPEN
    assert case.verdicts[0].decision.reason == "implausible"
    reason = manager(case, words("en")).reason
    (left,) = (group for one in case.readings for group in one.left_out)
    assert reason.startswith(f"{folders[which]}/records.jsonl holds a value that cannot be, in line {left.lines[0]}: ")
    assert said in reason
    assert "あり得ない値" in manager(case, words("ja")).reason
    assert any(
        said in line
        for one in engineer(case, words("en")).sections
        if one.key == "left-out"
        for line in one.blocks[0].lines
    )


def test_a_loss_cannot_fall_by_more_than_it_is(folders):
    rewrite(folders[0], changed("difference", value=-5.0, low=-5.1, high=-4.9))
    found = first(folders)
    assert found.evidence.accuracy.change.why == "decision.why.below_zero"
    assert found.decision.answer is Answer.OPEN and found.decision.reason == "accuracy_missing"


def test_a_plan_that_takes_nothing_is_not_believed(tmp_path):
    folder = plan(tmp_path / "p")
    rewrite(folder, changed("state_share", 1, value=0))
    assert first([folder]).decision.reason == "implausible"


def test_a_command_that_ends_again_never_states_fewer_records(folders):
    path = folders[0] / "records.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[2:]))
    before = json.loads((folders[0] / "run.json").read_text())["num_records"]
    RunFolder.seal(folders[0])
    assert json.loads((folders[0] / "run.json").read_text())["num_records"] == before
    assert gather(folders, LIMITS).verdicts[0].decision.reason == "incomplete"
    path.write_bytes(b"".join(lines))
    assert gather(folders, LIMITS).verdicts[0].decision.reason != "incomplete"


def test_what_is_said_again_counts_once(folders):
    path = folders[0] / "records.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines, *lines]))
    before = json.loads((folders[0] / "run.json").read_text())["num_records"]
    RunFolder.seal(folders[0])
    assert json.loads((folders[0] / "run.json").read_text())["num_records"] == before
    path.write_bytes(b"".join([*lines[1:], *lines[1:]]))
    assert gather(folders, LIMITS).verdicts[0].decision.reason == "incomplete"


def test_a_prefill_may_need_no_more_than_its_inputs_outputs_and_state():
    about = {"run_id": "r", "kind": "memory", "unit": "B", "value": 0.0}
    subject = {"variant": "elu1", "measure": "memory", "length": 64}
    assert implausible(Record(metric="memory", subject=subject, **about)) == ""
    assert implausible(Record(metric="state", subject=subject, **about)) == "state = 0 B"


def test_the_kept_records_of_this_project_hold_no_value_that_cannot_be():
    folders = [path.parent for path in RECORDS.glob("*/run.json")]
    assert len(folders) > 10
    assert [(folder.name, one) for folder in folders for one in read(folder).left_out] == []
