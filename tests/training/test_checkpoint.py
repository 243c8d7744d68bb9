"""A checkpoint is complete or invisible; damage anywhere is seen; nothing is a pickle."""

from __future__ import annotations

import errno
import json
import logging
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_training import make_batch, make_config, make_model

from termwise.training import checkpoint
from termwise.training.checkpoint import FILES, Checkpoint, DamagedCheckpoint
from termwise.training.loop import train


def make_checkpoint(step: int) -> Checkpoint:
    tensors, tied = checkpoint.model_tensors(make_model())
    return Checkpoint(tensors, {"exp_avg/x": torch.full((3,), float(step))}, {"step": step, "tied": tied})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for step in (3, 6):
        checkpoint.save(tmp_path / "checkpoints", make_checkpoint(step), keep=2)
    return tmp_path / "checkpoints"


def test_what_is_saved_is_read_back(root: Path) -> None:
    found, wanted = checkpoint.latest(root), make_checkpoint(6)
    assert found is not None
    assert found.state == wanted.state
    for ours, theirs in ((found.model, wanted.model), (found.optimizer, wanted.optimizer)):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert {path.name for path in (root / "6").iterdir()} == {*FILES, "manifest.json"}


def test_only_the_newest_are_kept(root: Path) -> None:
    checkpoint.save(root, make_checkpoint(10), keep=2)
    assert checkpoint.steps(root) == [6, 10]
    checkpoint.save(root, make_checkpoint(11), keep=1)
    assert [path.name for path in root.iterdir()] == ["11"]


def test_tied_embeddings_stay_tied(root: Path) -> None:
    found, model = checkpoint.latest(root), make_model()
    assert found is not None
    assert "lm_head.weight" not in found.model
    assert found.state["tied"] == {"lm_head.weight": "embed_tokens.weight"}
    with torch.no_grad():
        model.embed_tokens.weight.zero_()
    checkpoint.load_model_tensors(model, found)
    assert model.lm_head.weight is model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight, make_model().lm_head.weight)


def test_another_model_is_refused_by_name(root: Path) -> None:
    found, model = checkpoint.latest(root), make_model()
    model.layers[1].mlp = torch.nn.Linear(8, 9)
    assert found is not None
    with pytest.raises(ValueError, match="of another model") as caught:
        checkpoint.load_model_tensors(model, found)
    assert "layers.1.mlp.weight" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_a_flipped_byte_anywhere_is_seen(root: Path, name: str) -> None:
    file = root / "6" / name
    content = file.read_bytes()
    for place in range(0, len(content), max(1, len(content) // 150)):
        for flip in (0x01, 0x80):
            changed = bytearray(content)
            changed[place] ^= flip
            file.write_bytes(changed)
            with pytest.raises(DamagedCheckpoint, match="damaged"):
                checkpoint.load(root / "6")
    file.write_bytes(content)
    assert checkpoint.load(root / "6").step == 6


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
@pytest.mark.parametrize("left", [0, 0.5, -1])
def test_a_truncation_is_seen_and_the_previous_one_used_aloud(
    root: Path, name: str, left: float, caplog: pytest.LogCaptureFixture
) -> None:
    file = root / "6" / name
    size = file.stat().st_size
    os.truncate(file, size - 1 if left < 0 else int(size * left))
    with caplog.at_level(logging.WARNING):
        found = checkpoint.latest(root)
    assert found is not None
    assert found.step == 3
    assert str(root / "6") in caplog.text
    assert name in caplog.text


def test_a_missing_file_or_manifest_is_seen(root: Path) -> None:
    (root / "6" / "manifest.json").unlink()
    (root / "3" / "state.json").unlink()
    with pytest.raises(DamagedCheckpoint, match="no manifest"):
        checkpoint.load(root / "6")
    with pytest.raises(DamagedCheckpoint, match=r"state\.json is missing"):
        checkpoint.load(root / "3")
    assert checkpoint.latest(root) is None


def test_a_renamed_checkpoint_is_seen(root: Path) -> None:
    shutil.move(root / "3", root / "9")
    with pytest.raises(DamagedCheckpoint):
        checkpoint.load(root / "9")


@pytest.mark.parametrize("name", ["optimizer.pt", "pytorch_model.bin", "state.pkl", "MODEL.PTH"])
def test_a_planted_pickle_is_refused_by_name(root: Path, name: str) -> None:
    (root / "3" / name).write_bytes(pickle.dumps({"step": 3}))
    with pytest.raises(ValueError, match=name) as caught:
        checkpoint.latest(root)
    assert "never read" in str(caught.value)


def test_a_pickle_under_a_good_name_is_damage(root: Path) -> None:
    (root / "6" / "optimizer.safetensors").write_bytes(pickle.dumps({"step": 3}))
    with pytest.raises(DamagedCheckpoint):
        checkpoint.load(root / "6")


def test_a_newer_schema_is_refused_not_passed_over(root: Path) -> None:
    fields = json.loads((root / "6" / "manifest.json").read_text())
    del fields["digest"]
    (root / "6" / "manifest.json").write_text(checkpoint._manifest_text(fields | {"schema": 2}))
    with pytest.raises(ValueError, match="newer termwise"):
        checkpoint.latest(root)


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_failed_save_leaves_what_was_there(root: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(OSError, match=r"step 9 could not be written .*No space left.* step 6 is untouched"):
            checkpoint.save(root, make_checkpoint(9), keep=2)
    assert sorted(path.name for path in root.iterdir()) == ["3", "6"]
    assert checkpoint.load(root / "6").step == 6


def test_space_is_checked_before_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=5000))
    with pytest.raises(OSError, match=r"need 0\.0\d* MB.*0\.0 MB free"):
        train(make_model(), make_batch, make_config(), tmp_path)
    assert not (tmp_path / "log.jsonl").exists()


def test_a_damaged_checkpoint_changes_nothing_but_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, steps in (("whole", 9), ("damaged", 9)):
        train(make_model(), make_batch, make_config(steps=steps), tmp_path / name)
    last = tmp_path / "damaged" / "checkpoints" / "9" / "optimizer.safetensors"
    good = last.read_bytes()
    last.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    train(make_model(), make_batch, make_config(steps=9), tmp_path / "damaged")
    assert "the one at step 6 is used" in caplog.text
    assert last.read_bytes() == good


def test_no_file_of_a_run_is_a_pickle(tmp_path: Path) -> None:
    train(make_model(), make_batch, make_config(steps=4), tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 10
    assert {path.suffix for path in files} == {".json", ".jsonl", ".safetensors", ".guard"}
