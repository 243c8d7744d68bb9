"""Far keys in groups around centers: the sums of tail.py against every weight written out in float64."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from termwise.attention.kernels import Polynomial
from termwise.attention.spec import AttentionSpec, Local
from termwise.attention.tail import Tail, empty_tail, fold_into, read_tail
from tests.attention import grouped
from tests.attention.compare import all_close, close, equal, holds, same_bits

SCALE = 0.4
LOCAL = Local(window=8, evict_every=16)
SEVERAL = [((0,), "mean", 5), ((0, 1), "mean", 5), ((0, 1, 2), "mean", 5), ((0, 1, 2), "mean", 2)]
ONE = [
    ((0,), "mean", 1),
    ((0, 1), "mean", 1),
    ((0, 1, 2, 3, 4), "mean", 1),
    ((0, 1, 2), "zero", 1),
    ((2, 4), "zero", 1),
]


def spec_of(orders: tuple[int, ...], center: str, centers: int) -> AttentionSpec:
    return AttentionSpec(Polynomial(orders, center=center, centers=centers), local=LOCAL)


def numbers(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def drawn(num_keys: int, centers: int, *, mean: float = 0.0, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Two sequences, two kv heads of three query heads; three keys in ten are padding, never the first."""
    is_real = torch.rand(2, 2, num_keys, generator=torch.Generator().manual_seed(3)) > 0.3
    is_real[..., 0] = True
    return {
        "query": numbers(2, 2, 3, 4, 3, seed=0, dtype=dtype),
        "key": (numbers(2, 2, num_keys, 3, seed=1) + mean).to(dtype),
        "value": numbers(2, 2, num_keys, 5, seed=2, dtype=dtype),
        "is_real": is_real,
        "centers": (numbers(2, centers, 3, seed=4) + mean).to(dtype),
    }


def folded(spec: AttentionSpec, given: dict[str, Tensor], size: int = 16, tail: Tail | None = None) -> Tail:
    key, value = given["key"], given["value"]
    tail = tail or empty_tail(spec, *key.shape[:2], key.shape[3], value.shape[3], SCALE, key)
    centers = given["centers"] if spec.kernel.centers > 1 else None
    for start in range(0, key.shape[2], size):
        part = slice(start, start + size)
        tail = fold_into(tail, key[:, :, part], value[:, :, part], given["is_real"][:, :, part], spec, centers)
    return tail


def read(tail: Tail, query: Tensor, spec: AttentionSpec) -> tuple[Tensor, Tensor]:
    """True sums of each group, (B, G, R, T, m, e) and (B, G, R, T, m)."""
    reading = read_tail(tail, query, spec)
    gain = reading.shift.exp()
    own = torch.eye(gain.shape[-1], dtype=gain.dtype)
    return torch.stack([reading.weighted(gain * one) for one in own], dim=-2), gain * reading.mass


