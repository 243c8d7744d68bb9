"""Tuning brings the converted model nearer to the original, resumes bit by bit, and keeps the best weights only."""

from __future__ import annotations

import copy
import json
import math
import shutil
import signal
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tests.conversion.tiny_conversion import original, plan, run, text, tokens
from torch.nn import functional as F

from termwise.conversion import objectives, tuning
from termwise.conversion.assemble import converted, open_source
from termwise.conversion.config import ConvertConfig
from termwise.conversion.losses import (
    CONVERTED,
    ORIGINAL,
    ORIGINAL_TUNED,
    SLOTS,
    TUNED,
    WINDOW,
    Losses,
    mean,
    read_losses,
)
from termwise.conversion.objectives import Distilling, Matching, attentions, mean_over
from termwise.conversion.plan import read_plan
from termwise.conversion.watching import PATIENCE, Watch
from termwise.models import load
from termwise.report import page
from termwise.statistics.intervals import MIN_DOCUMENTS
from termwise.training.loop import TrainingInterrupted

PLAN = "taylor:0..2@mean+w2s1"
SETTINGS = {"plan": PLAN, "steps": 12, "context": 32, "rows": 4, "lr": 3e-3, "max_tokens": 600}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuning")
    model = original(folder / "original", initializer_range=0.2)
    ids = torch.tensor(list(Path(text(folder)).read_bytes())).long()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(150):  # so that conversion loses something
        rows = ids[: 4 * 32 * (len(ids) // 128)].reshape(-1, 32)[4 * step % 256 :][:4]
        model(rows, labels=rows).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder / "original")
    return folder


def settings(place, **fields):
    return SETTINGS | {"model": str(place / "original"), "text": (str(place / "text.jsonl"),)} | fields


@pytest.fixture(scope="module")
def tuned(place):
    """One whole conversion, and what it said."""
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    folder = run(place / "out", console, **settings(place, labels=0.3, tune_original=True))
    return folder, console.export_text()


def test_a_recovery_has_an_interval_over_documents():
    """Draws both differences over the same documents: exact where each document recovers the same share, wide where they differ."""
    losses = Losses.__new__(Losses)
    tokens = {str(n): 100 + 10 * n for n in range(12)}
    lost = {name: 0.02 * size * (1 + int(name) % 3) for name, size in tokens.items()}

    def known(left):
        of = {ORIGINAL: 0.0, CONVERTED: 1.0}
        made = {
            kind: {name: (3.0 * size + share * lost[name], size) for name, size in tokens.items()}
            for kind, share in of.items()
        }
        made[TUNED] = {name: (3.0 * size + left(int(name)) * lost[name], size) for name, size in tokens.items()}
        return made

    losses.known = known(lambda n: 0.2)
    assert losses.recovery() == pytest.approx((0.8, 0.8, 0.8))
    losses.known = known(lambda n: 0.1 + 0.2 * (n % 2))
    value, low, high = losses.recovery()
    assert 0.7 < low < value < high < 0.9
    losses.known = {name: dict(list(documents.items())[:4]) for name, documents in losses.known.items()}
    assert losses.recovery()[1:] == (None, None)


def test_all_losses_stand_in_the_records_and_the_card(tuned):
    folder, said = tuned
    losses = read_losses(folder)
    assert set(losses) == {ORIGINAL, CONVERTED, TUNED, ORIGINAL_TUNED, WINDOW, SLOTS} - {WINDOW}
    reasons = {r.subject["variant"]: r.reason for r in folder.records() if r.status == "not_measured"}
    assert "no window is shorter" in reasons[WINDOW]
    assert mean(losses[TUNED]) < mean(losses[CONVERTED])
    (recovery,) = [record for record in folder.records() if record.metric == "recovery"]
    lost = mean(losses[CONVERTED]) - mean(losses[ORIGINAL])
    assert recovery.value == pytest.approx(1 - (mean(losses[TUNED]) - mean(losses[ORIGINAL_TUNED])) / lost)
    assert (recovery.low is None) == (len(losses[ORIGINAL]) < MIN_DOCUMENTS)
    assert recovery.low is None or recovery.low < recovery.value < recovery.high
    card = (folder.path / "model" / "README.md").read_text()
    for name, documents in losses.items():
        assert f"| {name} | {mean(documents):.4f} |" in card
    assert f"Recovered by tuning: {recovery.value:.1%} (" in card
    assert "weight of the text's own tokens 0.3" in card
    assert "matching: 3 steps" in said and "end to end: 9 steps" in said and "original: 12 steps" in said
    assert [path for path in folder.path.rglob("*.safetensors") if path.parent.name != "model"] == []


def test_the_folder_holds_the_tuned_weights_and_the_page_the_losses(tuned, place):
    folder, _ = tuned
    model, _ = load(folder.path / "model")
    source = open_source(str(place / "original"))
    assert not torch.equal(model.lm_head.weight, source.model.lm_head.weight)
    shown = page.write(folder.path).read_text()
    for said in (
        "converted, tuned",
        "original, tuned",
        "slots alone",
        "not measured",
        "Tuning recovered",
        PLAN,
    ):
        assert said in shown, said


def test_held_out_text_is_never_trained_on(place, monkeypatch, tmp_path):
    seen = []
    whole = objectives.Distilling.__call__

    def watched(self, student, ids, labels, bounds):
        if torch.is_grad_enabled():
            seen.append(bytes(t for t in ids.flatten().tolist() if t < 256).decode())
        return whole(self, student, ids, labels, bounds)

    monkeypatch.setattr(objectives.Distilling, "__call__", watched)
    folder = run(tmp_path / "out", **settings(place))
    rows = [json.loads(line)["text"] for line in (place / "text.jsonl").read_text().splitlines()]
    held_out = [row for row in rows if not any(row[:20] in text or row[-20:] in text for text in seen)]
    assert len(seen) == 9 and len(held_out) >= len(read_losses(folder)[ORIGINAL]) > 0


@pytest.mark.parametrize(("lora", "place_of_stop"), [(0, 2), (2, 7)])  # in the first stage, in the second
def test_an_interrupted_conversion_ends_as_an_uninterrupted_one(place, lora, place_of_stop, tmp_path, monkeypatch):
    asked = settings(place, lora=lora)
    whole = run(tmp_path / "whole", **asked)
    made, calls = tuning._Progress.on_step, []

    def stopping(self, line):
        calls.append(line)
        if len(calls) == place_of_stop:
            signal.raise_signal(signal.SIGINT)
        made(self, line)

    monkeypatch.setattr(tuning._Progress, "on_step", stopping)
    with pytest.raises(TrainingInterrupted):
        run(tmp_path / "stopped", **asked)
    assert not (tmp_path / "stopped" / "model").exists()
    again = run(tmp_path / "stopped", **asked)
    one, other = (load(folder.path / "model")[0].state_dict() for folder in (whole, again))
    assert one.keys() == other.keys() and not any("lora" in name for name in one)
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    assert read_losses(whole) == read_losses(again)


def test_another_plan_or_budget_in_the_same_folder_is_refused(place, tmp_path):
    original_, plans = place / "original", tmp_path / "plan"
    run(tmp_path / "out", model=str(original_), plan=str(plan(plans)))
    shutil.rmtree(plans)
    plan(plans, [[{"kv_heads": [0, 1], "spec": {}}]] * 3)
    with pytest.raises(ValueError, match="made with other settings: plan_hash"):
        run(tmp_path / "out", model=str(original_), plan=str(plans / "plan.json"))
    with pytest.raises(ValueError, match=r"made with other settings: .*steps"):
        run(tmp_path / "out", **settings(place))


def pieces(place, name=PLAN):
    source = open_source(str(place / "original"))
    source.model.requires_grad_(False)
    student = converted(source.model, read_plan(name, source.model.config, source.family))
    ids = tokens(1, 60)
    labels = torch.cat([ids[:, 1:], torch.full((1, 1), -100)], dim=1)
    return source.model, student.requires_grad_(True), (ids, labels, torch.tensor([0, 25, 60], dtype=torch.int32))


def test_matching_compares_attention_outputs_on_the_originals_hidden_states(place):
    model, student, batch = pieces(place)
    seen = {}
    for name, layers in (("o", attentions(model)), ("s", attentions(student))):
        for i, layer in enumerate(layers):
            layer.register_forward_hook(lambda _, given, out, key=(name, i): seen.update({key: (given[0], out)}))
    loss = Matching(model)(student, *batch)
    expected = []
    for i in range(3):
        assert torch.equal(seen["o", i][0], seen["s", i][0])
        found, wanted = seen["s", i][1], seen["o", i][1]
        expected.append((found - wanted).square().mean() / wanted.square().mean())
    torch.testing.assert_close(loss, sum(expected) / 3 * 59)
    loss.backward()
    learnt = {name for name, p in student.named_parameters() if p.grad is not None}
    assert learnt == {name for name, _ in student.named_parameters() if "self_attn" in name}
    exact, twin, batch = pieces(place, "identity")
    assert float(Matching(exact)(twin, *batch)) < 1e-8


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_distilling_is_the_divergence_from_the_original_and_the_text(place, weight):
    model, student, (ids, labels, bounds) = pieces(place)
    found, wanted = (m(input_ids=ids, cu_seqlens=bounds).logits[0, :-1].double().softmax(-1) for m in (student, model))
    divergence = (wanted * (wanted / found).log()).sum()
    text = -found.log().gather(1, ids[0, 1:, None]).sum()
    loss = Distilling(model, weight)(student, ids, labels, bounds)
    torch.testing.assert_close(loss.double(), (1 - weight) * divergence + weight * text, rtol=1e-4, atol=1e-5)


def test_watching_keeps_the_best_weights_and_says_when_nothing_falls(tmp_path):
    model = torch.nn.Linear(2, 2, bias=False)
    figures = iter([0.9, 0.5, 0.7, 0.6, 0.55, 0.8])
    watch = Watch(tmp_path, 1.0, lambda _: next(figures))
    kept = None
    for step in range(1, 7):
        torch.nn.init.constant_(model.weight, step)
        watch.on_step({"step": step, "evaluation": watch.evaluate(model)})
        if step == 2:
            kept = copy.deepcopy(model.weight)
        assert watch.is_enough() == (step - 2 >= PATIENCE)
    assert watch.best == 0.5 and watch.restore(model)
    assert torch.equal(model.weight, kept)
    late = Watch(tmp_path / "late", 0.1, lambda _: 0.2, earliest=9)
    for step in range(1, 9 + 1):
        late.on_step({"step": step, "evaluation": {"held_out": 0.2 + step / 100}})
        assert late.is_enough() == (step == 9)
    falling = Watch(tmp_path / "falling", 1.0, lambda _: 1.0)
    for step, figure in enumerate((1.40, 1.41, 1.39, 1.38, 1.36, 1.33), start=1):
        falling.on_step({"step": step, "evaluation": {"held_out": figure}})
        assert not falling.is_enough(), step
    lost = Watch(tmp_path / "lost", 1.0, lambda _: math.inf)
    assert lost.evaluate(model) == {"held_out": None}
    lost.on_step({"step": 1, "evaluation": {"held_out": None}})
    assert lost.best == 1.0 and not lost.restore(model)
    worse = Watch(tmp_path / "worse", 0.1, lambda _: 0.2)
    assert not worse.restore(model)


def test_tuning_that_does_not_help_leaves_the_weights(place, tmp_path):
    folder = run(tmp_path / "out", **settings(place, lr=3.0))
    source = open_source(str(place / "original"))
    model, _ = load(folder.path / "model")
    for name, weight in source.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight), name


