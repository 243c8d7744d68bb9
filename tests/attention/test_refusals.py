"""Pairs that cannot be (math: section 3), each refused with its way out, and each way out taken; then wrong input to a call."""

from __future__ import annotations

import json
import math

import pytest
import torch

from termwise.attention.call import check
from termwise.attention.catalogue import LayerOptions, catalogue
from termwise.attention.forms import attend
from termwise.attention.kernels import Drop, Exp, FeatureMap, Minimax, Polynomial, Power
from termwise.attention.names import parse
from termwise.attention.normalizers import L2, RMS, Count, Identity, Layer, RowSum, RunningGateSum
from termwise.attention.refusals import check_fields, check_spec
from termwise.attention.spec import AttentionSpec, Local
from tests.attention.compare import equal, holds, refused
from tests.attention.values import inputs, spec_of

# A row sum over weights that may turn negative ----------------------------------------------------------------------

POSITIVE = ((0,), (0, 1, 2), (0, 1, 2, 3, 4), (2,), (0, 2), (2, 4), (0, 2, 4), (4,), tuple(range(7)), tuple(range(9)))
SIGNED = ((1,), (3,), (0, 1), (0, 1, 2, 3), (1, 2), (1, 3), (0, 1, 4), (0, 3), (0, 1, 3, 4), tuple(range(6)))


@pytest.mark.parametrize("orders", POSITIVE)
@pytest.mark.parametrize("center", ["zero", "mean"])
def test_positive_polynomials_pass(orders, center):
    spec = AttentionSpec(Polynomial(orders, center=center), RowSum())
    x = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    holds(bool((spec.kernel.weights(x) >= -1e-12).all()), f"orders {orders} are nowhere negative")


@pytest.mark.parametrize("orders", SIGNED)
@pytest.mark.parametrize("center", ["zero", "mean"])
def test_signed_polynomials_are_refused(orders, center):
    x = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    holds(
        bool((Polynomial(orders, allow_negative=True).weights(x) < 0).any()), f"orders {orders} are somewhere negative"
    )
    if center == "mean" and orders == (0, 1):
        holds(AttentionSpec(Polynomial(orders, center=center)).kernel.is_centered, "their sum is the mass itself")
        return
    if center == "mean" and orders == (1,):
        with refused("order 1 alone", "Z = 0", "(0, 1)"):
            AttentionSpec(Polynomial(orders, center=center))
        return
    way = "(center='mean'), or orders (0, 1, 2)" if orders == (0, 1) else "even top order"
    with refused("row sum", "negative", way, "L2()", "allow_negative=True"):
        AttentionSpec(Polynomial(orders, center=center))
    for way_out in (
        AttentionSpec(Polynomial(orders, center=center, allow_negative=True)),
        AttentionSpec(Polynomial(orders, center=center), L2()),
    ):
        holds(bool(torch.isfinite(attend(**inputs(way_out), spec=way_out)[0]).all()), f"{orders}: the way out runs")


def test_one_order_around_the_mean_is_refused_even_when_forced():
    with refused("order 1 alone", "Z = 0"):
        AttentionSpec(Polynomial((1,), center="mean", allow_negative=True))
    spec = AttentionSpec(Polynomial((1,), center="mean"), L2())
    holds(spec.normalizer == L2(), "a norm takes it")


def test_orders_0_and_1_around_0_name_the_mean():
    with refused("center='mean'", "(0, 1, 2)"):
        AttentionSpec(Polynomial((0, 1)))


@pytest.mark.parametrize(
    "kernel",
    [
        Power(1),
        Power(3),
        FeatureMap("identity"),
        FeatureMap("unit"),
        FeatureMap("identity", power=3),
        FeatureMap("unit", 3, "product"),
    ],
)
def test_signed_maps_are_refused(kernel):
    for normalizer in (RowSum(), RowSum(floor=1.0), RowSum(eps=1e-4), RowSum(detach=True)):
        with refused("row sum", "negative", "L2()", "allow_negative=True"):
            AttentionSpec(kernel, normalizer)
    for normalizer in (L2(), RMS(), Layer(), Identity(), Count(), RunningGateSum()):
        holds(AttentionSpec(kernel, normalizer).normalizer == normalizer, "no row sum, no refusal")


