"""Wrong input to a call, and what a spec declares: each refused in one line."""

from __future__ import annotations

import math

import pytest
import torch

from termwise.attention.checks import check
from termwise.attention.forms import attend
from termwise.attention.names import parse
from tests.attention.compare import holds, refused
from tests.attention.values import inputs, spec_of


def call(spec, **arguments):
    """The checks of `attend` alone, without the signature's own (tests check that too, a user does not)."""
    defaults = dict.fromkeys(
        (
            "scale",
            "key_mask",
            "cu_seqlens",
            "input_gate",
            "output_gate",
            "log_decay",
            "parameters",
            "initial_state",
            "chunk_size",
            "row_counts",
            "query_mask",
        )
    )
    check({**defaults, "spec": spec, "causal": True, "output_final_state": False, "form": "auto", **arguments})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"query": torch.zeros(2, 9, 3)}, ("query", "(2, 9, 3)", "four axes")),
        ({"key": torch.zeros(9, 3)}, ("key", "four axes")),
        ({"value": torch.zeros(2, 9, 2, 4, dtype=torch.int64)}, ("value", "int64", "floating point")),
        ({"value": torch.zeros(2, 9, 1, 4)}, ("key", "value", "kv heads")),
        ({"query": torch.zeros(2, 9, 3, 3)}, ("3 query heads over 2 kv heads", "divide")),
        ({"query": torch.zeros(2, 9, 4, 5)}, ("query", "key width")),
        ({"query": torch.zeros(1, 9, 4, 3)}, ("agree in batch",)),
        ({"query": torch.zeros(2, 9, 4, 3, dtype=torch.bfloat16)}, ("bfloat16", "one type")),
        ({"input_gate": torch.zeros(2, 9, 4)}, ("input_gate", "(2, 9, 4)", "(2, 9, 2)")),
        ({"output_gate": torch.zeros(2, 9, 2)}, ("output_gate", "(2, 9, 4)")),
        ({"log_decay": torch.zeros(2, 8, 2)}, ("log_decay", "(2, 9, 2)")),
        ({"key_mask": torch.ones(2, 8, dtype=torch.bool)}, ("key_mask", "(2, 9)")),
        ({"query_mask": torch.ones(1, 9, dtype=torch.bool)}, ("query_mask", "(2, 9)")),
        ({"key_mask": torch.ones(2, 9, dtype=torch.int64)}, ("key_mask", "int64", "bool")),
        ({"query_mask": torch.ones(2, 9)}, ("query_mask", "float32", "bool")),
        ({"parameters": {"norm_weigth": torch.ones(4, 4)}}, ("norm_weigth", "not declared")),
        ({"parameters": {"reference_key": torch.zeros(2, 4)}}, ("reference_key", "(2, 4)", "(2, 3)")),
        ({"cu_seqlens": torch.tensor([0, 9])}, ("cu_seqlens", "batch 1", "given batch 2")),
    ],
)
def test_wrong_input_to_a_call(change, words):
    good = {"query": torch.zeros(2, 9, 4, 3), "key": torch.zeros(2, 9, 2, 3), "value": torch.zeros(2, 9, 2, 4)}
    with refused(*words):
        call(spec_of("taylor:0..2@mean"), **{**good, **change})


def test_a_scale_is_positive():
    for scale in (0.0, -1.0, math.nan, math.inf):
        with refused(f"scale={scale}", "positive"):
            attend(**inputs(spec_of("softmax")), spec=spec_of("softmax"), scale=scale)


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ([0, 4], ("[0, 4]", "length 9")),
        ([1, 9], ("rise from 0",)),
        ([0, 5, 5, 9], ("empty documents",)),
        ([0, 6, 4, 9], ("rise",)),
        ([9], ("rise from 0",)),
        ([0, 10], ("length 9",)),
        ([], ("rise from 0",)),
        ([[0, 9]], ("cu_seqlens", "(1, 2)", "one axis")),
        ([0.0, 9.0], ("cu_seqlens", "whole")),
    ],
)
def test_wrong_boundaries(ends, words):
    good = {"query": torch.zeros(1, 9, 2, 3), "key": torch.zeros(1, 9, 2, 3), "value": torch.zeros(1, 9, 2, 4)}
    with refused(*words):
        call(spec_of("softmax"), **good, cu_seqlens=torch.tensor(ends, dtype=None if ends else torch.int64))
    with refused("cu_seqlens", "key_mask"):
        call(spec_of("softmax"), **good, cu_seqlens=torch.tensor([0, 9]), key_mask=torch.ones(1, 9, dtype=torch.bool))
    _, state = attend(**good, spec=spec_of("softmax"), output_final_state=True)
    with refused("1 sequences", "2 documents"):
        call(spec_of("softmax"), **good, cu_seqlens=torch.tensor([0, 5, 9]), initial_state=state)


def test_what_a_spec_declares_must_be_given():
    for name, missing in (
        ("exp+gi", "input_gate"),
        ("exp+ga", "output_gate"),
        ("exp+gb", "output_gate"),
        ("exp+decay", "log_decay"),
    ):
        arguments = inputs(spec_of(name))
        arguments.pop(missing)
        with refused(missing, "declares", f"{missing}=..."):
            attend(**arguments, spec=spec_of(name))
    for name, missing in (
        ("exp|rms", "norm_weight"),
        ("exp|layer", "norm_bias"),
        ("exp|runninggate", "running_gate_score"),
        ("linear_cosine", "count_exponent"),
    ):
        arguments = inputs(spec_of(name))
        given = arguments["parameters"].pop(missing)
        with refused(missing, "is missing", "needs it with shape"):
            attend(**arguments, spec=spec_of(name))
        arguments["parameters"][missing] = torch.cat([given, given], dim=0)
        with refused(missing, "has shape", str(tuple(given.shape))):
            attend(**arguments, spec=spec_of(name))
    arguments = inputs(spec_of("linear_cosine"))
    with refused("count", "leave the input_gate"):
        attend(**arguments, spec=spec_of("linear_cosine"), input_gate=torch.ones(1, 9, 1, dtype=torch.float64))


def test_what_a_spec_does_not_declare_is_used_all_the_same():
    """A gate or decay handed over counts, whether or not the spec names it."""
    plain, full = spec_of("taylor:0..2"), parse("taylor:0..2+gi+ga+decay")
    arguments = inputs(full, length=12)
    for form in ("auto", "parallel", "chunked", "recurrent", "reference"):
        out, _ = attend(**arguments, spec=plain, form=form)
        expected, _ = attend(**arguments, spec=full)
        holds(torch.allclose(out, expected, atol=1e-12), form)
    softmax = spec_of("softmax")
    out, _ = attend(**arguments, spec=softmax)
    holds(torch.allclose(out, attend(**arguments, spec=parse("exp+gi+ga+decay"))[0], atol=1e-12), "softmax")