def test_a_budget_becomes_steps_once(place, tmp_path):
    asked = settings(place, tune=3.0) | {"steps": None}
    folder = run(tmp_path / "out", **asked)
    found = folder.run["tuning"]
    assert found["matching"] >= 2 and found["distilling"] >= 2 and found["watched"] >= 1
    log = (folder.run_path("converted", 0) / "distilling" / "log.jsonl").read_text().splitlines()
    assert json.loads(log[-1])["step"] <= found["distilling"]


def test_an_identity_has_no_outputs_to_match(place, tmp_path):
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    folder = run(tmp_path / "out", console, **settings(place, plan="identity", labels=1.0))
    assert folder.run["tuning"]["matching"] == 0 and folder.run["tuning"]["distilling"] == 12
    said = console.export_text()
    assert "matching" not in said and "end to end: 12 steps" in said


def test_means_do_not_depend_on_how_the_text_is_cut(place):
    model, student, (ids, labels, bounds) = pieces(place)
    from termwise.data.tokens import Batch

    whole = Batch(ids.numpy(), labels.numpy(), bounds.numpy())
    parts = [
        Batch(ids[:, :25].numpy(), labels[:, :25].numpy(), bounds[:2].numpy()),
        Batch(ids[:, 25:].numpy(), labels[:, 25:].numpy(), (bounds[1:] - 25).numpy()),
    ]
    objective = Distilling(model, 0.0)
    one, other = (mean_over(objective, student, batches, torch.device("cpu")) for batches in ([whole], parts))
    assert one == pytest.approx(other, rel=1e-4)
    assert F.relu(torch.tensor(one)) > 0


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tune": 5.0, "steps": 5}, "both say how long"),
        ({"steps": 5}, "tuning needs text"),
        ({"lora": 4}, "belong to tuning"),
        ({"labels": 0.5}, "belong to tuning"),
        ({"steps": 5, "text": ("a",), "tune_original": True}, "nothing to learn"),
        ({"steps": 3, "text": ("a",)}, "greater than or equal to 4"),
        ({"lr": 0.0}, "greater than 0"),
        ({"labels": 1.5}, "less than or equal to 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(fields, says):
    with pytest.raises(ValueError, match=says):
        ConvertConfig(model="m", plan="identity", **fields)


def test_texts_that_cannot_be_are_refused(place, tmp_path):
    (tmp_path / "short.txt").write_text("too short")
    with pytest.raises(ValueError, match=r"nowhere\.txt"):
        run(tmp_path / "a", **settings(place, text=(str(tmp_path / "nowhere.txt"),)))
    with pytest.raises(ValueError, match=r"held-out text has|training text has|too few"):
        run(tmp_path / "b", **settings(place, text=(str(tmp_path / "short.txt"),)))
    with pytest.raises(ValueError, match="--context 999 is beyond the model's own 64"):
        run(tmp_path / "c", **settings(place, context=999))
    shutil.copytree(place / "original", tmp_path / "bare")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "bare" / name).unlink()
    with pytest.raises(ValueError, match="holds no tokenizer"):
        run(tmp_path / "d", **settings(place, model=str(tmp_path / "bare")))
