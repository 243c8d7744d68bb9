"""Runs, records, extension and refusal of a study; everything in this process, on a text of seconds."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from tests.study.micro_study import run, small, write_text

from termwise.data.spread import SpreadWindows
from termwise.models import build
from termwise.results import RunFolder
from termwise.study import measures, planning, recall
from termwise.study.grid import RunConfig
from termwise.study.run import measured_state, new_model, run_one, state_formula


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory, text):
    """A study of softmax and linear_elu with one seed, and what it said."""
    out = tmp_path_factory.mktemp("study") / "out"
    with pytest.MonkeyPatch.context() as patch:
        _, said = run(patch, small(text), out)
    return out, said


def of(folder, metric, **subject):
    found = [r for r in RunFolder.open(folder).records() if r.metric == metric]
    return [r for r in found if subject.items() <= r.subject.items()]


def test_every_promised_record_is_there(finished):
    out, _ = finished
    for variant in ("softmax", "linear_elu"):
        (nats,) = of(out, "held_out_nats", variant=variant, seed=0)
        documents = of(out, "held_out_document", variant=variant, seed=0)
        assert nats.unit == "nats/token"
        assert nats.value == pytest.approx(sum(r.value * r.n for r in documents) / sum(r.n for r in documents))
        assert nats.n == sum(r.n for r in documents)
        (bits,) = of(out, "held_out_bits", variant=variant)
        assert bits.value == pytest.approx(nats.value / math.log(2), rel=0.01)
        bins = of(out, "held_out_by_position", variant=variant)
        assert [(r.subject["position_low"], r.subject["position_high"]) for r in bins] == [
            (0, 1),
            (1, 2),
            (2, 4),
            (4, 8),
            (8, 16),
            (16, 32),
        ]
        for metric, unit in (("training_tokens", "tokens/s"), ("parameters", "1"), ("train_loss", "nats/token")):
            (record,) = of(out, metric, variant=variant)
            assert (record.unit, record.value > 0) == (unit, True)
    (verdict,) = of(out, "verdict")
    assert (verdict.reason, verdict.baseline, verdict.subject) == (
        "too few seeds",
        "softmax",
        {"variant": "linear_elu"},
    )
    assert [r.status for r in of(out, "accuracy")] == ["not_measured"] * 2
    assert {r.subject["layer"] for r in of(out, "vanishing_rows", variant="linear_elu")} == {0, 1, 2, 3}


def test_run_json_describes_the_study(finished):
    out, said = finished
    resolved = RunFolder.open(out).run["resolved"]
    assert [v["name"] for v in resolved["variants"]] == ["softmax", "linear_elu"]
    assert (resolved["steps"], resolved["context"], resolved["tokens_per_step"], resolved["seeds"]) == (6, 32, 64, [0])
    assert resolved["data"]["notes"][0] in said
    assert "2 variants x 1 seed, 6 steps of 64 tokens each" in said
    assert (out / "data" / "manifest.json").exists()


def test_measured_bytes_are_those_of_the_formula(finished):
    out, _ = finished
    for variant in ("softmax", "linear_elu"):
        measured, formula = (
            {r.subject["length"]: r.value for r in of(out, metric, variant=variant)}
            for metric in ("state", "state_formula")
        )
        assert sorted(measured) == [8, 32]
        assert measured == formula


@pytest.mark.parametrize(
    "name", ["2mamba", "mamba_2s", "gated_softmax_plusplus_extratoks", "taylor:0..2@mean+w8s2", "sliding_window"]
)
@pytest.mark.parametrize("length", [1, 100, 300])
def test_convolutions_windows_and_blank_tokens_are_in_the_formula(name, length):
    model = build(name, preset="recall", vocab_size=64)
    assert measured_state(model, length) == state_formula(model, length)


def test_variants_start_from_equal_weights_and_see_equal_batches(finished):
    out, _ = finished
    configs = [RunConfig.load(RunFolder.open(out).run_path(name, 0)) for name in ("softmax", "linear_elu")]
    first, second = (new_model(config, 257).state_dict() for config in configs)
    shared = [name for name in first if name in second and first[name].shape == second[name].shape]
    assert len(shared) == len(first)
    assert all(torch.equal(first[name], second[name]) for name in shared)
    rest = {config.model_copy(update={"variant": "", "spec": {}, "layer": {}}).model_dump_json() for config in configs}
    assert len(rest) == 1
    tokens = [json.loads(line)["tokens"] for line in (RunFolder.open(out).run_path("softmax", 0) / "log.jsonl").open()]
    assert tokens == [64 * step for step in range(1, 7)]


def test_the_same_study_again_does_and_writes_nothing(finished, text, monkeypatch):
    out, _ = finished
    before = (out / "records.jsonl").read_bytes()
    results = {path: path.stat().st_mtime_ns for path in out.rglob("result.json")}
    _, said = run(monkeypatch, small(text), out)
    assert "taken up where it stopped" in said
    assert (out / "records.jsonl").read_bytes() == before
    assert {path: path.stat().st_mtime_ns for path in out.rglob("result.json")} == results


def test_seeds_and_variants_extend_it_with_the_steps_it_has(tmp_path, text, monkeypatch):
    out = tmp_path / "out"
    run(monkeypatch, small(text), out)
    old = {path: path.read_bytes() for path in out.rglob("result.json")}
    more = small(text, variants=("taylor:0..1@mean", "exp"), seeds=2, steps=None, budget=60.0)
    _, said = run(monkeypatch, more, out)
    assert "extended by variants taylor:0..1@mean and seeds 1" in said
    assert all(path.read_bytes() == content for path, content in old.items())
    assert len(list(out.rglob("result.json"))) == 6
    resolved = RunFolder.open(out).run["resolved"]
    assert (resolved["steps"], resolved["seeds"]) == (6, [0, 1])
    assert [(v["name"], v["equal_names"]) for v in resolved["variants"]] == [
        ("softmax", ["exp"]),
        ("linear_elu", []),
        ("taylor:0..1@mean", []),
    ]
    last = {r.subject["variant"]: r for r in of(out, "verdict")}
    assert set(last) == {"linear_elu", "taylor:0..1@mean"}
    assert all(r.n == 2 for r in last.values())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"preset": "small"}, "preset"),
        ({"context": 16}, "context"),
        ({"tokenizer": "bpe:300"}, "tokenizer"),
        ({"steps": 7}, "steps"),
        ({"lr": 0.1}, "lr"),
    ],
)
def test_another_setting_is_refused_by_name(finished, text, monkeypatch, change, named):
    out, _ = finished
    kept = {name: (out / name).read_bytes() for name in ("run.json", "data/manifest.json")}
    with pytest.raises(ValueError, match=named):
        run(monkeypatch, small(text, **change), out)
    assert {name: (out / name).read_bytes() for name in kept} == kept


def test_another_text_is_refused_by_name(finished, tmp_path, monkeypatch):
    out, _ = finished
    manifest = (out / "data" / "manifest.json").read_bytes()
    with pytest.raises(ValueError, match=r"data \(was .*text.txt.*now .*other.txt"):
        run(monkeypatch, small(write_text(tmp_path, name="other.txt", seed=1)), out)
    assert (out / "data" / "manifest.json").read_bytes() == manifest


def test_a_failing_run_is_a_record_and_the_grid_goes_on(tmp_path, text, monkeypatch):
    out = tmp_path / "out"
    done, said = run(monkeypatch, small(text, lr=1e18, variants=("softmax",)), out)
    assert "diverged" in done.failures["softmax seed 0"]
    assert "softmax seed 0: failed: diverged" in said
    (record,) = of(out, "held_out_nats")
    assert (record.status, record.value) == ("failed", None)
    assert "step" in record.reason


def test_what_fails_before_there_is_a_study_leaves_nothing(tmp_path, text, monkeypatch):
    with pytest.raises(ValueError, match="sofmax"):
        run(monkeypatch, small(text, variants=("sofmax",)), tmp_path / "out")
    with pytest.raises(ValueError, match="fewer than one window"):
        run(monkeypatch, small(write_text(tmp_path, num_words=10), context=256, tokens_per_step=256), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_a_budget_becomes_steps_once(tmp_path, text, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.setattr(planning, "MAX_STEPS", 30)
    config = small(text, steps=None, budget=3600.0, variants=("softmax",))
    _, said = run(monkeypatch, config, out)
    assert "the budget of 1 h 0 min gives 30 steps to every run" in said
    assert "parameters: softmax" in said
    assert RunFolder.open(out).run["resolved"]["steps"] == 30
    _, said = run(monkeypatch, config, out)
    assert "measuring" not in said


def test_recall_is_left_out_aloud_where_it_would_break_the_budget(tmp_path, text, monkeypatch):
    monkeypatch.setattr(recall, "MAX_STEPS", 10**7)
    monkeypatch.setattr(planning, "MAX_STEPS", 20)
    _, said = run(
        monkeypatch, small(text, steps=None, budget=600.0, recall=None, variants=("softmax",)), tmp_path / "out"
    )
    assert "recall: it may take" in said
    assert "--recall measures it all the same" in of(tmp_path / "out", "accuracy")[0].reason


def test_recall_runs_are_part_of_the_grid(tmp_path, text, monkeypatch):
    monkeypatch.setattr(recall, "MAX_STEPS", 60)
    monkeypatch.setattr(recall, "TEST_BATCHES", 1)
    out = tmp_path / "out"
    _, said = run(monkeypatch, small(text, recall=True, variants=("softmax",)), out)
    (accuracy,), (steps,) = of(out, "accuracy", variant="softmax", seed=0), of(out, "steps_to_recall")
    assert 0.02 < accuracy.value < 0.5
    assert (steps.status, steps.reason) == ("not_measured", "not reached within 60 steps")
    found = of(out, "accuracy_by_distance")
    assert [(r.subject["distance_low"], r.subject["distance_high"]) for r in found] == [
        (1, 8),
        (8, 16),
        (16, 24),
        (24, 32),
    ]
    assert sum(r.value * r.n for r in found) / sum(r.n for r in found) == pytest.approx(accuracy.value)
    assert (out / "runs" / "softmax" / "recall-0" / "model" / "config.json").exists()
    assert "recall" in said


def test_a_slow_variant_counts_as_not_reached():
    common = {"status": "ok", "started": None, "seconds": 1.0, "config_hash": "x", "seed": 0, "max_steps": 1500}
    curves = {"softmax": [(400, 1.0)], "fast": [(300, 1.0)], "third": [(320, 1.0)], "slow": [(1000, 0.4), (1300, 1.0)]}
    results = [{**common, "variant": name, "curve": curve} for name, curve in curves.items()]
    told = {(r.subject["variant"], r.metric): (r.value, r.reason) for r in measures.records_of_recall("id", results)}
    assert told["softmax", "steps_to_recall"] == (400, None)
    assert told["slow", "steps_to_recall"] == (None, "not reached within 1,080 steps")
    assert told["slow", "accuracy"] == (0.4, None)


def test_scored_windows_are_spread_over_all_documents(finished):
    from termwise.study.run import open_run_text

    out, _ = finished
    tokens = open_run_text(RunConfig.load(RunFolder.open(out).run_path("softmax", 0))).held_out
    every = [(w.document, w.start) for w in tokens.windows(16)]
    assert [(w.document, w.start) for w in SpreadWindows(tokens, tokens.num_tokens).windows(16)] == every
    some = [(w.document, w.start) for w in SpreadWindows(tokens, tokens.num_tokens // 5).windows(16)]
    assert set(some) < set(every)
    assert len(some) == pytest.approx(len(every) / 5, abs=1.01)
    gaps = np.diff([every.index(place) for place in some])
    assert set(gaps) <= {5, 6}


def test_a_state_too_large_is_not_built(finished):
    out, _ = finished
    config = RunConfig.load(RunFolder.open(out).run_path("softmax", 0))
    from termwise.attention.names import parse

    model = new_model(config.model_copy(update={"spec": parse("taylor:0..8").to_dict()}), 257)
    assert state_formula(model, 32) > 10**9
    with pytest.raises(ValueError, match="the state would take"):
        measured_state(model, 32)


def test_a_run_whose_text_changed_is_stopped(tmp_path, text, monkeypatch):
    own = write_text(tmp_path)
    out = tmp_path / "out"
    run(monkeypatch, small(own, variants=("softmax",)), out)
    folder = RunFolder.open(out).run_path("softmax", 0)
    (folder / "result.json").unlink()
    own.write_text(own.read_text() + " more")
    with pytest.raises(OSError, match="the text changed"):
        run_one(folder, RunConfig.load(folder))