@pytest.mark.parametrize(
    "kernel",
    [
        Power(2),
        Power(4),
        FeatureMap("elu1"),
        FeatureMap("relu"),
        FeatureMap("relu", 3),
        FeatureMap("identity", 2),
        FeatureMap("unit", 2, "product"),
        FeatureMap("identity", 2, "product"),
        FeatureMap("relu", clamp=5.0),
        Exp(),
        Exp(clamp=5.0),
    ],
)
def test_positive_kernels_pass(kernel):
    equal(AttentionSpec(kernel).kernel.minimum, 0.0, kernel.formula)


def test_given_coefficients_are_judged_by_their_minimum():
    holds(AttentionSpec(Polynomial((0, 1, 2), (1.0, 1.0, 0.3))).kernel.minimum > 0, "a sum of squares and more")
    holds(AttentionSpec(Polynomial((0, 1, 2), (1.0, -2.0, 1.0))).kernel.minimum == 0, "a square")
    with refused("least weight is -0.25"):
        AttentionSpec(Polynomial((0, 1, 2), (1.0, 1.0, 0.2)))
    with refused("least weight is -inf"):
        AttentionSpec(Polynomial((0, 2), (1.0, -0.1)))
    with refused("negative"):
        AttentionSpec(Polynomial((0, 1), (-1.0, 1.0), center="mean"))


# The mean, exact slots, dropping ------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalizer", [Identity(), Count(), RunningGateSum(), RowSum(floor=1.0), RowSum(eps=1e-4)])
def test_the_mean_needs_a_norm_that_cancels_its_factor(normalizer):
    with refused("center='mean'", "exp(m)", "RowSum()", "L2()", "center='zero'"):
        AttentionSpec(Polynomial((0, 1, 2), center="mean"), normalizer)
    for way_out in (RowSum(), RowSum(detach=True), L2(), RMS(), Layer()):
        holds(AttentionSpec(Polynomial((0, 1, 2), center="mean"), way_out).kernel.is_centered, "the way out")
    holds(AttentionSpec(Polynomial((0, 1, 2)), normalizer).kernel.center == "zero", "the other way out")


@pytest.mark.parametrize("name", ["power:2@mean", "elu1@mean", "exp@mean", "drop@mean+w4"])
def test_the_mean_belongs_to_polynomials(name):
    with refused("@mean", "Taylor", "taylor:0..2@mean"):
        parse(name)


def test_exponentials_with_exact_slots_are_full_softmax():
    for kernel in (Exp(), Exp(clamp=5.0)):
        with refused("full softmax", "Drop()", "center='mean'", "local=None"):
            AttentionSpec(kernel, local=Local(64, 4))
    holds(AttentionSpec(Drop(), local=Local(64, 4)).is_constant_size, "dropping is its own kernel")
    with refused("Drop", "weight 0", "Local("):
        AttentionSpec(Drop())


def test_a_clamped_kernel_has_no_tail():
    with refused("no finite state", "clamp"):
        AttentionSpec(FeatureMap("relu", clamp=5.0), local=Local(64))


def test_far_sets_that_differ_by_query_need_the_causal_mask():
    for name, word in (
        ("taylor:0..2+w4", "local"),
        ("taylor:0..2+w4s2", "local"),
        ("drop+w4", "local"),
        ("2mamba", "log_decay"),
        ("exp+decay", "log_decay"),
    ):
        arguments = inputs(spec_of(name), length=5)
        with refused(word, "causal=True", "every query"):
            attend(**arguments, spec=spec_of(name), causal=False)
    arguments = inputs(spec_of("power:2+decay"), length=5)
    with refused("log_decay", "causal=True"):
        attend(**arguments, spec=spec_of("power:2"), causal=False)
    _, state = attend(**arguments, spec=spec_of("power:2"), output_final_state=True)
    arguments.pop("log_decay")
    with refused("log_decay", "causal=True"):
        attend(**arguments, spec=spec_of("power:2"), causal=False, initial_state=state)


