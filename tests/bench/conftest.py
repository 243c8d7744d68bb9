"""Benchmarks in tests copy a megabyte, not 256."""

import pytest

from termwise.bench import limits


@pytest.fixture(autouse=True)
def small_limits(monkeypatch):
    monkeypatch.setattr(limits, "LARGE", 2**18)
    monkeypatch.setattr(limits, "PRODUCT", 128)
