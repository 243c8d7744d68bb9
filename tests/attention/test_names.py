"""Names, tables and canonical values: what is written down is what was meant, and equal values compute the same."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from termwise.attention.catalogue import LayerOptions, catalogue
from termwise.attention.forms import attend
from termwise.attention.kernels import MAPS, Drop, Exp, FeatureMap, Minimax, Polynomial, Power
from termwise.attention.names import parse
from termwise.attention.normalizers import L2, RMS, Count, Identity, Layer, RowSum, RunningGateSum
from termwise.attention.spec import AttentionSpec, Local
from tests.attention import oracle
from tests.attention.compare import close, equal, holds, refused
from tests.attention.values import NAMES, inputs, spec_of

# The type checker picks the elements of a tuple that it looks at by `random`.
pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")

numbers = some.one_of(
    some.sampled_from([5.0, 0.1, 1e-8, 1e20, -1.5, 1 / 3, math.pi, 123456.789]),
    some.floats(-1e6, 1e6).filter(lambda x: x != 0),
)
positive = numbers.map(abs).filter(lambda x: x > 1e-9)
orders = some.lists(some.integers(0, 9), min_size=1, max_size=5, unique=True).map(lambda n: tuple(sorted(n)))


@some.composite
def kernels(draw):
    kind = draw(some.sampled_from(["exp", "polynomial", "power", "map", "drop"]))
    if kind == "exp":
        return Exp(draw(some.none() | numbers))
    if kind == "power":
        return Power(draw(some.integers(1, 9)), allow_negative=True)
    if kind == "map":
        clamp = draw(some.none() | numbers)
        return FeatureMap(
            draw(some.sampled_from(MAPS)),
            draw(some.integers(1, 4)),
            draw(some.sampled_from(["features", "product"])),
            clamp,
            draw(some.booleans()),
            True,
        )
    if kind == "drop":
        return Drop()
    chosen = draw(orders)
    given_ones = tuple(draw(some.lists(numbers, min_size=len(chosen), max_size=len(chosen))))
    coefficients = draw(
        some.sampled_from(["taylor", Minimax(draw(some.sampled_from([1.0, 3.0, 2.5, math.pi])))])
        | some.just(given_ones)
    )
    return Polynomial(chosen, coefficients, draw(some.sampled_from(["zero", "mean"])), True)


normalizers = some.one_of(
    some.builds(RowSum, some.none() | positive, some.just(0.0) | positive, some.booleans()),
    some.sampled_from([Count(), Identity(), L2(), L2(times_width=True), RunningGateSum(times_count=True)]),
    some.builds(RMS, some.booleans(), positive | some.just(1e-6)),
    some.builds(Layer, some.booleans(), some.booleans(), positive | some.just(1e-5)),
    some.builds(RunningGateSum, some.none() | positive, some.booleans()),
)


@some.composite
def specs(draw):
    try:
        return AttentionSpec(
            draw(kernels()),
            draw(normalizers),
            draw(some.sampled_from([False, True, "count"])),
            draw(some.sampled_from([None, "before", "after"])),
            draw(some.booleans()),
            draw(
                some.none()
                | some.builds(
                    Local,
                    some.integers(1, 99),
                    some.integers(0, 9),
                    some.integers(0, 9),
                    some.none() | some.sampled_from([1, 16, 64]),
                )
            ),
        )
    except ValueError:  # a pair that is refused elsewhere
        return AttentionSpec()


@some.composite
def evicting(draw):
    """Slots that keys leave at fixed positions, dropped or into groups around several centers."""
    orders = draw(some.none() | some.sampled_from([(0,), (0, 1), (0, 1, 2)]))
    kernel = Drop() if orders is None else Polynomial(orders, center="mean", centers=draw(some.integers(1, 99)))
    heavy, every = draw(some.integers(0, 9)), draw(some.sampled_from([1, 16, 64, 100]))
    local = Local(draw(some.integers(1, 99)), draw(some.integers(0, 9)), heavy, every)
    gates = draw(some.sampled_from([False, True, "count"])), draw(some.sampled_from([None, "before", "after"]))
    return AttentionSpec(kernel, RowSum(), *gates, local=local)


@given(specs() | evicting())
def test_a_short_name_means_its_spec(spec):
    equal(parse(spec.short_name), spec, spec.short_name)


@given(specs() | evicting())
def test_a_table_means_its_spec(spec):
    equal(AttentionSpec.from_dict(json.loads(json.dumps(spec.to_dict()))), spec, spec.short_name)


@given(specs() | evicting())
def test_canonical_is_settled_and_explained(spec):
    simpler = spec.canonical()
    equal(simpler.canonical(), simpler, spec.short_name)
    if simpler != spec:
        holds(len(spec.explain()) > 0, f"{spec.short_name} says why it equals {simpler.short_name}")
    holds(all("\n" not in sentence for sentence in (*spec.explain(), spec.formula)), "each in one line")


CANCELLED = [n for n in NAMES if spec_of(n).canonical() != spec_of(n)]


@pytest.mark.parametrize(
    "name",
    [
        *CANCELLED,
        "identity/sqrtd|identity",
        "identity:3/sqrtd|count",
        "identity/sqrtd|l2",
        "identity:2",
        "exp+gb",
        "taylor:0..2|count+gb",
        "exp<5|rowsum>=1+gb",
        "exp|runninggate+gb",
        "drop+w3|rms+gb",
        "taylor:0..2+w3|l2+gb",
        "identity+w3|l2",
        "exp|layer+gb",
        "power:2|layer+gi+gb+decay",
    ],
)
def test_a_canonical_spec_computes_the_same(name):
    spec = spec_of(name)
    if isinstance(spec.normalizer, (RMS, Layer)):  # whose eps sees the factor
        spec = dataclasses.replace(spec, normalizer=dataclasses.replace(spec.normalizer, eps=1e-12))
    arguments = inputs(spec, length=12, heads=2, seed=1)
    simpler = {n: t for n, t in arguments.items() if n != "output_gate" or spec.canonical().output_gate is not None}
    row = "eps" if isinstance(spec.normalizer, (RMS, Layer)) else "fp64"
    found = oracle.attend(**simpler, spec=spec.canonical())
    close(found, oracle.attend(**arguments, spec=spec), row, f"{name} = {spec.canonical().short_name}")
    close(attend(**simpler, spec=spec.canonical())[0], found, "fp64", name)


# The catalogue ------------------------------------------------------------------------------------------------------

# Straight from the table of the paper's variants: kernel, normalizer, input gate, output gate, decay.
CLAMPED = Exp(clamp=5.0)
PAPER = {
    "softmax": AttentionSpec(Exp()),
    "softmax_clamp_denom": AttentionSpec(CLAMPED, RowSum(floor=1.0)),
    "softmax_detach_denom": AttentionSpec(CLAMPED, RowSum(floor=1.0, detach=True)),
    "softmax_detach_denom_gate": AttentionSpec(CLAMPED, RowSum(eps=1e-4, detach=True), output_gate="after"),
    "softmax_divs": AttentionSpec(CLAMPED, Count()),
    "gated_softmax_no_gate_no_norm": AttentionSpec(CLAMPED, Count()),
    "softmax_gate": AttentionSpec(CLAMPED, Identity(), output_gate="after"),
    "softmax_divS_gate": AttentionSpec(CLAMPED, Count(), output_gate="after"),
    "softmax_divS_gatev2": AttentionSpec(CLAMPED, Count(), output_gate="after"),
    "gated_softmax_no_in_gate_no_norm": AttentionSpec(CLAMPED, Count(), output_gate="after"),
    "softmax_divS_norm": AttentionSpec(CLAMPED, RMS()),
    "gated_softmax_no_gate_rmsnorm": AttentionSpec(CLAMPED, RMS()),
    "gated_softmax_no_gate_rmsnorm_nodivS": AttentionSpec(CLAMPED, RMS()),
    "softmax_taylor_80terms": AttentionSpec(Polynomial(tuple(range(80)), allow_negative=True)),
    "gated_softmax": AttentionSpec(CLAMPED, Layer(), input_gate=True, output_gate="before"),
    "gated_softmax_no_in_gate": AttentionSpec(CLAMPED, Layer(), output_gate="before"),
    "gated_softmax_no_norm": AttentionSpec(CLAMPED, Count(), input_gate=True, output_gate="after"),
    "gated_softmax_no_out_gate": AttentionSpec(CLAMPED, Layer(), input_gate=True),
    "gated_softmax_no_out_gate_no_norm": AttentionSpec(CLAMPED, Count(), input_gate=True),
    "gated_softmax_no_gate": AttentionSpec(CLAMPED, Layer()),
    "gated_softmax_no_gate_L2norm_nodivS": AttentionSpec(CLAMPED, L2()),
    "gated_softmax_no_gate_L2norm_nodivS_noclamp": AttentionSpec(Exp(), L2()),
    "gated_softmax_out_gate_L2norm_nodivS_noclamp": AttentionSpec(Exp(), L2(), output_gate="before"),
    "gated_softmax_post_out_gate_L2norm_nodivS_noclamp": AttentionSpec(Exp(), L2(), output_gate="after"),
    "gated_softmax_no_gate_customnorm": AttentionSpec(CLAMPED, L2(times_width=True)),
    "gated_relu_no_in_gate_no_norm": AttentionSpec(
        FeatureMap("relu", clamp=5.0, by_root_width=True), Count(), output_gate="after"
    ),
    "gated_ReLU_no_gate_L2norm_nodivS_noclamp": AttentionSpec(FeatureMap("relu", by_root_width=True), L2()),
    "gated_softmax_cumgate": AttentionSpec(CLAMPED, RunningGateSum(floor=1.0)),
    "cumulative_gated_softmax": AttentionSpec(CLAMPED, RunningGateSum(times_count=True)),
    "gated_softmax_decay": AttentionSpec(CLAMPED, Layer(), input_gate=True, output_gate="before", log_decay=True),
    "gated_softmax_plusplus": AttentionSpec(CLAMPED, Layer(), input_gate=True, output_gate="before"),
    "gated_softmax_plusplus_extratoks": AttentionSpec(CLAMPED, Layer(), input_gate=True, output_gate="before"),
    "linear_elu": AttentionSpec(FeatureMap("elu1")),
    "linear_relu": AttentionSpec(FeatureMap("relu"), RowSum(eps=1e-8)),
    "linear_cosine": AttentionSpec(FeatureMap("unit"), Identity(), input_gate="count"),
}
MAMBA_BLOCKS = 3  # linear_mamba and two gated_softmax_plusplus_mamba: whole blocks, no points of the algebra


def test_the_papers_names():
    for name, spec in PAPER.items():
        equal(catalogue[name], spec, name)
    equal(len(PAPER) + MAMBA_BLOCKS, 38, "38 names")
    equal(set(catalogue.groups()["paper"]), set(PAPER), "the group")
    equal(catalogue.variant("gated_softmax_decay").layer, LayerOptions(rotary=False), "no rotary")
    equal(
        catalogue.variant("gated_softmax_plusplus").layer,
        LayerOptions(conv_size=4, conv_activation="silu"),
        "a convolution of 4 and SiLU",
    )
    equal(
        catalogue.variant("gated_softmax_plusplus_extratoks").layer,
        LayerOptions(conv_size=4, conv_activation="silu", blank_tokens=3),
        "three blank tokens",
    )


def test_the_follow_ups_names():
    equal(catalogue["2mamba"], AttentionSpec(Power(2), log_decay=True), "2Mamba")
    equal(catalogue["2mamba_e"], AttentionSpec(Exp(), log_decay=True), "2Mamba-E")
    equal(catalogue["mamba_2s"], AttentionSpec(Power(1), Identity(), log_decay=True), "Mamba-2S")
    for name in ("2mamba", "2mamba_e", "mamba_2s"):
        layer = catalogue.variant(name).layer
        equal((layer.conv_size, layer.rotary), (2, False), name)
    equal(catalogue.variant("mamba_2s").layer.value_step, True, "values scaled by softplus(w.x)")
    equal(catalogue.variant("mamba_2s").layer.output_norm, True, "RMS over all heads")


def test_equal_names_are_equal_values():
    groups = (
        {"softmax_divs", "gated_softmax_no_gate_no_norm"},
        {"softmax_divS_gate", "softmax_divS_gatev2", "gated_softmax_no_in_gate_no_norm"},
        {"softmax_divS_norm", "gated_softmax_no_gate_rmsnorm", "gated_softmax_no_gate_rmsnorm_nodivS"},
        {"gated_softmax_out_gate_L2norm_nodivS_noclamp", "gated_softmax_no_gate_L2norm_nodivS_noclamp", "exp_l2"},
    )
    for group in groups:
        for name in group:
            holds(group - {name} <= set(catalogue.equal_names(name)), f"{name} knows its equals")
    holds(
        "softmax_gate" not in catalogue.equal_names("gated_softmax_no_in_gate_no_norm"),
        "which the paper's notes call equal",
    )
    holds("softmax" not in catalogue.equal_names("softmax_clamp_denom"), "a clamp is a difference")
    holds(
        any("cancels" in sentence for sentence in catalogue["gated_softmax"].explain()),
        "the gate before LayerNorm is flagged",
    )


def test_every_member_of_every_group_is_known():
    for group, members in catalogue.groups().items():
        equal(len(members), len(set(members)), f"{group}: each once")
        for name in members:
            holds(isinstance(catalogue.variant(name).spec, AttentionSpec), name)
    equal(sorted(catalogue.groups()), ["all", "denominators", "gates", "ladder", "paper"], "groups")
    holds(set(catalogue.names()) <= set(catalogue.groups()["all"]), "all names are in `all`")


def test_misspelt_names_are_answered():
    for wrong, right in (("softmx", "softmax"), ("linear_elo", "linear_elu"), ("2mambo", "2mamba")):
        with refused(repr(wrong), f"did you mean {right!r}"):
            catalogue.variant(wrong)
    for wrong, words in (
        ("taylr:0..2", ("taylr:0..2", "did you mean 'taylor:0..2'")),
        ("taylor:2..0", ("orders",)),
        ("taylor:x", ("taylor:x",)),
        ("elu1|rowsm", ("rowsm", "did you mean 'rowsum'")),
        ("exp+w0", ("window",)),
        ("", ("no attention name",)),
        ("drop!+w3", ("never negative",)),
        ("exp<5!", ("never negative",)),
        ("elu1^0", ("power=0",)),
        ("taylor:0..2+decay+ga", ("no attention name",)),
    ):
        with refused(*words):
            catalogue.variant(wrong)


def test_formulas_are_readable():
    equal(catalogue["softmax"].formula, "w = exp(x);  U = sum w v;  o = U / Z", "softmax")
    for name in NAMES:
        holds(spec_of(name).formula.count(";") == 2 and len(spec_of(name).formula) < 200, spec_of(name).formula)


def test_layer_options_survive_their_table():
    for name in catalogue.names():
        layer = catalogue.variant(name).layer
        equal(LayerOptions.from_dict(json.loads(json.dumps(layer.to_dict()))), layer, name)


def test_declared_parameters():
    for name in NAMES:
        spec = spec_of(name)
        declared = spec.parameters(7)
        expected = {}
        if isinstance(spec.normalizer, (RMS, Layer)) and spec.normalizer.weight:
            expected["norm_weight"] = ("heads", 7)
        if isinstance(spec.normalizer, Layer) and spec.normalizer.bias:
            expected["norm_bias"] = ("heads", 7)
        if spec.input_gate == "count":
            expected["count_exponent"] = ("kv_heads",)
        if spec.kernel.centers > 1:
            expected["centers"] = ("kv_heads", spec.kernel.centers, "key_width")
        equal(declared, expected, name)
        equal(spec.needs_running_gate, isinstance(spec.normalizer, RunningGateSum), name)
    holds(
        torch.is_tensor(inputs(spec_of("exp|runninggate"))["parameters"]["running_gate_score"]),
        "and the running gate's score comes with the call",
    )
