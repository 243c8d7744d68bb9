"""`termwise report` from the command line: what it writes, what it leaves alone, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from planted_case import inspection, plan
from planted_study import complete

from termwise.cli import main
from termwise.results import FolderLock

FILES = ["index.html", "report.csv", "report.json", "report.md"]


@pytest.fixture
def study(tmp_path) -> Path:
    return complete(tmp_path / "study", ["softmax", "taylor:0..2", "linear_elu"], (0, 1, 2)).write()


def termwise(capsys, *arguments) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["report", *map(str, arguments)])
    said = capsys.readouterr()
    return stopped.value.code, said.out, said.err


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_report_has_four_files_and_leaves_the_runs_as_they_are(capsys, study, tmp_path):
    before = content(study)
    code, out, _ = termwise(capsys, study, "--out", tmp_path / "report")
    assert code == 0
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == FILES
    assert content(study) == before
    assert "Do not adopt" in out and str(tmp_path / "report" / "index.html") in out


def test_the_same_question_goes_into_the_same_folder(capsys, study, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for more in ([], [], ["--price-per-hour", "2"]):
        assert termwise(capsys, study, *more)[0] == 0
    assert len(list((tmp_path / "termwise-runs").iterdir())) == 2


def test_json_is_the_report_and_nothing_else(capsys, study, tmp_path):
    code, out, _ = termwise(capsys, study, "--json", "--out", tmp_path / "report")
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "report" / "report.json").read_text())


def test_the_pages_of_the_runs_are_written_again_only_if_asked(capsys, study, tmp_path):
    assert termwise(capsys, study, "--pages", "--lang", "ja", "--out", tmp_path / "report")[0] == 0
    assert '<html lang="ja">' in (study / "index.html").read_text(encoding="utf-8")


def test_japanese(capsys, study, tmp_path):
    code, out, _ = termwise(capsys, study, "--lang", "ja", "--out", tmp_path / "report")
    assert code == 0 and "見送り" in out
    assert '<html lang="ja">' in (tmp_path / "report" / "index.html").read_text(encoding="utf-8")


def test_limits_and_a_candidate_are_heard(capsys, study, tmp_path):
    limits = tmp_path / "limits.yaml"
    limits.write_text("accuracy: 5\nwritten: 2020-01-01\n")
    code, out, _ = termwise(
        capsys, study, "--limits", limits, "--candidate", "linear_elu", "--json", "--out", tmp_path / "report"
    )
    found = json.loads(out)
    assert code == 0
    assert (found["decision"]["candidate"], found["limits"]["accuracy"]) == ("linear_elu", 5.0)
    assert found["limits_fixed"] == "before" and found["decision"]["outcomes"]["accuracy"] == "within"


def test_foreign_and_broken_folders_are_named_on_the_page(capsys, study, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    code, out, _ = termwise(
        capsys, study, tmp_path / "photos", tmp_path / "broken", tmp_path / "nowhere", "--out", tmp_path / "report"
    )
    text = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert code == 0
    for name in ("photos", "broken", "nowhere"):
        assert str(tmp_path / name) in text and name in out.replace("\n", "")


def test_half_finished_and_damaged_records_make_a_page(capsys, tmp_path):
    folders = [
        complete(tmp_path / "study", ["softmax", "elu1"], (0,)).write(),
        inspection(tmp_path / "i"),
        plan(tmp_path / "p"),
    ]
    for folder in folders:
        lines = (folder / "records.jsonl").read_bytes().splitlines(keepends=True)
        (folder / "records.jsonl").write_bytes(b"".join(lines[::3]) + b'{"schema": 1, "kind": 3}\n{"torn')
    code, _, err = termwise(capsys, *folders, "--out", tmp_path / "report")
    text = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert code == 0 and "Traceback" not in err
    assert text.count("was torn in the middle of writing") >= 3
    assert "not measured" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere"),
        (["study", "--lang", "xx"], "available: en, ja"),
        (["study", "--limits", "nowhere.yaml"], "nowhere.yaml"),
        (["study", "--limits", "bad.yaml"], "accurcy"),
        (["study", "--candidate", "taylor:0..9"], "taylor:0..2"),
        (["study", "--price-per-hour", "-1"], "--price-per-hour"),
        (["study", "--tokens-per-request", "0"], "--tokens-per-request"),
        (["study", "--out", "study"], "is a run folder"),
        (["study", "--out", "bad.yaml"], "is a file"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(capsys, study, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_text("accurcy: 0.1\n")
    before = content(tmp_path)
    code, _, err = termwise(capsys, *arguments)
    assert code == 2
    assert err.count("\n") == 1 and said in err and "Traceback" not in err
    assert content(tmp_path) == before


@pytest.mark.parametrize("place", ["/proc/foo", "limits.yaml/report"])
def test_a_folder_that_cannot_be_made_is_refused_in_the_words_of_every_command(
    capsys, study, tmp_path, monkeypatch, place
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "limits.yaml").write_text("accuracy: 0.1\n")
    code, _, err = termwise(capsys, study, "--out", place)
    with pytest.raises(ValueError, match="cannot be made") as refused:
        FolderLock(Path(place)).check()
    assert (code, err) == (2, f"termwise: {refused.value}\n")


def test_a_report_that_cannot_be_written_leaves_the_old_one(capsys, study, tmp_path, monkeypatch):
    from termwise.report.decision_page import writing

    assert termwise(capsys, study, "--out", tmp_path / "report")[0] == 0
    before = content(tmp_path / "report")
    monkeypatch.setattr(writing, "as_csv", lambda case, say: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["report", str(study), "--lang", "ja", "--out", str(tmp_path / "report")])
    assert content(tmp_path / "report") == before
