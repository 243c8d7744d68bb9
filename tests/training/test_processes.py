"""torchrun with two gloo processes gives the numbers of one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import toy_training
from toy_training import log_lines, make_batch, make_config, make_model

from termwise.training.loop import train


def train_with_two_processes(folder: Path) -> None:
    options = '{"steps": 8, "micro_batches": 2, "dropout": 0}'
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    subprocess.run(
        [*command, toy_training.__file__, str(folder), options],
        check=True,
        timeout=100,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
def test_two_processes_give_the_loss_curve_of_one_and_resume(tmp_path: Path) -> None:
    train_with_two_processes(tmp_path / "two")
    train(make_model(dropout=0), make_batch, make_config(steps=8), tmp_path / "one")
    one, two = log_lines(tmp_path / "one"), log_lines(tmp_path / "two")
    assert [line["step"] for line in two] == list(range(1, 9))
    for name in ("loss", "grad_norm"):
        assert [line[name] for line in two] == pytest.approx([line[name] for line in one], rel=1e-5), name

    last = tmp_path / "two" / "checkpoints" / "8"
    weights = (last / "model.safetensors").read_bytes()
    shutil.rmtree(last)
    train_with_two_processes(tmp_path / "two")
    assert (last / "model.safetensors").read_bytes() == weights
    assert log_lines(tmp_path / "two") == two

    with pytest.raises(ValueError, match="by 2 processes, now there are 1"):
        train(make_model(dropout=0), make_batch, make_config(steps=8, micro_batches=2), tmp_path / "two")