def test_causal_needs_as_many_queries_as_keys():
    spec = spec_of("softmax")
    arguments = inputs(spec, length=3, num_keys=5)
    with refused("3 queries and 5 keys", "initial_state", "causal=False"):
        attend(**arguments, spec=spec)
    equal(attend(**arguments, spec=spec, causal=False)[0].shape[1], 3, "the way out")
    _, state = attend(**inputs(spec, length=3), spec=spec, output_final_state=True)
    with refused("3 queries and 5 keys"):
        attend(**arguments, spec=spec, initial_state=state)


def test_the_count_gate_without_causal_mask_needs_one_call():
    spec = spec_of("linear_cosine")
    arguments = inputs(spec, length=3)
    _, state = attend(**arguments, spec=spec, causal=False, output_final_state=True)
    with refused("count", "initial_state=None"):
        attend(**arguments, spec=spec, causal=False, initial_state=state)


# Forms --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["exp", "exp<5", "relu<5", "exp+decay", "elu1<2|l2"])
def test_growing_caches_have_no_chunked_form(name):
    spec = spec_of(name)
    with refused("no finite features", "cache", "form='parallel'", "recurrent"):
        attend(**inputs(spec), spec=spec, form="chunked")


@pytest.mark.parametrize(
    "name",
    ["exp<5", "exp|count", "exp|identity", "exp|rowsum>=1", "taylor:0..2", "exp+decay", "exp|rowsum~", "drop+w4|count"],
)
def test_what_fused_attention_cannot_serve(name):
    spec = spec_of(name)
    with refused("form='fused'", "form='auto'"):
        attend(**inputs(spec), spec=spec, form="fused")


def test_unknown_forms_and_chunk_sizes():
    spec = spec_of("taylor:0..2")
    with refused("form='paralel'", "parallel"):
        attend(**inputs(spec), spec=spec, form="paralel")
    for size in (0, -3):
        with refused(f"chunk_size={size}", "from 1"):
            attend(**inputs(spec), spec=spec, form="chunked", chunk_size=size)
    for form in ("parallel", "recurrent", "fused", "reference"):
        with refused("chunk_size=4", "chunked"):
            attend(**inputs(spec_of("drop+w4")), spec=spec_of("drop+w4"), form=form, chunk_size=4)


def test_a_state_too_large_is_refused_before_it_is_made():
    spec = AttentionSpec(Polynomial(tuple(range(7))))
    q = torch.zeros(1, 2, 1, 128)
    with refused("features", "GiB", "fewer orders", "tokens"):
        attend(q, q, q, spec, output_final_state=True)
    with refused("GiB"):
        attend(q, q, q, spec, form="chunked")
    equal(attend(q, q, q, spec)[0].shape[1], 2, "all scores at once need no state")


# Fields -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Local(0), ("window=0", "from 1")),
        (lambda: Local(4, -1), ("sinks=-1", "from 0")),
        (lambda: Local(True), ("window=True",)),
        (lambda: Polynomial(()), ("orders=()",)),
        (lambda: Polynomial((2, 1)), ("increasing", "(1, 2)")),
        (lambda: Polynomial((0, 0)), ("increasing",)),
        (lambda: Polynomial((-1,)), ("orders=(-1,)",)),
        (lambda: Polynomial((80,)), ("79",)),
        (lambda: Polynomial((0,), center="median"), ("median", "'mean'")),
        (lambda: Polynomial((0,), "pade"), ("pade", "taylor", "Minimax")),
        (lambda: Polynomial((0, 1), (1.0,)), ("1 coefficients for 2 orders",)),
        (lambda: Polynomial((0, 1), (1.0, 0.0)), ("last one not zero",)),
        (lambda: Polynomial((0,), (math.nan,)), ("finite",)),
        (lambda: Power(0), ("degree=0", "from 1")),
        (lambda: Power(80), ("79",)),
        (lambda: FeatureMap("elu"), ("elu", "elu1")),
        (lambda: FeatureMap("elu1", 0), ("power=0",)),
        (lambda: FeatureMap("elu1", 2, "both"), ("power_of", "product")),
        (lambda: FeatureMap("relu", clamp=math.inf), ("clamp",)),
        (lambda: Exp(math.nan), ("clamp", "Exp(clamp=5.0)")),
        (lambda: Minimax(-1.0), ("radius", "positive")),
        (lambda: RowSum(floor=0.0), ("floor",)),
        (lambda: RowSum(eps=-1.0), ("eps",)),
        (lambda: RMS(eps=0.0), ("eps", "positive")),
        (lambda: Layer(eps=0.0), ("eps", "positive")),
        (lambda: RunningGateSum(floor=-1.0), ("floor",)),
        (lambda: LayerOptions(conv_size=-1), ("conv_size",)),
        (lambda: LayerOptions(conv_activation="silu"), ("convolution",)),
        (lambda: LayerOptions(conv_size=2, conv_activation="gelu"), ("gelu", "silu")),
    ],
)
def test_fields_validate_themselves(make, words):
    with refused(*words):
        make()


