"""Counted facts: packages, compiled functions as they are really called, engines as the card of a model says."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import re
import sys

import pytest
import torch

from termwise.report.decision.gathering.complexity import ENGINES, kernels_of, new_dependencies

SPECS = (
    "exp", "exp|l2", "exp<5|count", "exp+decay", "elu1", "relu/sqrtd|l2", "relu/sqrtd<5|count", "power:2", "taylor:0..2",
    "taylor:0..2@mean", "taylor:0..2@mean+w16s4", "taylor:0,2", "minimax3:0..2", "drop+w16s4", "drop+w16s4h8",
    "taylor:0..2@mean+w16s4h8e16",
)  # fmt: skip


@pytest.fixture
def called(monkeypatch):
    """The names of compiled functions that are called, in every module that asks for them."""
    from termwise.attention.backends.compiled import Loops, compiled_loops

    loops = compiled_loops()
    if loops is None:
        pytest.skip("numba does not load here")
    seen: set[str] = set()

    def counted(name, function):
        def call(*given):
            seen.add(name)
            return function(*given)

        return call

    counting = Loops(**{f.name: counted(f.name, getattr(loops, f.name)) for f in dataclasses.fields(loops)})
    for name, module in list(sys.modules.items()):
        if name.startswith("termwise.attention") and hasattr(module, "compiled_loops"):
            monkeypatch.setattr(module, "compiled_loops", lambda: counting)
    return seen


@pytest.mark.parametrize("name", SPECS)
def test_the_compiled_functions_of_a_spec_are_those_that_reading_with_it_calls(called, name):
    from termwise.attention.forms import attend
    from termwise.attention.names import parse

    spec, width, length = parse(name), 8, 330
    query, key, value = (0.3 * torch.randn(1, length, 2, width) for _ in range(3))
    gates = {"log_decay": torch.full((1, length, 2), -0.01)} if spec.log_decay else {}

    def read(start, stop, **more):
        part = {n: t[:, start:stop] for n, t in {"query": query, "key": key, "value": value, **gates}.items()}
        return attend(**part, spec=spec, **more)

    with torch.no_grad():
        state = None
        for start in range(0, 256, 128):
            _, state = read(start, start + 128, initial_state=state, output_final_state=True)
        for place in range(256, length):
            _, state = read(place, place + 1, initial_state=state, output_final_state=True)
        if spec.is_constant_size:
            read(0, length, form="chunked", output_final_state=True)
    assert called == kernels_of([name])


def test_a_plan_of_several_attentions_needs_the_functions_of_all_and_an_unknown_one_is_not_counted():
    assert kernels_of(["exp", "drop+w64s4", "drop+w8s4e64"]) == {"step", "grouped_step"}
    assert kernels_of([]) == frozenset()
    assert kernels_of(["exp", "Unknown thing?"]) is None


def test_new_packages_are_ours_less_what_transformers_brings():
    found = new_dependencies()
    assert found is not None and "termwise" in found
    own = {
        re.split(r"[^A-Za-z0-9._-]", line)[0].lower().replace("_", "-")
        for line in importlib.metadata.requires("termwise") or []
        if "extra" not in line
    }
    assert set(found) - {"termwise"} < own
    assert "numba" in found and not {"torch", "transformers", "numpy", "tokenizers", "safetensors"} & set(found)


def test_without_metadata_packages_are_not_counted(monkeypatch):
    def none(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", none)
    assert new_dependencies.__wrapped__() is None


def test_engines_are_those_that_the_card_of_a_converted_model_names():
    from termwise.conversion.card import LOADING

    can, cannot = LOADING.split("cannot load it today")[0].split("Servers that bring")
    assert all(engine in can for engine in ENGINES)
    assert "vLLM" in cannot and not any(engine in cannot for engine in ENGINES)
