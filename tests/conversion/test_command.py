"""`termwise convert` as a person types it: what it prints, and one line for what cannot be."""

from __future__ import annotations

import io
import json
from collections import Counter

import pytest
from rich.console import Console
from tests.conversion.tiny_conversion import original, plan
from tests.study.micro_study import write_text

from termwise import cli
from termwise.models import load
from termwise.models.naming import fingerprint
from termwise.report import terminal
from termwise.results import RunFolder


def typed(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def test_a_conversion_ends_with_the_folder_and_the_page(capsys, tmp_path):
    original(tmp_path / "original")
    asked = (
        "convert",
        str(tmp_path / "original"),
        "--plan",
        str(plan(tmp_path / "plan")),
        "--out",
        str(tmp_path / "out"),
    )
    code, out, _ = typed(capsys, *asked, "--dry-run", "--json")
    told = json.loads(out)
    assert code == 0 and not (tmp_path / "out").exists()
    assert told["heads"] == {"exp": 3, "taylor:0..2@mean+w8s2": 2, "drop+w8s2": 1}
    assert told["cache_bytes_float32"] == 3 * 2 * 64 * 2 * 6 * 4 and told["context"] == 64
    code, out, _ = typed(capsys, *asked)
    assert code == 0
    for said in ("no text was given, so no loss was measured", "taylor:0..2@mean+w8s2", "index.html"):
        assert said in " ".join(out.split()), said
    model, tokenizer = load(tmp_path / "out" / "model")
    assert tokenizer is not None and model.config.groups[0][0].spec.short_name == "exp"
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (
        run["num_records"] == {"memory": 3} == dict(Counter(r.kind for r in RunFolder.open(tmp_path / "out").records()))
    )
    assert run["command"] == "convert" and run["arguments"]["model"] == str(tmp_path / "original")
    assert run["resolved"]["weights"] == fingerprint(tmp_path / "original")
    assert run["written"] == fingerprint(tmp_path / "out" / "model") != run["resolved"]["weights"]
    code, out, err = typed(capsys, *asked)
    assert code == 0 and "nothing is left to do" in err
    settings = tmp_path / "original" / "generation_config.json"
    settings.write_text(settings.read_text() + " ")
    for more in ((), ("--dry-run",)):
        code, _, err = typed(capsys, *asked, *more)
        assert code == 2 and "other settings: weights" in err


def test_a_conversion_that_was_stopped_claims_no_model(tmp_path):
    settings = {"model": "original", "plan": "identity", "text": ["text.txt"]}
    folder = RunFolder.create(tmp_path / "out", "convert", {}, settings)
    said = [text for text in _texts(terminal.summary(folder.path)) if text]
    assert "Not converted yet: there is no model so far." in said
    assert not any("no text was given" in text or "The model:" in text for text in said)
    folder.update(finished=True)
    said = _texts(terminal.summary(folder.path))
    assert "Converted; no text was given, so no loss was measured." in said


def _texts(group) -> list[str]:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(group)
    return [line.strip() for line in console.export_text().splitlines()]


def test_a_mistyped_text_does_not_make_the_folder_refuse_the_right_one(capsys, tmp_path):
    original(tmp_path / "original")
    (tmp_path / "empty.txt").touch()
    right = write_text(tmp_path, num_words=2000)
    asked = ("convert", str(tmp_path / "original"), "--plan", "identity", "--out", str(tmp_path / "out"))
    code, _, err = typed(capsys, *asked, "--text", str(tmp_path / "empty.txt"))
    assert code == 2 and "is empty" in err
    code, _, err = typed(capsys, *asked, "--text", str(right), "--context", "4096")
    assert code == 2 and "beyond the model's own 64" in err
    code, _, err = typed(capsys, *asked, "--text", str(right), "--max-tokens", "256")
    assert code == 0, err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("{original}", "--plan", "tailor:0..2"), "did you mean 'taylor:0..2'"),
        (("{original}", "--plan", "identity", "--tune", "20x"), "time '20x'"),
        (("{original}", "--plan", "identity", "--lora", "4"), "belong to tuning"),
        (("{original}", "--plan", "identity", "--text", "nowhere.txt"), "nowhere.txt"),
        (("{gpt2}", "--plan", "identity"), "gpt2 can be inspected but not converted"),
        (("softmax", "--plan", "identity"), "its weights would be random"),
    ],
)
def test_what_cannot_be_is_one_line_and_leaves_nothing(arguments, says, capsys, tmp_path):
    places = {family: str(tmp_path / family) for family in ("original", "gpt2")}
    original(tmp_path / "original")
    original(tmp_path / "gpt2", "gpt2")
    given = [argument.format(**places) for argument in arguments]
    code, _, err = typed(capsys, "convert", *given, "--out", str(tmp_path / "out"))
    assert code == 2 and says in err and err.count("termwise: ") == 1 and "Traceback" not in err
    assert not (tmp_path / "out").exists()
