"""A dry run refuses what the run itself would refuse, in the same words, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from termwise import cli
from termwise.commands.folders import check_reservable, reserved
from termwise.results import FolderLock, RunFolder
from tests.conversion.tiny_conversion import original
from tests.study.micro_study import write_text

COMMANDS = {
    "study": ("text.txt",),
    "inspect": ("model", "--text", "text.txt"),
    "plan": ("model", "--context", "64", "--max-loss", "0.1", "--text", "text.txt"),
    "convert": ("model", "--plan", "identity"),
    "verify": ("elu1", "--text", "text.txt"),
    "evaluate": ("model", "--text", "text.txt"),
    "bench": ("elu1", "--lengths", "64"),
    "bench --calibrate": (),
}


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path, num_words=400)
    return tmp_path


def typed(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def dry(capsys, command: str, out: Path, *more: str) -> tuple[int, str, str]:
    name, *flags = command.split()
    return typed(capsys, name, *COMMANDS[command], *flags, *more, "--out", str(out), "--dry-run")


def refusal(attempt) -> str:
    with pytest.raises(ValueError, match=r".") as error:
        attempt()
    return str(error.value)


@contextlib.contextmanager
def held_elsewhere(folder: Path):
    """The folder locked by another process."""
    body = "import sys; from termwise.results import FolderLock\nwith FolderLock(sys.argv[1]): print('held', flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", body, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    try:
        yield
    finally:
        holder.communicate("\n")


def a_file(path: Path) -> None:
    path.write_text("a file")


def below_a_file(path: Path) -> None:
    path.parent.write_text("a file")


def of_somebody(path: Path) -> None:
    path.mkdir()
    (path / "letter.txt").write_text("dear")


def of_another_command(path: Path) -> None:
    RunFolder.create(path, "generate", {}, {})


def signed_elsewhere(path: Path) -> None:
    path.mkdir()
    (path / "lock").write_text(json.dumps({"pid": 1, "host": "elsewhere", "started": "2024-01-01T00:00:00+00:00"}))


FAULTS = {
    a_file: "is a file",
    below_a_file: "cannot be",
    of_somebody: "holds other files",
    of_another_command: "was made by 'termwise generate'",
    signed_elsewhere: "in use by process 1 on elsewhere",
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_folder_that_would_be_refused_is_refused(place, capsys, command, fault):
    out = place / "below" / "out" if fault is below_a_file else place / "out"
    fault(out)
    code, told, err = dry(capsys, command, out)
    assert (code, told, err.count("\n")) == (2, "", 1)
    assert FAULTS[fault] in err


def test_a_folder_that_another_process_holds_is_refused(place, capsys):
    (place / "out").mkdir()
    with held_elsewhere(place / "out"):
        for command in COMMANDS:
            code, told, err = dry(capsys, command, place / "out")
            assert (code, told) == (2, "") and "is in use by process" in err, command


@pytest.mark.parametrize("fault", FAULTS)
def test_the_words_are_those_of_the_run_itself(place, fault):
    out = place / "below" / "out" if fault is below_a_file else place / "out"
    fault(out)

    def run() -> None:
        with reserved(out, "study"):
            pass

    assert refusal(lambda: check_reservable(out, "study")) == refusal(run)


def test_a_folder_that_cannot_be_written_is_refused(place, monkeypatch):
    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    (place / "out").mkdir()
    monkeypatch.setattr(tempfile, "TemporaryFile", denied)
    for out, what in ((place / "out", "written"), (place / "new" / "deep", "made")):
        assert (
            refusal(FolderLock(out).check)
            == f"the folder {out} cannot be {what}: Permission denied; give another --out"
        )


def test_looking_leaves_nothing(place):
    (place / "empty").mkdir()
    RunFolder.create(place / "run", "study", {}, {})
    before = sorted(place.rglob("*"))
    for out in ("empty", "run", "new/deep"):
        check_reservable(place / out, "study")
    assert sorted(place.rglob("*")) == before


SETTINGS = {
    "evaluate": ("--max-tokens", "77"),
    "bench": ("--heads", "2"),
    "bench --calibrate": ("--threads", "2"),
    "verify": ("--seed", "9"),
    "convert": ("--seed", "9"),
    "inspect": ("--length", "24"),
    "study": ("--context", "16"),
}


@pytest.mark.parametrize("command", SETTINGS)
def test_a_run_of_other_settings_is_refused(place, capsys, monkeypatch, command):
    """The folder holds a run as far as its run.json: what the dry run compares with."""
    original(place / "model")
    capsys.readouterr()
    create, out = RunFolder.create, place / "out"

    def created(*arguments, **fields):
        create(*arguments, **fields)
        raise ValueError("that is enough")

    name, *flags = command.split()
    usual = ("--length", "32", "--texts", "2", "--window", "8") if name == "inspect" else ()
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "create", created)
        _, _, err = typed(capsys, name, *COMMANDS[command], *flags, *usual, "--out", str(out))
    assert (out / "run.json").exists(), err
    code, _, err = dry(capsys, command, out, *usual, *SETTINGS[command])
    assert code == 2
    assert "was made with other settings" in err.splitlines()[-1]


@pytest.mark.parametrize("is_dry", [True, False])
@pytest.mark.parametrize("more", [(), ("--text", "text.txt")])
def test_windows_beyond_the_models_own_are_refused(place, capsys, is_dry, more):
    original(place / "model")
    asked = ("convert", "model", "--plan", "identity", "--context", "65", *more, "--out", "out")
    code, _, err = typed(capsys, *asked, *["--dry-run"] * is_dry)
    assert (code, "--context 65 is beyond the model's own 64" in err) == (2, True)
    assert not (place / "out").exists()


@pytest.mark.parametrize("is_dry", [True, False])
@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("study", ("text.txt",)),
        ("study", ()),
        ("inspect", ("--text", "text.txt")),
        ("inspect", ()),
        ("plan", ("--text", "text.txt")),
        ("plan", ()),
        ("convert", ("--text", "text.txt")),
        ("convert", ()),
        ("verify", ("--text", "text.txt")),
        ("verify", ()),
        ("evaluate", ("--text", "text.txt")),
        ("evaluate", ()),
    ],
)
def test_a_column_of_no_table_is_refused(place, capsys, command, text, is_dry):
    original(place / "model")
    plain = [part for part in COMMANDS[command] if part not in ("text.txt", "--text")]
    code, _, err = typed(capsys, command, *plain, *text, "--column", "body", "--out", "out", *["--dry-run"] * is_dry)
    assert code == 2
    assert "no source is a table" in err or "is of a text" in err
    assert "body" in err and not (place / "out").exists()


def test_a_column_beside_the_text_of_an_inspection_is_refused(place, capsys):
    RunFolder.create(
        place / "seen", "inspect", {}, {"model": "model", "text": ["text.txt"], "column": None, "errors": "strict"}
    )
    asked = ("plan", "seen", "--context", "64", "--max-state", "25%", "--column", "body", "--dry-run")
    code, _, err = typed(capsys, *asked)
    assert (code, "--column 'body' is of a text, and seen has its own" in err) == (2, True)


def test_a_column_of_a_table_is_read(place, capsys):
    original(place / "model")
    (place / "rows.jsonl").write_text(
        "".join(json.dumps({"id": n, "body": "some words " * 40}) + "\n" for n in range(20))
    )
    for command in ("inspect", "evaluate", "convert", "verify"):
        plain = [part for part in COMMANDS[command] if part not in ("text.txt", "--text")]
        usual = ("--length", "32", "--window", "8") if command == "inspect" else ()
        code, _, err = typed(capsys, command, *plain, *usual, "--text", "rows.jsonl", "--column", "body", "--dry-run")
        assert code == 0, (command, err)


@pytest.mark.parametrize("command", ["inspect", "plan", "convert", "verify", "evaluate", "bench", "study"])
def test_a_device_that_is_not_here_is_refused(place, capsys, command):
    original(place / "model")
    code, _, err = dry(capsys, command, place / "out", "--device", "cuda:99")
    assert (code, "CUDA cards are usable here" in err) == (2, True)


def test_a_model_without_a_tokenizer_reads_no_text(place, capsys):
    original(place / "model")
    for path in (place / "model").glob("tokenizer*"):
        path.unlink()
    code, _, err = dry(capsys, "convert", place / "out", "--text", "text.txt")
    assert (code, "holds no tokenizer" in err) == (2, True)


WRONG_PLURAL = re.compile(
    r"(?<![\d,.-])1 (?:\w+ ){0,2}"
    r"(?:documents|files|pieces|copies|tokens|characters|layers|heads|kv heads|models|texts|checks|steps|seeds|variants|runs|rows|groups)\b"
)


@pytest.mark.parametrize("command", COMMANDS)
def test_one_of_a_thing_has_no_plural(place, capsys, command):
    """A model of one layer with one kv head, one text, one variant, one seed."""
    original(place / "model", num_hidden_layers=1, num_key_value_heads=1)
    more = {
        "study": ("--variants", "softmax", "--steps", "1", "--seeds", "1", "--context", "16", "--tokens-per-step", "16", "--no-recall"),
        "inspect": ("--length", "32", "--window", "8", "--texts", "2"),
        "plan": ("--texts", "2", "--planning-texts", "2"),
        "bench": ("--measures", "decode"),
    }  # fmt: skip
    code, out, err = dry(capsys, command, place / "out", *more.get(command, ()))
    assert code == 0, err
    assert WRONG_PLURAL.findall(out + err) == []


def test_what_the_check_for_plurals_finds():
    assert all(
        WRONG_PLURAL.search(text) for text in ("1 documents", "(1 empty documents)", "1 kv heads", "of 1 layers")
    )
    assert not any(
        WRONG_PLURAL.search(text) for text in ("21 documents", "1 document", "0.1 tokens", "1,001 rows", "1 of 3")
    )
