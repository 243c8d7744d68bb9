"""Faults planted by somebody who had not read how a model is verified: each is found, and a healthy model passes."""

from __future__ import annotations

import pytest
from planted_faults import FAULTS
from small_exam import examined, small

from termwise.evaluation import agreement


def failures(model, stage="float64"):
    """Names of the checks that fail, one after another."""
    exam = examined(model, stage)
    for _, check in agreement.planned([stage], is_quick=True):
        if agreement.run_check(check, exam).status == "failed":
            yield check.name


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name, monkeypatch):
    fault = FAULTS[name]
    model = small(fault.variant)
    fault.plant(monkeypatch)
    assert next(failures(model, fault.stage), None) is not None


@pytest.mark.parametrize("variant", sorted({fault.variant for fault in FAULTS.values()}))
def test_without_a_fault_nothing_fails(variant):
    assert list(failures(small(variant))) == []
