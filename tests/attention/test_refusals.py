"""Pairs that cannot be (math: section 3), each refused with its way out, and each way out taken."""

from __future__ import annotations

import pytest
import torch

from termwise.attention.forms import attend
from termwise.attention.kernels import Drop, Exp, FeatureMap, Polynomial, Power
from termwise.attention.names import parse
from termwise.attention.normalizers import L2, RMS, Count, Identity, Layer, RowSum, RunningGateSum
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
