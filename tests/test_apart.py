"""An --out lies apart from the models that a command reads; in a folder of text it may lie, since no walk enters a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from termwise import cli
from termwise.data.sources import Skipped, find_roots
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


def test_a_link_to_a_model_is_the_model(place, capsys):
    (place / "link").symlink_to("model")
    refused(capsys, place, "lies in model", "convert", "model", "--plan", "identity", "--out", "link/out")


def test_a_folder_with_a_gguf_file_is_a_model(place, capsys):
    (place / "quantized").mkdir()
    (place / "quantized" / "q8.gguf").write_bytes(b"GGUF")
    refused(capsys, place, "lies in quantized", "inspect", "quantized", "--out", "quantized/out")


def test_a_plan_of_an_inspection_reads_its_model(place, capsys):
    inspected = {"model": "model", "text": ["notes"], "column": None, "errors": "strict"}
    RunFolder.create(place / "seen", "inspect", {}, inspected)
    asked = ("plan", "seen", "--context", "64", "--max-state", "50%", "--out")
    refused(capsys, place, "lies in model, the folder of the model", *asked, "model/out")


def test_no_drawing_is_written_into_its_model(place, capsys):
    code, _, err = typed(capsys, "variants", "--plot", "--model", "model", "--out", "model/sentence.html")
    assert (code, "lies in model, the folder of the model" in err) == (2, True)
    assert not (place / "model" / "sentence.html").exists()


@pytest.mark.parametrize("command", ["inspect", "convert", "evaluate"])
def test_the_default_folder_may_lie_where_one_stands(place, capsys, monkeypatch, command):
    """In the folder of the model."""
    monkeypatch.chdir(place / "model")
    asked = [{"model": "."}.get(part, part) for part in OF_A_MODEL[command]]
    code, _, err = typed(capsys, command, *asked, "--text", "../notes", *SMALL.get(command, ()), "--dry-run")
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


def test_a_run_may_lie_in_its_text_and_is_no_part_of_it(place, capsys):
    asked = ("evaluate", "elu1", "--text", "notes", "--max-tokens", "64", "--context", "32", "--out", "notes/scores")
    assert typed(capsys, *asked)[0] == 0
    (place / "notes" / "scores" / "records.jsonl").unlink()
    (place / "notes" / "scores" / "more.txt").write_text("what a run broken off left")
    for text in ("notes", "notes/**/*.txt"):
        skipped = Skipped()
        found = [Path(one.path).name for root in find_roots([text]) for one in root.sources(skipped)]
        assert (found, skipped.runs) == (["text.txt"], 1)
    named = [one.path for root in find_roots(["notes/scores/*.txt"]) for one in root.sources(Skipped())]
    assert named == ["notes/scores/more.txt"]


def test_a_glob_does_not_read_the_run_that_it_is_for(place, capsys):
    """Its lock is there before its text is read, and the same command finds the same text."""
    asked = (
        "inspect",
        "model",
        "--text",
        "notes/**",
        "--length",
        "32",
        "--window",
        "8",
        "--texts",
        "2",
        "--budget",
        "1s",
    )
    for _ in range(2):
        code, out, err = typed(capsys, *asked, "--out", "notes/run")
        assert code == 0, err
        assert "text: 1 document" in out + err and "notes/run" not in (out + err).split("text:")[1].splitlines()[0]


def test_a_run_that_is_in_its_model_already_goes_on(place, capsys):
    asked = ("inspect", "model", "--text", "notes", "--length", "32", "--window", "8", "--texts", "2", "--budget", "1s")
    assert typed(capsys, *asked, "--out", "run")[0] == 0
    (place / "run").rename(place / "model" / "run")
    code, _, err = typed(capsys, *asked, "--out", "model/run")
    assert code == 0, err


def test_a_tilde_is_the_home_of_the_user(place, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(place / "home"))
    code, _, err = typed(capsys, "convert", "model", "--plan", "identity", "--out=~/out")
    assert code == 0, err
    assert (place / "home" / "out" / "run.json").exists() and not (place / "~").exists()
