"""A control: softmax trained a second time under other seeds, by the same path as any variant, and no part of Holm."""

from __future__ import annotations

import time

import pytest
import torch
from rich.console import Console
from tests.study.micro_study import run, run_inline, small, write_text

from termwise.results import RunFolder
from termwise.study import experiment, measures, planning
from termwise.study.grid import CONTROL_OFFSET, RunConfig, StudyConfig, control_of, resolve
from termwise.study.opening import default_folder
from termwise.study.run import new_model, open_run_text

CONTROL = "softmax (again)"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Lines as documents, enough of them for intervals."""
    path = write_text(tmp_path_factory.mktemp("text"))
    words = path.read_text().split(" ")
    path.write_text("\n".join(" ".join(words[start : start + 80]) for start in range(0, len(words), 80)))
    return path


def lines(text, **fields):
    return small(text, document="line", **fields)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, text):
    """Two variants and a control, two seeds each: first without the control, which then extends the folder."""
    out = tmp_path_factory.mktemp("study") / "out"
    with pytest.MonkeyPatch.context() as patch:
        run(patch, lines(text, seeds=2), out)
        before = (out / "records.jsonl").read_bytes()
        _, said = run(patch, lines(text, seeds=2, control=True), out)
    return out, before, said


def of(folder, metric, **subject):
    found = [r for r in RunFolder.open(folder).records() if r.metric == metric]
    return [r for r in found if subject.items() <= r.subject.items()]


def test_a_control_is_added_to_the_study_it_checks(finished, text):
    out, before, said = finished
    assert f"extended by variants {CONTROL}" in said
    after = (out / "records.jsonl").read_bytes()
    assert after.startswith(before) and len(after) > len(before)
    assert default_folder(small(text)) == default_folder(small(text, control=True))
    assert default_folder(small(text)) != default_folder(small(text, seeds=2))


def test_it_has_seeds_and_records_of_its_own(finished):
    out, _, _ = finished
    runs = of(out, "held_out_nats", variant=CONTROL)
    assert [r.subject["seed"] for r in runs] == [CONTROL_OFFSET, CONTROL_OFFSET + 1]
    assert {r.value for r in runs}.isdisjoint(r.value for r in of(out, "held_out_nats", variant="softmax"))
    assert [r.value for r in of(out, "state", variant=CONTROL)] == [
        r.value for r in of(out, "state", variant="softmax")
    ]
    entry = RunFolder.open(out).run["resolved"]["variants"][-1]
    assert (entry["name"], entry["control_of"], entry["seed_offset"]) == (CONTROL, "softmax", CONTROL_OFFSET)
    assert RunFolder.open(out).run_path(CONTROL, CONTROL_OFFSET).name == str(CONTROL_OFFSET)


def test_its_first_weights_and_its_order_of_data_are_others(finished):
    out, _, _ = finished
    folder = RunFolder.open(out)
    ours, theirs = (RunConfig.load(folder.run_path(*run)) for run in ((CONTROL, CONTROL_OFFSET), ("softmax", 0)))
    assert ours.model_copy(update={"variant": "softmax", "seed": 0}) == theirs
    weights = [
        new_model(config, 257).state_dict()["model.layers.0.self_attn.q_proj.weight"] for config in (ours, theirs)
    ]
    assert not torch.equal(*weights)
    batches = [open_run_text(c).train.batch(c.seed, 0, 2, 32).input_ids.tolist() for c in (ours, theirs)]
    assert batches[0] != batches[1]


def test_its_verdict_stands_with_the_others_and_moves_none_of_them(finished):
    out, before, _ = finished
    verdicts = {r.subject["variant"]: r for r in of(out, "verdict")}
    assert set(verdicts) == {"linear_elu", CONTROL}
    assert (verdicts[CONTROL].n, verdicts[CONTROL].level, verdicts[CONTROL].baseline) == (2, 0.95, "softmax")
    assert len(of(out, "paired_difference", variant=CONTROL)) == 2
    # The recorder repeats nothing that says the same: the other's verdict is still the one of the study without a control.
    assert len(of(out, "verdict", variant="linear_elu")) == 1
    assert verdicts["linear_elu"].to_json().encode() in before


def test_taken_up_again_it_does_nothing_with_the_option_or_without(finished, text, monkeypatch):
    out, _, _ = finished
    before = (out / "records.jsonl").read_bytes()
    for control in (True, False):
        _, said = run(monkeypatch, lines(text, seeds=2, control=control), out)
        assert "taken up where it stopped" in said
        assert (out / "records.jsonl").read_bytes() == before


def test_a_dry_run_counts_it(text, tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "run_tasks", run_inline)
    console = Console(file=open("/dev/null", "w"))  # noqa: SIM115
    costs = [
        experiment.dry_run_study(config, tmp_path / "out", num_workers=1, console=console, started=time.monotonic())
        for config in (small(text, variants=("softmax",), control=control) for control in (False, True))
    ]
    assert [cost["runs"] for cost in costs] == [1, 2]
    assert [cost["control"] for cost in costs] == [None, CONTROL]
    assert costs[1]["disk_bytes"] == 2 * costs[0]["disk_bytes"]


def test_without_a_baseline_it_is_refused():
    with pytest.raises(ValueError, match=r"--control trains softmax a second time.*leave out --no-baseline"):
        planning.study_entries(StudyConfig(variants=("elu1",), baseline=False, control=True), print)
    entries = planning.study_entries(
        StudyConfig(variants=("softmax",), baseline=False, control=True), lambda text: None
    )
    assert [entry.name for entry in entries] == ["softmax", CONTROL]


def test_its_seeds_must_exist():
    StudyConfig(first_seed=2**32 - 3)
    with pytest.raises(ValueError, match=r"--control, whose seeds are those \+ 1,000,000"):
        StudyConfig(first_seed=2**32 - 3, control=True)


def test_the_median_step_of_recall_is_that_of_the_variants_compared():
    common = {"status": "ok", "started": None, "seconds": 1.0, "config_hash": "x", "seed": 0, "max_steps": 1500}
    curves = {"softmax": [(400, 1.0)], CONTROL: [(100, 1.0)], "slow": [(1000, 0.4), (1250, 1.0)]}
    results = [{**common, "variant": name, "curve": curve} for name, curve in curves.items()]

    def told(controls):
        records = measures.records_of_recall("id", results, controls)
        return {r.subject["variant"]: r.value for r in records if r.metric == "steps_to_recall"}

    assert told([CONTROL]) == {"softmax": 400, CONTROL: 100, "slow": 1250}
    assert told([])["slow"] is None


def test_a_control_differs_from_its_baseline_in_its_seeds_alone():
    softmax, control = (entries := resolve(["softmax"]))[0], control_of(entries)
    assert control.key != softmax.key
    assert (control.spec, control.layer, control.formula) == (softmax.spec, softmax.layer, softmax.formula)
