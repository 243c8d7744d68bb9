"""Folders, texts and devices that are refused: one message each, and nothing left where nothing was."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from tests.study.micro_study import write_text

from termwise.commands.folders import reserved
from termwise.commands.shared import show
from termwise.results import RunFolder
from termwise.study.evaluate import EvaluateConfig, evaluate_models
from termwise.study.grid import StudyConfig
from termwise.study.measures import read_result
from termwise.training.configuration import TrainingConfig


def evaluate(out, **fields):
    known = {"models": ("softmax",), "tasks": ("perplexity",), "preset": "recall", "context": 32, "max_tokens": 200}
    config = EvaluateConfig(**(known | fields))
    with reserved(out, "evaluate"):
        evaluate_models(config, out, arguments={}, console=Console(file=io.StringIO()))
    return RunFolder.open(out).records()


def test_a_folder_that_is_not_ours_is_refused_untouched(tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.md").write_text("mine")
    RunFolder.create(tmp_path / "scores", "evaluate", {}, {})
    before = sorted(tmp_path.rglob("*"))
    for place, said in (
        (notes, "holds other files"),
        (notes / "a.md", "is a file"),
        (notes / "a.md" / "out", "cannot be made"),
        (tmp_path / "scores", "was made by 'termwise evaluate'; give 'termwise study' a new --out"),
    ):
        with pytest.raises(ValueError, match=said), reserved(place, "study"):
            pytest.fail("not ours")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_is_no_run_folder(tmp_path):
    (tmp_path / "a.txt").touch()
    with pytest.raises(ValueError, match="is no run folder"):
        RunFolder.open(tmp_path / "a.txt")


@pytest.mark.parametrize("exists", [False, True])
def test_a_mistyped_text_does_not_spoil_the_folder(tmp_path, exists):
    text, out = write_text(tmp_path, num_words=400), tmp_path / "out"
    if exists:
        out.mkdir()
    with pytest.raises(ValueError, match="no such file or folder"):
        evaluate(out, text=(str(tmp_path / "txet.txt"),))
    assert out.exists() == exists
    assert evaluate(out, text=(str(text),))[0].value > 0
    other = text.with_name("other.txt")
    other.write_bytes(text.read_bytes())
    for wrong, said in ((tmp_path / "txet.txt", "no such file or folder"), (other, "made with other settings: text")):
        with pytest.raises(ValueError, match=said):
            evaluate(out, text=(str(wrong),))
    assert len(RunFolder.open(out).records()) == 2


def test_bad_bytes_of_a_text_to_score_can_be_replaced(tmp_path):
    text = write_text(tmp_path, num_words=400)
    text.write_bytes(b"ab\xff" + text.read_bytes())
    with pytest.raises(ValueError, match=r"byte offset 2 .*--errors replace"):
        evaluate(tmp_path / "out", text=(str(text),))
    assert evaluate(tmp_path / "out", text=(str(text),), errors="replace")[0].value > 0


def test_a_damaged_result_is_named_with_the_way_out(tmp_path):
    (tmp_path / "result.json").write_text('{"kind": "tr')
    with pytest.raises(ValueError, match=r"result\.json is damaged .*delete it, and the same command"):
        read_result(tmp_path)


def test_a_result_of_another_version_is_refused(tmp_path):
    (tmp_path / "result.json").write_text('{"kind": "train", "status": "ok"}')
    with pytest.raises(ValueError, match=r"written by another version of termwise: .* or give a new --out"):
        read_result(tmp_path)


def test_a_device_is_refused_in_words_before_any_work(tmp_path):
    sizes = {"steps": 10, "tokens_per_step": 64, "context": 32}
    for make in (
        lambda: StudyConfig(device="gpu"),
        lambda: EvaluateConfig(models=("softmax",), device="gpu"),
        lambda: TrainingConfig(device="gpu", **sizes),
    ):
        with pytest.raises(ValueError, match=r"^device='gpu': allowed is auto, cpu, mps, cuda or cuda:NUMBER$"):
            make()
    with pytest.raises(ValueError, match="device='cuda:99': "):
        evaluate(tmp_path / "out", device="cuda:99")
    assert not (tmp_path / "out").exists()


def test_a_dry_run_speaks_to_people(capsys):
    cost = {
        "variants": ["softmax", "taylor:0..2"],
        "state_bytes": {"softmax": 34112},
        "epochs": 5.81818,
        "seconds": 487.8,
    }
    show(cost | {"left_out": None}, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "variants: softmax, taylor:0..2", "state bytes: softmax 34,112", "epochs: 5.82", "seconds: 8 min 8 s", "left out: none",
    ]  # fmt: skip