def by_definition(spec: AttentionSpec, given: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    kernel = spec.kernel
    assert isinstance(kernel, Polynomial)
    key = given["key"]
    group = torch.zeros(key.shape[:3], dtype=torch.int64)
    if kernel.centers > 1:
        group = grouped.nearest(key.detach(), given["centers"])
    is_real = given["is_real"].expand(key.shape[:3])
    return grouped.sums(
        given["query"], key, given["value"], is_real, group, kernel.centers, kernel.orders, kernel.is_centered, SCALE
    )


@pytest.mark.parametrize(("orders", "center", "centers"), SEVERAL + ONE)
@pytest.mark.parametrize("num_keys", [1, 3, 40])
def test_sums_and_gradients_are_those_of_the_definition(orders, center, centers, num_keys):
    spec, given = spec_of(orders, center, centers), drawn(num_keys, centers, mean=0.5)
    leaves = {name: given[name].requires_grad_() for name in ("query", "key", "value")}
    found = []
    for weighted, mass in (read(folded(spec, given), given["query"], spec), by_definition(spec, given)):
        out = weighted.sum(dim=-2)
        loss = (out * numbers(*out.shape, seed=5)).sum() + (mass * numbers(*mass.shape, seed=6)).sum()
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        found.append({"U": weighted.detach(), "Z": mass.detach()} | dict(zip(leaves, gradients, strict=True)))
    all_close(found[0], found[1], "fp64 gradient", f"{spec.short_name}, {num_keys} keys")


@pytest.mark.parametrize(("orders", "center", "centers"), SEVERAL)
def test_float32_keeps_its_digits_far_from_zero(orders, center, centers):
    """Mean scores of 25: the moments stand about each center, so the common part costs nothing."""
    spec = spec_of(orders, center, centers)
    exact = drawn(40, centers, mean=20.0)
    single = {name: t if t.dtype == torch.bool else t.float() for name, t in exact.items()}
    exact = {name: t if t.dtype == torch.bool else t.double() for name, t in single.items()}
    found, wanted = (read_tail(folded(spec, g), g["query"], spec) for g in (single, exact))
    there = torch.isfinite(wanted.shift)
    holds(float(wanted.shift[there].abs().max()) > 25, "scores are far from zero")
    equal(torch.isfinite(found.shift).tolist(), there.tolist(), "the same groups are empty")
    close(found.shift[there].double(), wanted.shift[there], "fp32", "shift")
    close(found.mass.double(), wanted.mass, "fp32", "mass")
    # The shift alone carries the common part: its error is eps of the score.
    ones = torch.ones_like(wanted.mass)
    close(found.weighted(ones.float()).double(), wanted.weighted(ones), "fp32", "values")


@pytest.mark.parametrize(("orders", "center", "centers"), SEVERAL + ONE)
def test_an_empty_tail_weighs_nothing(orders, center, centers):
    spec, given = spec_of(orders, center, centers), drawn(6, centers)
    start = folded(spec, {**given, "key": given["key"][:, :, :0], "value": given["value"][:, :, :0]})
    padded = folded(spec, {**given, "is_real": torch.zeros(1, 2, 6, dtype=torch.bool)})
    for tail in (start, padded):
        query = given["query"].clone().requires_grad_()
        reading = read_tail(tail, query, spec)
        gain = reading.shift.exp()
        holds(bool((reading.shift == -torch.inf).all()), "shift -inf")
        weighted = reading.weighted(gain)
        equal((float(weighted.detach().abs().max()), float(reading.mass.detach().abs().max())), (0.0, 0.0), "no mass")
        gradient = torch.autograd.grad(weighted.sum() + (gain * reading.mass).sum(), query, allow_unused=True)[0]
        holds(gradient is None or bool((gradient == 0).all()), "and no gradient")


def test_more_centers_than_keys_and_keys_alike():
    """Every group of at most one key is exact at every order, and so are keys that are all one."""
    for orders in ((0,), (0, 1), (0, 1, 2)):
        for name, key in (
            ("one a group", numbers(1, 1, 3, 2, seed=1)),
            ("alike", numbers(1, 1, 1, 2, seed=1).expand(1, 1, 3, 2)),
        ):
            spec = spec_of(orders, "mean", 7)
            centers = torch.cat([key[0, :, :], 50 + numbers(1, 4, 2, seed=2)], dim=1)
            query, value = numbers(1, 1, 2, 3, 2, seed=3), numbers(1, 1, 3, 4, seed=4)
            given = {"key": key, "value": value, "is_real": torch.ones(1, 1, 3, dtype=torch.bool), "centers": centers}
            weighted, mass = read(folded(spec, given), query, spec)
            weights = (torch.einsum("bgrtd,bgnd->bgrtn", query, key) * SCALE).exp()
            close(weighted.sum(dim=-2), weights @ value[:, :, None], "fp64", f"{orders}, {name}: U")
            close(mass.sum(dim=-1), weights.sum(dim=-1), "fp64", f"{orders}, {name}: Z")


def test_ties_go_to_the_lower_index():
    key = torch.zeros(1, 1, 1, 2, dtype=torch.float64)
    square = torch.tensor([[[1.0, 0], [0, 1], [-1, 0], [0, -1]]], dtype=torch.float64)
    for turn in range(4):
        given = {"key": key, "value": torch.ones(1, 1, 1, 1).double(), "is_real": torch.ones(1, 1, 1, dtype=torch.bool)}
        tail = folded(spec_of((0,), "mean", 4), {**given, "centers": square.roll(turn, dims=1)})
        equal(tail.count.flatten().tolist(), [1.0, 0, 0, 0], f"four centers at one distance, turned by {turn}")
    third = torch.full((1, 5, 2), 1 / 3, dtype=torch.float64)
    tail = folded(spec_of((0,), "mean", 5), {**given, "centers": third})
    equal(tail.count.flatten().tolist(), [1.0, 0, 0, 0, 0], "five centers in one place")


@pytest.mark.parametrize(("orders", "center", "centers"), SEVERAL)
def test_a_vector_common_to_keys_and_centers_changes_nothing(orders, center, centers):
    """Up to the factor exp(q.u) that a row sum cancels."""
    spec, given = spec_of(orders, center, centers), drawn(40, centers)
    common = numbers(2, 1, 3, seed=9) * 3
    moved = {**given, "key": given["key"] - common, "centers": given["centers"] - common}
    factor = (torch.einsum("bgrtd,gxd->bgrt", given["query"], common) * SCALE).exp()
    weighted, mass = read(folded(spec, given), given["query"], spec)
    other, other_mass = read(folded(spec, moved), given["query"], spec)
    close(other * factor[..., None, None], weighted, "fp64", "U")
    close(other_mass * factor[..., None], mass, "fp64", "Z")


@pytest.mark.parametrize(("orders", "centers"), [((0,), 1), ((0, 1), 1), ((0,), 5), ((0, 1), 5)])
def test_a_low_order_gives_a_group_less_than_exp_does(orders, centers):
    """Jensen: count times exp of the mean score is at most the sum of exp, whatever keys and queries are."""
    spec, given = spec_of(orders, "mean", centers), drawn(40, centers, mean=0.5)
    for stretch in (0.1, 1.0, 10.0):
        query = given["query"] * stretch
        mass = read(folded(spec, given), query, spec)[1].sum(dim=-1)
        scores = torch.einsum("bgrtd,bgnd->bgrtn", query, given["key"]) * SCALE
        true = (scores.exp() * given["is_real"][:, :, None, None]).sum(dim=-1)
        holds(bool((mass <= true * (1 + 1e-12)).all()), f"{spec.short_name}: at most the true mass")
        holds(bool((mass < 0.999 * true).any()), f"{spec.short_name}: and less where scores differ")


def test_one_center_is_the_polynomial_around_the_mean():
    for orders in ((0,), (0, 1), (0, 1, 2)):
        given = drawn(40, 1)
        plain = spec_of(orders, "mean", 1)
        about_center = folded(plain, given)
        tail = empty_tail(plain, 2, 2, 3, 5, SCALE, given["key"])
        tail = fold_into(tail, given["key"], given["value"], given["is_real"], plain, given["centers"])
        for got, wanted in zip(
            read(tail, given["query"], plain), read(about_center, given["query"], plain), strict=True
        ):
            close(got, wanted, "fp64", f"{orders}: about a given key as about the first")
        merged = by_definition(plain, given)
        for got, wanted in zip(read(about_center, given["query"], plain), merged, strict=True):
            close(got, wanted, "fp64", f"{orders}: and as written out")


@pytest.mark.parametrize(("orders", "center", "centers"), SEVERAL)
def test_gradients_reach_the_moments(orders, center, centers):
    """A tail handed on from one call to the next carries the gradients of its keys and values."""
    spec, given = spec_of(orders, center, centers), drawn(40, centers)
    for name in ("key", "value"):
        given[name].requires_grad_()
    first = folded(
        spec,
        {
            **given,
            "key": given["key"][:, :, :16],
            "value": given["value"][:, :, :16],
            "is_real": given["is_real"][:, :, :16],
        },
    )
    held = {name: getattr(first, name).detach().clone().requires_grad_() for name in ("moments", "mass")}
    later = {name: given[name][:, :, 16:] for name in ("key", "value", "is_real")} | {"centers": given["centers"]}

    def loss(tail: Tail) -> Tensor:
        out = read(folded(spec, later, tail=tail), given["query"], spec)[0]
        return (out * numbers(*out.shape, seed=5)).sum()

    leaves = [given["key"], given["value"]]
    wanted = torch.autograd.grad(loss(first), leaves, retain_graph=True)
    at_hand_over = torch.autograd.grad(loss(dataclasses.replace(first, **held)), list(held.values()))
    found = torch.autograd.grad([first.moments, first.mass], leaves, at_hand_over)
    for name, gradient, expected in zip(("key", "value"), found, wanted, strict=True):
        close(gradient[:, :, :16], expected[:, :, :16], "fp64", f"{spec.short_name}: {name}s of the call before")


@pytest.mark.parametrize(("orders", "center", "centers"), SEVERAL)
def test_centers_that_change_leave_what_is_there(orders, center, centers):
    """Later keys are grouped by the new centers; those in a group stay, about the reference they came with."""
    spec, given = spec_of(orders, center, centers), drawn(40, centers)
    first, later = (
        {**given, **{n: given[n][:, :, p] for n in ("key", "value", "is_real")}} for p in (slice(0, 16), slice(16, 40))
    )
    later["centers"] = given["centers"].roll(1, dims=1) + 0.3
    tail = folded(spec, later, tail=folded(spec, first))
    group = torch.cat([grouped.nearest(part["key"], part["centers"]) for part in (first, later)], dim=2)
    wanted = grouped.sums(
        given["query"], given["key"], given["value"], given["is_real"], group, centers, orders, True, SCALE
    )
    for got, expected in zip(read(tail, given["query"], spec), wanted, strict=True):
        close(got, expected, "fp64", spec.short_name)


@pytest.mark.parametrize(("orders", "center", "centers"), SEVERAL)
def test_heads_and_sequences_do_not_see_each_other(orders, center, centers):
    spec, given = spec_of(orders, center, centers), drawn(40, centers)
    whole = folded(spec, given)
    for b in range(2):
        for g in range(2):
            own = {name: t[b : b + 1, g : g + 1] for name, t in given.items() if name != "centers"}
            tail = folded(spec, own | {"centers": given["centers"][g : g + 1]})
            for name in ("moments", "mass", "count"):
                close(
                    getattr(tail, name)[0, 0], getattr(whole, name)[b, g], "fp64", f"{name} of sequence {b}, head {g}"
                )


def test_order_0_is_held_in_the_size_of_one_key_and_value_a_center():
    tail = empty_tail(spec_of((0,), "mean", 32), 1, 1, 64, 64, 0.125, torch.empty(0))
    equal((tail.moments.numel(), tail.mass.numel()), (32 * 64, 32 * 65), "value sums; key sums and their number")
    equal(tail.reference, None, "and no reference, which sums alone have no need of")
    tail = empty_tail(spec_of((0, 1), "mean", 32), 1, 1, 64, 64, 0.125, torch.empty(0))
    equal(tail.moments.numel(), 32 * 65 * 64, "orders 0..1: values, and values times each coordinate")


def test_folding_twice_the_same_is_the_same_to_the_last_bit():
    spec, given = spec_of((0, 1), "mean", 5), drawn(40, 5, dtype=torch.float32)
    for name in ("moments", "mass", "count"):
        same_bits(getattr(folded(spec, given), name), getattr(folded(spec, given), name), name)