def unchecked(**fields) -> AttentionSpec:
    """A spec whose fields nobody has looked at: the tests' own type checker would refuse them first."""
    spec = object.__new__(AttentionSpec)
    for name, value in {**vars(AttentionSpec()), **fields}.items():
        object.__setattr__(spec, name, value)
    return spec


def test_the_fields_of_a_spec_are_checked():
    from_dict = AttentionSpec.from_dict
    with refused("'kernal'", "did you mean 'kernel'"):
        from_dict({"kernal": {"type": "Exp"}})
    with refused("'Expp'", "did you mean 'Exp'"):
        from_dict({"kernel": {"type": "Expp"}})
    with refused("kernel", "None"):
        from_dict({"kernel": None})
    with refused("'clmp'", "did you mean 'clamp'"):
        from_dict({"kernel": {"type": "Exp", "clmp": 5}})
    with refused("Power", "degree"):
        from_dict({"kernel": {"type": "Power"}})
    for wrong, words in (
        ({"input_gate": "yes"}, ("input_gate='yes'", "'count'")),
        ({"output_gate": "middle"}, ("output_gate='middle'", "'before'")),
        ({"log_decay": "yes"}, ("log_decay='yes'", "True")),
        ({"local": 64}, ("local=64", "Local(window=64, sinks=4)")),
        ({"kernel": "exp"}, ("kernel='exp'", "Exp()")),
        ({"normalizer": None}, ("normalizer=None", "RowSum()")),
    ):
        with refused(*words):
            check_spec(unchecked(**wrong))
    with refused("'sink'", "did you mean 'sinks'"):
        from_dict({"kernel": {"type": "Drop"}, "local": {"window": 3, "sink": 1}})
    with refused("normalizer", "'L3'"):
        from_dict({"normalizer": {"type": "L3"}})
    for broken in ([1, 2], "exp", None):
        with refused("AttentionSpec", repr(broken), "no table of fields"):
            check_fields("AttentionSpec", broken, ["kernel"])


def test_spec_files(tmp_path):
    path = tmp_path / "mine.json"
    spec = parse("taylor:0..2@mean+w8s2|l2+decay")
    path.write_text(json.dumps({**spec.to_dict(), "layer": {"rotary": False}, "note": "mine"}))
    variant = catalogue.variant(str(path))
    equal(
        (variant.spec, variant.layer, variant.note, variant.name),
        (spec, LayerOptions(rotary=False), "mine", "mine"),
        "a spec file",
    )
    for content, words in (
        ("{", ("not JSON",)),
        ("[]", ("JSON object",)),
        ('{"kernal": 1}', ("kernal", "did you mean")),
        ('{"layer": {"rotery": true}}', ("rotery", "rotary")),
    ):
        path.write_text(content)
        with refused(str(path), *words):
            catalogue.variant(str(path))
    with refused("no such spec file"):
        catalogue.variant(str(tmp_path / "none.json"))


# A call -------------------------------------------------------------------------------------------------------------


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
