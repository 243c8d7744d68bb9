"""Calibration: constants are recovered from planted times, kept, judged on shapes that were not used."""

from __future__ import annotations

import json

import pytest

from termwise import cli
from termwise.attention.cost import TERMS, predicted_seconds
from termwise.attention.machine import Machine, machine_file, this_machine
from termwise.bench import calibrate
from termwise.bench.calibrate import FORMS, Case, fit, fitted_cases, held_out_cases, judge, terms_of

PLANTED = {
    "parallel_call": 3e-4, "parallel_products": 5e-11, "parallel_scores": 2e-9, "parallel_spill": 5e-9, "parallel_pages": 1e-8,
    "chunked_call": 2e-4, "chunked_blocks": 1e-2, "chunked_products": 8e-11, "chunked_scores": 3e-9, "reads": 7e-11,
    "folds": 9e-11, "features": 5e-10,
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TERMWISE_CACHE", str(tmp_path / "cache"))
    this_machine.cache_clear()
    yield
    this_machine.cache_clear()


def planted_times(case: Case) -> dict[str, float]:
    return {form: predicted_seconds(terms_of(case, form), PLANTED) for form in FORMS}


def test_planted_constants_are_found_again():
    machine = fit([(case, planted_times(case)) for case in fitted_cases()])
    assert set(machine.seconds) == set(TERMS)
    for case in held_out_cases():
        for form, clock in planted_times(case).items():
            assert predicted_seconds(terms_of(case, form), machine.seconds) == pytest.approx(clock, rel=0.02)
        assert judge(case, planted_times(case), machine).regret < 1.02


def test_held_out_shapes_are_not_those_of_the_fit():
    assert set(fitted_cases()) & set(held_out_cases()) == set()
    picks = {judge(case, planted_times(case), Machine(PLANTED)).pick for case in held_out_cases()}
    assert picks == set(FORMS)


def test_regret_is_the_time_of_the_pick_over_the_best():
    case = Case("taylor:0..2", 512, 2, 2, 16, 16)
    always_chunked = Machine(dict.fromkeys(TERMS, 0.0) | {"parallel_call": 1.0})
    judged = judge(case, {"parallel": 2.0, "chunked": 3.0}, always_chunked)
    assert (judged.pick, judged.regret) == ("chunked", 1.5)


def test_calibration_is_kept_and_shown(tmp_path, monkeypatch, capsys):
    """The command from end to end, with two real shapes and one to judge."""
    monkeypatch.setattr(calibrate, "fitted_cases", lambda: [Case("taylor:0..2", n, 1, 1, 4, 4) for n in (32, 300)])
    monkeypatch.setattr(calibrate, "held_out_cases", lambda: [Case("elu1", 100, 2, 1, 4, 4)])
    monkeypatch.setattr(calibrate, "PASSES", 1)
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "--calibrate", "--out", str(tmp_path / "out"), "--json"])
    assert ended.value.code == 0
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert (told["of"], len(told["held_out"])) == (1, 1)
    assert this_machine().seconds == pytest.approx(told["seconds"])
    assert json.loads(machine_file().read_text())["about"]["threads"] == 1
    assert "elu1, 100 tokens" in said.err
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "Shapes the constants never saw" in page
    assert "elu1" in page


def test_calibration_never_runs_unasked(tmp_path, monkeypatch):
    from small_bench import run

    monkeypatch.setattr(calibrate, "run_calibration", lambda *a, **k: pytest.fail("measured unasked"))
    run(tmp_path / "out", lengths=(64,))
    assert not machine_file().exists()


def test_a_dry_run_says_where_the_constants_go(capsys):
    with pytest.raises(SystemExit):
        cli.main(["bench", "--calibrate", "--dry-run"])
    assert str(machine_file()) in capsys.readouterr().out.replace("\n", "")
