"""An --out lies apart from what a command reads: not inside the model's folder, nor where its files would be read as text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from termwise import cli
from termwise.data.sources import folder_read_with
from termwise.results import RunFolder
from tests.conversion.tiny_conversion import original, plan
from tests.study.micro_study import write_text

OF_A_MODEL = {
    "inspect": ("model",),
    "plan": ("model", "--context", "64", "--max-loss", "0.1"),
    "convert": ("model", "--plan", "identity"),
    "verify": ("model",),
    "evaluate": ("elu1", "model"),
    "bench": ("elu1", "model", "--lengths", "64"),
}
OF_A_TEXT = {
    "study": ("notes",),
    "inspect": ("model", "--text", "notes"),
    "plan": ("model", "--context", "64", "--max-loss", "0.1", "--text", "notes"),
    "convert": ("model", "--plan", "identity", "--text", "notes"),
    "verify": ("elu1", "--text", "notes"),
    "evaluate": ("elu1", "--text", "notes"),
}
SMALL = {"inspect": ("--length", "32", "--window", "8", "--texts", "2")}


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    original(tmp_path / "model")
    (tmp_path / "notes").mkdir()
    write_text(tmp_path / "notes", num_words=400)
    return tmp_path


def typed(capsys, *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def refused(capsys, place: Path, said: str, *arguments: str) -> None:
    """One line, before anything is written, of the run and of its dry run."""
    before = sorted(place.rglob("*"))
    for more in ((), ("--dry-run",)):
        code, told, err = typed(capsys, *arguments, *more)
        assert (code, told, err.count("\n")) == (2, "", 1) and said in err, err
        assert "give" in err and "outside of it" in err
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize("command", OF_A_MODEL)
@pytest.mark.parametrize("out", ["model", "model/out", "model/termwise-runs/out", "notes/../model/deep/out"])
def test_no_run_is_written_into_its_model(place, capsys, command, out):
    said = f"--out {out} lies in model, the folder of the model"
    refused(capsys, place, said, command, *OF_A_MODEL[command], "--out", out)


@pytest.mark.parametrize("command", OF_A_TEXT)
@pytest.mark.parametrize("out", ["notes", "notes/out", "notes/deep/out"])
def test_no_run_is_written_where_it_would_be_read_as_text(place, capsys, command, out):
    said = f"--out {out} lies in notes, which is read as text"
    refused(capsys, place, said, command, *OF_A_TEXT[command], "--out", out)


def test_a_link_to_a_model_is_the_model(place, capsys):
    (place / "link").symlink_to("model")
    refused(capsys, place, "lies in model", "convert", "model", "--plan", "identity", "--out", "link/out")


def test_a_folder_with_a_gguf_file_is_a_model(place, capsys):
    (place / "quantized").mkdir()
    (place / "quantized" / "q8.gguf").write_bytes(b"GGUF")
    refused(capsys, place, "lies in quantized", "inspect", "quantized", "--out", "quantized/out")


def test_a_plan_of_an_inspection_reads_its_model_and_its_text(place, capsys):
    inspected = {"model": "model", "text": ["notes"], "column": None, "errors": "strict"}
    RunFolder.create(place / "seen", "inspect", {}, inspected)
    asked = ("plan", "seen", "--context", "64", "--max-state", "50%", "--out")
    refused(capsys, place, "lies in model, the folder of the model", *asked, "model/out")
    refused(capsys, place, "lies in notes, which is read as text", *asked, "notes/out")


def test_no_drawing_is_written_into_its_model(place, capsys):
    code, _, err = typed(capsys, "variants", "--plot", "--model", "model", "--out", "model/sentence.html")
    assert (code, "lies in model, the folder of the model" in err) == (2, True)
    assert not (place / "model" / "sentence.html").exists()


@pytest.mark.parametrize("command", ["inspect", "convert", "evaluate"])
def test_the_default_folder_may_lie_where_one_stands(place, capsys, monkeypatch, command):
    """In the folder of the model, which is the folder of the text as well."""
    monkeypatch.chdir(place / "model")
    write_text(place / "model", num_words=400)
    asked = [{"model": ".", "elu1": ".", "notes": "."}.get(part, part) for part in OF_A_TEXT[command]]
    code, _, err = typed(capsys, command, *asked, *SMALL.get(command, ()), "--dry-run")
    assert code == 0, err


@pytest.mark.parametrize("out", ["termwise-runs/demo", ".hidden/out", "elsewhere", "notes-of-runs"])
def test_folders_that_no_walk_enters_hold_runs(place, capsys, monkeypatch, out):
    monkeypatch.chdir(place / "notes" if out[0] in "t." else place)
    text = "." if out[0] in "t." else "notes"
    code, _, err = typed(capsys, "evaluate", "elu1", "--text", text, "--out", out, "--dry-run")
    assert code == 0, err


def test_a_run_may_lie_in_the_run_that_made_its_model(place, capsys):
    code, _, err = typed(
        capsys, "convert", "model", "--plan", str(plan(place / "plan")), "--out", "converted", "--json"
    )
    assert code == 0, err
    evaluated = ("evaluate", "converted", "--text", "notes", "--dry-run", "--out")
    assert typed(capsys, *evaluated, "converted/scores")[0] == 0
    code, _, err = typed(capsys, *evaluated, "converted/model/scores")
    assert (code, "lies in converted/model, the folder of the model" in err) == (2, True)


def test_a_run_that_stands_in_its_text_goes_on(place):
    """Its walk leaves out what is a whole run; one that has no records yet would be read."""
    run = place / "notes" / "run"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({}))
    assert folder_read_with(["notes"], run) == folder_read_with(["hf:a/b", "notes"], run / "deep") == "notes"
    (run / "records.jsonl").touch()
    assert folder_read_with(["notes"], run) is folder_read_with(["notes"], run / "deep") is None
    assert folder_read_with(["notes/run"], run) == "notes/run"
    assert folder_read_with(["notes/text.txt"], run) is None
