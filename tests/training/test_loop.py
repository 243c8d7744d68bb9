"""The loop: exact accumulation, the log, evaluation, NaN by name, taking up a folder."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from toy_training import CONTEXT, TOKENS, log_lines, make_batch, make_config, make_model

from termwise.results import FolderLock
from termwise.training.faults import TrainingDiverged
from termwise.training.loop import TrainingResult, train
from termwise.training.placement import Placement
from termwise.training.update import Updater


def gradients(micro_batches: int) -> tuple[float, dict[str, torch.Tensor]]:
    model, config = make_model(dropout=0), make_config(micro_batches=micro_batches)
    updater = Updater(model, make_batch, config, Placement(config))
    parts, num_scored = updater._own_parts(0)
    assert len(parts) == micro_batches
    loss = updater._backward(parts, num_scored).item()
    return loss, {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("micro_batches", [2, 4, 8])
def test_accumulation_is_exact_with_unequal_lengths(micro_batches: int) -> None:
    batch = make_batch(0)
    per_row = (batch.labels.reshape(-1, CONTEXT) != -100).sum(axis=1)
    assert len(set(per_row.tolist())) > 2
    loss, whole = gradients(1)
    cut_loss, cut = gradients(micro_batches)
    assert cut_loss == pytest.approx(loss, rel=1e-6)
    for name, gradient in whole.items():
        assert torch.linalg.norm(cut[name] - gradient) <= 1e-6 * torch.linalg.norm(gradient) + 1e-9, name


def test_the_loss_is_the_mean_over_scored_tokens() -> None:
    model, batch = make_model(dropout=0), make_batch(0)
    ids, labels = torch.from_numpy(batch.input_ids), torch.from_numpy(batch.labels)[0]
    rows = model(ids, torch.from_numpy(batch.cu_seqlens)).logits[0].detach().double().log_softmax(dim=-1)
    scored = (labels != -100).nonzero()[:, 0].tolist()
    wanted = -sum(float(rows[place, labels[place]]) for place in scored) / len(scored)
    assert gradients(1)[0] == pytest.approx(wanted, rel=1e-6)


def test_it_trains_like_a_plain_loop(tmp_path: Path) -> None:
    config = make_config(steps=12, lr=1e-2, clip=0.5, warmup_steps=2, min_lr_ratio=0.0, weight_decay=0.0)
    model = make_model(dropout=0)
    train(model, make_batch, config, tmp_path)
    plain, losses = make_model(dropout=0), []
    optimizer = torch.optim.AdamW(plain.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(12):
        batch = make_batch(step)
        logits = plain(torch.from_numpy(batch.input_ids), torch.from_numpy(batch.cu_seqlens)).logits
        loss = F.cross_entropy(logits[0], torch.from_numpy(batch.labels)[0])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.param_groups[0]["lr"] = (
            1e-2 * (step + 1) / 2 if step < 2 else 1e-2 * (1 + np.cos(np.pi * (step - 1) / 10)) / 2
        )
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert [line["loss"] for line in log_lines(tmp_path)] == pytest.approx(losses, rel=1e-5)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_log_has_one_line_a_step_with_these_fields(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    result = train(make_model(), make_batch, make_config(steps=7), tmp_path, on_step=seen.append)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == seen
    assert [line["step"] for line in lines] == list(range(1, 8))
    assert {tuple(line) for line in lines} == {("step", "tokens", "loss", "lr", "grad_norm", "seconds")}
    assert lines[-1]["tokens"] == 7 * TOKENS
    assert result == TrainingResult(7, lines[-1]["loss"], lines[-1]["seconds"], None)
    clock = [line["seconds"] for line in lines]
    assert clock == sorted(clock)


def test_log_every_thins_the_log_not_the_steps(tmp_path: Path) -> None:
    seen: list[int] = []
    config = make_config(steps=7, log_every=4, checkpoint_every=100)
    train(make_model(), make_batch, config, tmp_path, on_step=lambda line: seen.append(line["step"]))
    assert [line["step"] for line in log_lines(tmp_path)] == [4, 7]
    assert seen == list(range(1, 8))


def test_seconds_leave_out_checkpoints_and_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from termwise.training import checkpoint, loop

    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(loop.time, "perf_counter", lambda: clock.now)
    save = checkpoint.save

    def slow(*arguments: Any, **keywords: Any) -> Any:
        clock.now += 1000
        return save(*arguments, **keywords)

    def batches(step: int) -> Any:
        clock.now += 1
        return make_batch(step)

    def evaluate(model: Any) -> dict[str, Any]:
        clock.now += 1000
        return {}

    monkeypatch.setattr(checkpoint, "save", slow)
    assert train(make_model(), batches, make_config(steps=7), tmp_path, evaluate=evaluate).seconds == 7


def test_evaluation_is_logged_and_disturbs_nothing(tmp_path: Path) -> None:
    def evaluate(model: Any) -> dict[str, Any]:
        assert not model.training
        return {"drawn": random.random() + float(np.random.rand()) + torch.rand(()).item()}

    train(make_model(), make_batch, make_config(steps=7), tmp_path / "without")
    train(make_model(), make_batch, make_config(steps=7), tmp_path / "with", evaluate=evaluate)
    lines = log_lines(tmp_path / "with")
    assert [line["step"] for line in lines if "evaluation" in line] == [3, 6, 7]
    assert [{k: v for k, v in line.items() if k != "evaluation"} for line in lines] == log_lines(tmp_path / "without")


def test_an_evaluation_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"log\.jsonl takes finite numbers.*'loss': nan"):
        train(make_model(), make_batch, make_config(), tmp_path, evaluate=lambda model: {"loss": float("nan")})


def test_a_finished_folder_is_loaded_and_returned(tmp_path: Path) -> None:
    first, second = make_model(), make_model()
    done = train(first, make_batch, make_config(steps=4), tmp_path)

    def never(step: int) -> Any:
        raise AssertionError("a finished run asks for no batch")

    before = {
        path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file() and "lock" not in path.name
    }
    assert train(second, never, make_config(steps=4), tmp_path) == done
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_an_exception_in_a_callback_leaves_a_run_to_take_up(tmp_path: Path) -> None:
    def stop(line: dict[str, Any]) -> None:
        if line["step"] == 5:
            raise LookupError

    with pytest.raises(LookupError):
        train(make_model(), make_batch, make_config(steps=9), tmp_path / "a", on_step=stop)
    train(make_model(), make_batch, make_config(steps=9), tmp_path / "a")
    train(make_model(), make_batch, make_config(steps=9), tmp_path / "b")
    assert log_lines(tmp_path / "a") == log_lines(tmp_path / "b")
    with FolderLock(tmp_path / "a"):
        pass


def test_other_settings_are_refused_by_field(tmp_path: Path) -> None:
    train(make_model(), make_batch, make_config(steps=3), tmp_path)
    with pytest.raises(ValueError, match=r"other settings: steps \(was 3, now 5\), lr \(was 0\.003, now 0\.5\)"):
        train(make_model(), make_batch, make_config(steps=5, lr=0.5), tmp_path)
    train(make_model(), make_batch, make_config(steps=3, keep=5, log_every=2), tmp_path)


def test_a_wrong_batch_and_a_wrong_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"batches\(0\): input_ids \(1, 96\)"):
        train(make_model(), make_batch, make_config(tokens_per_step=2 * TOKENS), tmp_path)
    with pytest.raises(ValueError, match="Linear has no save_pretrained"):
        train(torch.nn.Linear(2, 2), make_batch, make_config(), tmp_path)


def poisoned_at(model: Any, module: str, *steps: int) -> Any:
    """Batches that make `module` put a NaN in its last channel at position 30 in these steps."""
    poison = SimpleNamespace(is_on=False)

    def hook(module: Any, arguments: Any, output: torch.Tensor) -> torch.Tensor:
        channel = torch.arange(output.shape[-1]) == output.shape[-1] - 1
        place = torch.arange(output.shape[1]) == 30
        return output.masked_fill(place[:, None] & channel, torch.nan) if poison.is_on else output

    model.get_submodule(module).register_forward_hook(hook)

    def batches(index: int) -> Any:
        poison.is_on = index in steps
        return make_batch(index)

    return batches


@pytest.mark.parametrize(
    ("module", "layer", "head"),
    [("layers.1.self_attn.q_proj", 1, 1), ("layers.0.self_attn.k_proj", 0, 0), ("layers.1.mlp", 1, None)],
)
def test_a_nan_is_named_and_nothing_is_harmed(tmp_path: Path, module: str, layer: int, head: int | None) -> None:
    model = make_model(dropout=0)
    with pytest.raises(TrainingDiverged) as caught:
        train(model, poisoned_at(model, module, 4), make_config(), tmp_path)
    fault, documents = caught.value, make_batch(4).cu_seqlens
    assert (fault.step, fault.batch, fault.layer, fault.head) == (5, 4, layer, head)
    assert fault.tensor == f"output of {module}"
    assert (fault.micro_batch, fault.document) == (0, int(np.searchsorted(documents, 30, side="right")) - 1)
    assert fault.last_good == tmp_path / "checkpoints" / "3"
    for word in ("step 5", f"layer {layer}", module, "batches(4)", "checkpoints/3"):
        assert word in str(fault)
    lines = log_lines(tmp_path)
    assert [line["loss"] is None for line in lines] == [False] * 4 + [True]
    clean = tmp_path / "clean"
    train(make_model(dropout=0), make_batch, make_config(), clean)
    done = train(make_model(dropout=0), make_batch, make_config(), tmp_path)
    assert done.step == 40
    assert log_lines(tmp_path) == log_lines(clean)


def test_a_nan_is_skipped_when_asked_and_leaves_a_gap(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, before = make_model(dropout=0), {}
    batches = poisoned_at(model, "layers.0.self_attn.o_proj", 4)

    def watch(line: dict[str, Any]) -> None:
        before[line["step"]] = model.norm.weight.detach().clone()

    result = train(model, batches, make_config(steps=8, on_nan="skip"), tmp_path, on_step=watch)
    assert result.step == 8
    assert [line["loss"] is None for line in log_lines(tmp_path)] == [step == 5 for step in range(1, 9)]
    assert torch.equal(before[5], before[4])
    assert not torch.equal(before[6], before[5])
    assert "output of layers.0.self_attn.o_proj (layer 0" in caplog.text


def test_skipping_goes_on_after_nine_steps_in_a_row(tmp_path: Path) -> None:
    model = make_model(dropout=0)
    batches = poisoned_at(model, "norm", *range(4, 13), *range(14, 23))
    assert train(model, batches, make_config(on_nan="skip"), tmp_path).step == 40


def test_skipping_stops_at_ten_steps_in_a_row(tmp_path: Path) -> None:
    model = make_model(dropout=0)
    batches, config = poisoned_at(model, "norm", *range(4, 30)), make_config(on_nan="skip", checkpoint_every=6)
    # The second call begins at the checkpoint of step 12, before which eight were left out.
    for _ in range(2):
        with pytest.raises(TrainingDiverged, match="10 steps in a row were left out") as caught:
            train(model, batches, config, tmp_path)
        assert (caught.value.step, caught.value.skipped) == (14, 10)
        assert caught.value.last_good == tmp_path / "checkpoints" / "12"
    assert [line["loss"] is None for line in log_lines(tmp_path)] == [False] * 4 + [True] * 10


def test_an_infinite_gradient_with_a_finite_loss_is_named(tmp_path: Path) -> None:
    model = make_model(dropout=0)
    # 0 * sqrt(0): the value is 0, its derivative is not finite.
    model.layers[0].self_attn.v_proj.register_forward_hook(
        lambda module, arguments, output: output + (0 * module.weight[3]).abs().sqrt().sum()
    )
    with pytest.raises(TrainingDiverged) as caught:
        train(model, make_batch, make_config(), tmp_path)
    assert caught.value.tensor == "gradient of layers.0.self_attn.v_proj.weight"
    assert (caught.value.layer, caught.value.head, caught.value.last_good) == (0, 0, None)


def test_a_weight_that_is_not_finite_is_named(tmp_path: Path) -> None:
    model = make_model()
    model.layers[1].self_attn.q_proj.weight.data[5, 2] = torch.inf
    with pytest.raises(TrainingDiverged, match=r"weight layers\.1\.self_attn\.q_proj\.weight \(layer 1, head 1\)"):
        train(model, make_batch, make_config(), tmp_path)


def test_a_card_that_is_not_here_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="device='cuda:99': "):
        train(make_model(), make_batch, make_config(device="cuda:99"), tmp_path)


def test_bfloat16_autocast_trains_fp32_weights(tmp_path: Path) -> None:
    model = make_model(dropout=0)
    train(model, make_batch, make_config(steps=4, dtype="bfloat16"), tmp_path / "low")
    train(make_model(dropout=0), make_batch, make_config(steps=4), tmp_path / "full")
    low, full = ([line["loss"] for line in log_lines(tmp_path / name)] for name in ("low", "full"))
    assert low != full
    assert low == pytest.approx(full, rel=2e-2)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
