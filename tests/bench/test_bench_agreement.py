"""The gate: whatever runs is compared with the definition, and what disagrees has no figure."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from small_bench import NAME, SMALL, of, run

from termwise.attention.catalogue import catalogue
from termwise.attention.forms import attend
from termwise.attention.reference import reference_rows
from termwise.bench import agreement, decode, models, prefill, training
from termwise.bench.inputs import tensors

SPECS = (
    "taylor:0..2",
    "taylor:0..4",
    "taylor:0..2@mean+w64s4",
    "elu1+decay",
    "power:2|rms",
    "exp|l2",
    "taylor:0..2+gi+ga",
    "exp<5",
)


@pytest.mark.parametrize("name", SPECS)
def test_rows_by_definition_are_the_rows_of_the_reference(name):
    spec = catalogue.variant(name).spec
    given = tensors(spec, SMALL, 90)
    whole, _ = attend(**agreement.in_float64(given), spec=spec, form="reference")
    rows = [0, 7, 64, 89]
    assert torch.allclose(reference_rows(spec=spec, rows=rows, **given), whole[:, rows], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SPECS)
def test_forms_that_agree_pass(name, monkeypatch):
    spec = catalogue.variant(name).spec
    given = tensors(spec, SMALL, 200)
    out, _ = attend(**given, spec=spec, output_final_state=True)
    assert agreement.of_prefill(spec, given, out).reason is None
    monkeypatch.setattr(agreement, "ALL_ROWS", 100)
    assert agreement.of_prefill(spec, given, out).reason is None


@pytest.mark.parametrize("row", [0, 100, 199])
def test_one_wrong_row_is_seen(row, monkeypatch):
    """Also where only some rows are compared: the ends and the rows beside the folds are among them."""
    spec = catalogue.variant(NAME).spec
    given = tensors(spec, SMALL, 200)
    out, _ = attend(**given, spec=spec)
    out[:, row] *= 1.01
    for limit in (1000, 100):
        monkeypatch.setattr(agreement, "ALL_ROWS", limit)
        assert "disagrees" in str(agreement.of_prefill(spec, given, out).reason)
    out[:, row] = torch.nan
    assert "relative RMS inf" in str(agreement.of_prefill(spec, given, out).reason)


def test_low_precision_is_held_to_its_own_rounding():
    exact = torch.randn(1, 50, 2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rounded = exact.to(torch.bfloat16)
    assert agreement.compared(rounded, exact, "itself").reason is None
    assert agreement.compared(rounded * 1.02, exact, "itself").reason is not None


def disagreeing(**given):
    """What runs is a thousandth off; what it is compared with, in float64, is not."""
    out, state = attend(**given)
    return (out * 1.001 if out.dtype == torch.float32 else out), state


@pytest.mark.parametrize(("module", "measure"), [(prefill, "prefill"), (decode, "decode"), (training, "training")])
def test_no_figure_where_the_forms_disagree(tmp_path, monkeypatch, module, measure):
    monkeypatch.setattr(module, "attend", disagreeing)
    folder = run(tmp_path / "out", lengths=(130,), measures=(measure,))
    rows = of(folder, measure, variant=NAME)
    assert rows
    for record in rows:
        assert (record.status, record.value) == ("failed", None)
        assert "disagrees" in record.reason
    assert of(folder, f"{measure}_ratio") == []
    assert [r.status for r in of(folder, measure, variant="sdpa")] == ["ok"]
    lines = [json.loads(text) for text in (tmp_path / "out" / "bench.jsonl").read_text().splitlines()]
    for line in lines:
        if line["model_filename"] == NAME:
            assert (line["avg_ts"], line["samples_ns"]) == (None, [])
            assert "disagrees" in line["error"]


def test_no_figure_of_a_model_whose_steps_disagree(tmp_path, monkeypatch):
    monkeypatch.setattr(models.agreement, "distance", lambda out, exact: 0.5)
    folder = run(tmp_path / "out", lengths=(64,), measures=("step",))
    (record,) = of(folder, "step", variant=NAME)
    assert (record.status, record.value) == ("failed", None)
    assert "forward pass over the whole text" in record.reason


def test_gradients_are_compared_too(monkeypatch):
    spec = catalogue.variant(NAME).spec
    given = tensors(spec, SMALL, 150)
    towards = torch.randn(1, 150, 4, 3)
    for form in training.FORMS:
        assert training.disagreement(spec, form, given, towards, SMALL).reason is None
    monkeypatch.setattr(training, "ALL_SCORES", 100)
    assert training.disagreement(spec, "chunked", given, towards, SMALL).reason is None

    def wrong(attention, given, towards, gradients=training.gradients):
        found = gradients(attention, given, towards)
        return found | {"key": found["key"] * (1.001 if found["key"].dtype == torch.float32 else 1.0)}

    monkeypatch.setattr(training, "gradients", wrong)
    assert "gradients" in str(training.disagreement(spec, "chunked", given, towards, SMALL).reason)


@pytest.mark.parametrize("name", ["softmax", NAME])
def test_training_in_bfloat16_is_held_to_fused_attention(name):
    shape = dataclasses.replace(SMALL, dtype=torch.bfloat16)
    spec = catalogue.variant(name).spec
    given = tensors(spec, shape, 700)
    towards = torch.randn(1, 700, 4, 3, dtype=torch.bfloat16)
    for form in training.forms_of(spec, shape, 700):
        assert training.disagreement(spec, form, given, towards, shape).reason is None
