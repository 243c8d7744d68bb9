"""Broken, mixed, half-finished and foreign folders: left out with the reason, never a traceback."""

from __future__ import annotations

import json
import random

import pytest
from planted_runs import CONTEXT, bench, convert, inspect, plan, study, verify

from termwise.report.decision.case import gather
from termwise.report.decision.limits import Limits
from termwise.report.decision.rules import Answer

LIMITS = Limits(context=CONTEXT)


@pytest.fixture
def good(tmp_path):
    return convert(tmp_path / "good")


def every_run(root):
    made = convert(root / "c")
    return [
        made, plan(root / "p"), study(root / "s", {"elu1": (0.0, 0.02)}), verify(root / "v", made),
        bench(root / "b", str(made)), inspect(root / "i", kept={"taylor:0..2@mean+w64s4": 100.0}),
    ]  # fmt: skip


def write_run(folder, text):
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "damaged"),
        ("[]", "schema None"),
        ("{}", "schema None"),
        ('{"schema": 99, "command": "study"}', "newer termwise"),
        ('{"schema": 1}', "made by termwise None"),
        ('{"schema": 1, "command": "generate"}', "a report reads the runs of bench, convert"),
        ('{"schema": 1, "command": ["study"]}', "'study'"),
        (
            '{"schema": 1, "command": "study", "resolved": {"variants": [{"name": {}}], "context": "long"}, "machine": 3}',
            "",
        ),
    ],
)
def test_a_folder_that_is_no_run_is_refused_in_the_words_of_the_error(tmp_path, good, text, said):
    bad = write_run(tmp_path / "bad", text)
    case = gather([bad, good], LIMITS)
    assert len(case.verdicts) >= 1
    if said:
        (refused,) = case.refused
        assert refused.path == str(bad) and said in refused.why and "\n" not in refused.why


def test_folders_that_are_not_there_or_files_are_refused(tmp_path, good):
    (tmp_path / "file").write_text("text")
    (tmp_path / "empty").mkdir()
    case = gather([tmp_path / "nowhere", good, tmp_path / "file", tmp_path / "empty"], LIMITS)
    assert [one.path.rpartition("/")[2] for one in case.refused] == ["nowhere", "file", "empty"]
    assert all("run.json" in one.why for one in case.refused)


def test_where_all_are_refused_there_is_no_case(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere is no run folder.*other is no run folder"):
        gather([tmp_path / "nowhere", tmp_path / "other"], LIMITS)


def test_a_run_without_candidates_has_nothing_to_decide_on(tmp_path):
    folder = write_run(tmp_path / "calibration", '{"schema": 1, "command": "bench", "resolved": {}}')
    with pytest.raises(ValueError, match="nothing to decide on"):
        gather([folder], LIMITS)


def test_half_finished_runs_are_candidates_of_which_little_is_known(tmp_path):
    paths = every_run(tmp_path)
    for path in paths:
        lines = (path / "records.jsonl").read_bytes().splitlines(keepends=True)
        (path / "records.jsonl").write_bytes(b"".join(lines[: len(lines) // 3]) + lines[-1][:20])
    case = gather(paths, LIMITS)
    assert not case.refused and [one.left_out[0].why for one in case.readings] == ["torn"] * len(paths)
    found = {one.evidence.candidate: one.decision for one in case.verdicts}
    assert found["c"].outcomes["accuracy"] == "missing" and found["elu1"].outcomes["accuracy"] == "missing"


ODD = (None, "text", -1, 0, 3.5, True, [], {}, ["softmax"], {"a": 1}, "taylor:0..2", 10**30)


def spoilt(line: str, chance: random.Random) -> str:
    """A record with one field, of its own or of its subject, that is not what it should be; or NaN; or one missing."""
    record = json.loads(line)
    place = chance.choice([record, record["subject"] or record])
    name = chance.choice(list(place))
    how = chance.choice(["odd", "odd", "odd", "nan", "gone"])
    if how == "gone":
        del place[name]
    else:
        place[name] = float("nan") if how == "nan" else chance.choice(ODD)
    return json.dumps(record)


@pytest.mark.parametrize("number", range(6))
def test_records_with_odd_fields_are_left_out_and_nothing_else_suffers(tmp_path, number):
    chance = random.Random(number)
    paths = every_run(tmp_path)
    for path in paths:
        lines = (path / "records.jsonl").read_text().splitlines()
        lines = [spoilt(line, chance) if chance.random() < 0.3 else line for line in lines]
        (path / "records.jsonl").write_text("\n".join(lines) + "\n")
    case = gather(paths, LIMITS)
    assert case.refused == () and len(case.readings) == len(paths)
    assert any(reading.left_out for reading in case.readings)


@pytest.mark.parametrize("number", range(6))
def test_odd_settings_refuse_at_most_the_run_that_has_them(tmp_path, good, number):
    chance = random.Random(number)
    for path in every_run(tmp_path / "odd"):
        run = json.loads((path / "run.json").read_text())
        for place in (run, run["resolved"]):
            for name in chance.sample(sorted(place), min(4, len(place))):
                if name not in ("schema", "command", "resolved"):
                    place[name] = chance.choice(ODD)
        (path / "run.json").write_text(json.dumps(run))
        case = gather([path, good], LIMITS)
        assert any(one.evidence.candidate == "good" for one in case.verdicts)
        assert {one.path for one in case.refused} <= {str(path)}


def test_hand_made_nonsense_is_said_to_be_foreign(tmp_path, good):
    with open(good / "records.jsonl", "a") as file:
        file.write('"text"\n[1]\n{"a": 1}\n{"schema": 7}\nnot json\n{"schema": 1, "kind": "loss"}\n')
    case = gather([good], LIMITS)
    left = {one.why: len(one.lines) for one in case.readings[0].left_out}
    assert left == {"foreign": 4, "schema": 1, "damaged": 1} and case.verdicts[0].evidence.accuracy.change.is_there


@pytest.mark.parametrize(
    ("which", "metric", "lie"),
    [
        (0, "difference", {"n": 1}),
        (0, "difference", {"value": 3.0}),
        (0, "state", {"value": 0}),
        (0, "state", {"value": -5.0}),
        (0, "cache_half", {"subject": {"variant": "converted", "length": 2**20}}),
        (1, "step_ratio", {"value": 1000.0}),
    ],
)
def test_records_that_cannot_be_true_do_not_lead_to_adoption(tmp_path, which, metric, lie):
    made = convert(tmp_path / "c")
    folders = [made, bench(tmp_path / "b", str(made)), verify(tmp_path / "v", made)]
    limits = Limits(context=CONTEXT, machine="EPYC")
    assert gather(folders, limits).verdicts[0].decision.answer is Answer.ADOPT
    path = folders[which] / "records.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    told = [record | (lie if record["metric"] == metric else {}) for record in records]
    path.write_text("".join(json.dumps(record) + "\n" for record in told))
    assert gather(folders, limits).verdicts[0].decision.answer is not Answer.ADOPT


def test_a_folder_given_by_several_paths_counts_once(tmp_path, good, monkeypatch):
    (tmp_path / "link").symlink_to(good)
    monkeypatch.chdir(tmp_path)
    case = gather([good, "good", f"{good}/", "link"], LIMITS)
    assert len(case.readings) == len(case.verdicts) == 1 and case.verdicts[0].evidence.sources == (str(good),)
