"""Several centers through `attend`, what of them is refused, and where calibration puts them."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from termwise.attention.centers import calibrate_centers, nearest_center
from termwise.attention.forms import attend
from termwise.attention.kernels import Polynomial
from termwise.attention.names import parse
from termwise.attention.spec import CALIBRATED, AttentionSpec, Local
from tests.attention import grouped
from tests.attention.compare import close, equal, holds, refused, same_bits
from tests.attention.running import clone
from tests.attention.values import inputs

GROUPED = ["taylor:0@mean5+w4s1h3e8", "taylor:0..1@mean5+w4s1e8", "taylor:0..2@mean3+w4h3e8"]
FORMS = ["parallel", "chunked", "recurrent"]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", GROUPED)
def test_one_vector_off_all_keys_and_centers_changes_nothing(name, form):
    spec = parse(name)
    arguments = inputs(spec, length=40, kv_heads=2, heads=4, batch=2)
    common = 5 * numbers(2, 3).double()
    moved = arguments | {"key": arguments["key"] - common}
    moved["parameters"] = {"centers": arguments["parameters"]["centers"] - common[:, None]}
    close(attend(**moved, spec=spec, form=form)[0], attend(**arguments, spec=spec, form=form)[0], "fp64", name)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("orders", [(0,), (0, 1), (0, 1, 2)])
def test_centers_in_one_place_are_one_center(orders, form):
    """Ties go to the first, so all far keys share its group; its reference is where it stands."""
    local = Local(window=4, sinks=1, heavy=3, evict_every=8)
    one, five = (AttentionSpec(Polynomial(orders, center="mean", centers=m), local=local) for m in (1, 5))
    arguments = inputs(five, length=40, kv_heads=2, heads=4)
    place = arguments["parameters"]["centers"][:, 0]
    expected = attend(**arguments | {"parameters": {"reference_key": place}}, spec=one, form=form)[0]
    arguments["parameters"] = {"centers": place[:, None].expand(-1, 5, -1)}
    close(attend(**arguments, spec=five, form=form)[0], expected, "fp64", f"{orders}: about the center")
    arguments["parameters"] = {}
    close(attend(**arguments, spec=one, form=form)[0], expected, "fp64", f"{orders}: about the first key")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("orders", [(0,), (0, 1), (0, 1, 2)])
def test_a_center_for_every_key_is_softmax(orders, form):
    """Groups of one key weigh it exactly; more centers than keys leave groups empty."""
    spec = AttentionSpec(Polynomial(orders, center="mean", centers=45), local=Local(window=2, evict_every=4))
    arguments = clone(inputs(spec, length=30), torch.float64)
    with torch.no_grad():
        arguments["parameters"]["centers"][0, :30] = arguments["key"][0, :, 0]
        arguments["parameters"]["centers"][0, 30:] += 50
    out = attend(**arguments, spec=spec, form=form)[0]
    arguments["parameters"] = {}
    close(out, attend(**arguments, spec=AttentionSpec())[0], "fp64", f"{orders}, {form}")


@pytest.mark.parametrize("name", GROUPED)
def test_keys_all_alike_are_softmax(name):
    spec = parse(name)
    arguments = inputs(spec, length=40)
    arguments["key"][:] = arguments["key"][:, :1]
    plain = {part: t for part, t in arguments.items() if part != "parameters"}
    for form in FORMS:
        close(attend(**arguments, spec=spec, form=form)[0], attend(**plain, spec=AttentionSpec())[0], "fp64", form)


@pytest.mark.parametrize("name", ["taylor:0@mean5+w4s1e8", "taylor:0..1@mean5+w4s1e8", "taylor:0..1@mean+w4s1e8"])
def test_a_low_order_gives_far_keys_less_than_softmax_does(name):
    """Jensen: the share of the keys that have left, which are all whose value is one, is at most softmax's."""
    spec = parse(name)
    arguments = inputs(spec, length=40, spread=2.0)
    for t in (39, 31, 20):
        far = torch.arange(40) < (t + 1) // 8 * 8 - 4
        far[0] = False
        arguments["value"] = far[None, :, None, None].double()
        plain = {part: x for part, x in arguments.items() if part != "parameters"}
        found = attend(**arguments, spec=spec)[0][:, t]
        softmax = attend(**plain, spec=AttentionSpec())[0][:, t]
        holds(bool((found <= softmax + 1e-12).all()), f"{name} at {t}: at most softmax's share")
        holds(bool((found < 0.999 * softmax).any()), f"{name} at {t}: and less where scores differ")


@pytest.mark.parametrize("name", GROUPED)
def test_no_gradient_reaches_the_centers(name):
    spec = parse(name)
    arguments = inputs(spec, length=40, requires_grad=True)
    for form in FORMS:
        out = attend(**arguments, spec=spec, form=form)[0]
        centers = arguments["parameters"]["centers"]
        gradient = torch.autograd.grad(out.square().sum(), [centers, arguments["key"]], allow_unused=True)
        holds(gradient[0] is None or bool((gradient[0] == 0).all()), f"{name}, {form}")
        holds(bool((gradient[1] != 0).any()), "but the keys")


@pytest.mark.parametrize("name", [*GROUPED, "taylor:0..2@mean+w4h3e8", "drop+w4h3e8"])
def test_no_sequences_at_all(name):
    spec = parse(name)
    arguments = inputs(spec, length=30, batch=0)
    for form in FORMS:
        out, state = attend(**arguments, spec=spec, form=form, output_final_state=True)
        equal((tuple(out.shape), state.key.shape[0]), ((0, 30, 2, 4), 0), f"{name}, {form}")


def test_what_several_centers_declare():
    spec = parse("taylor:0..1@mean32+w64s4h64")
    equal(spec.parameters(80), {"centers": ("kv_heads", 32, "key_width")}, "one tensor")
    equal(set(spec.parameters(80)) <= set(CALIBRATED), True, "which nobody trains")
    equal(spec.short_name, "taylor:0..1@mean32+w64s4h64", "its name")
    equal(AttentionSpec.from_dict(spec.to_dict()), spec, "its table")
    holds("exp(m) sum over n in {0, 1} of (x - m)^n / n! in 32 groups of mean m" in spec.formula, spec.formula)
    equal((spec.explain(), spec.canonical()), ((), spec), "nothing of it cancels")
    older = spec.to_dict()
    del older["kernel"]["centers"]
    equal(AttentionSpec.from_dict(older).kernel.centers, 1, "a table without the field has one center")
    arguments = inputs(spec, length=3, heads=2, kv_heads=2)
    with refused("'centers'", "is missing", "(2, 32, 3)"):
        attend(**arguments | {"parameters": {}}, spec=spec)
    with refused("'centers'", "(2, 31, 3)", "(2, 32, 3)"):
        attend(**arguments | {"parameters": {"centers": torch.zeros(2, 31, 3)}}, spec=spec)


def test_what_several_centers_do_not_go_with():
    local = Local(window=4, evict_every=8)
    for kernel, words in (
        ({"orders": (0, 1), "centers": 3}, ("centers=3", "center='zero'", "center='mean'")),
        ({"orders": (0, 2), "center": "mean", "centers": 3}, ("centers=3", "(0, 2)", "(0, 1, 2)")),
        ({"orders": (0, 1, 2, 3), "center": "mean", "centers": 3}, ("centers=3", "(0, 1, 2, 3)", "(0, 1, 2)")),
        ({"orders": (0,), "center": "mean", "centers": 0}, ("centers=0", "from 1")),
        ({"orders": (0,), "center": "mean", "centers": True}, ("centers=True", "from 1")),
    ):
        with refused(*words):
            Polynomial(**kernel)
    for without in (None, Local(window=4)):
        with refused("centers=3", "evict_every=64", "centers=1"):
            AttentionSpec(Polynomial((0,), center="mean", centers=3), local=without)
    with refused("log_decay"):
        AttentionSpec(Polynomial((0,), center="mean", centers=3), local=local, log_decay=True)
    with refused("centers=3", "center='zero'"):
        dataclasses.replace(Polynomial((0,), center="mean", centers=3), center="zero")


def test_the_nearest_center():
    key, centers = numbers(2, 3, 50, 4).double(), numbers(3, 7, 4, seed=1).double()
    equal(nearest_center(key, centers).tolist(), grouped.nearest(key, centers).tolist(), "by plain distances")
    far = 1e4
    single, placed = (key + far).float(), (centers + far).float()
    wanted = grouped.nearest(single.double(), placed.double())
    equal(nearest_center(single, placed).tolist(), wanted.tolist(), "float32 keys far from zero lose nothing more")


def test_calibrated_centers_are_where_keys_are():
    """Four clouds and four centers: each in the middle of one; and the same again for the same seed."""
    middles = 20 * torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [-1, -1, -1]])
    keys = (middles[:, None] + numbers(4, 100, 3)).flatten(0, 1)
    keys = keys[torch.randperm(400, generator=torch.Generator().manual_seed(1))]
    for seed in range(5):
        centers = calibrate_centers(keys, 4, seed)
        group = grouped.nearest(keys[None, None], centers[None])[0, 0]
        means = torch.stack([keys[group == g].mean(dim=0) for g in range(4)])
        close(centers, means, "fp32", "each the mean of the keys nearest to it")
        holds(bool((torch.cdist(middles, centers).amin(dim=1) < 1).all()), f"seed {seed}: one in every cloud")
        same_bits(calibrate_centers(keys, 4, seed), centers, "deterministic")
        equal(centers.dtype, keys.dtype, "in the type of the keys")


def test_more_centers_serve_keys_better():
    keys = numbers(600, 5) * torch.tensor([5.0, 3, 1, 1, 1]) + 30
    away = []
    for m in (1, 2, 8, 32, 128):
        centers = calibrate_centers(keys, m, seed=0)
        nearest = grouped.nearest(keys[None, None], centers[None])[0, 0]
        away.append(float((keys - centers[nearest]).square().sum(dim=1).mean()))
        equal(len(nearest.unique()), m, "no group is left empty")
        random = keys[torch.randperm(600, generator=torch.Generator().manual_seed(m))[:m]]
        drawn = torch.cdist(keys, random).square().amin(dim=1).mean()
        holds(away[-1] < float(drawn), f"{m} centers: better than keys drawn at random")
    close(torch.tensor([away[0]]), keys.var(dim=0, correction=0).sum()[None], "fp32", "one center is the mean")
    equal(away, sorted(away, reverse=True), "the more the better")


def test_calibration_of_few_keys_and_of_many():
    alike = torch.ones(5, 3)
    same_bits(calibrate_centers(alike, 4, 0), torch.ones(4, 3), "keys all alike")
    few = numbers(3, 2)
    holds(bool((torch.cdist(few, calibrate_centers(few, 6, 0)).amin(dim=1) < 1e-6).all()), "every key has a center")
    many = numbers(40_000, 4)
    equal(bool(torch.isfinite(calibrate_centers(many, 64, 0)).all()), True, "in parts")
    same_bits(
        calibrate_centers(many.double()[:1000], 8, 3).float(), calibrate_centers(many.double()[:1000], 8, 3).float(), ""
    )


def test_calibration_refuses_what_is_no_set_of_keys():
    for keys, m, words in (
        (torch.zeros(0, 3), 2, ("(0, 3)", "(keys, key width)")),
        (torch.zeros(2, 5, 3), 2, ("(2, 5, 3)", "of one head")),
        (torch.zeros(5, 3), 0, ("m=0", "from 1")),
        (torch.full((5, 3), torch.nan), 2, ("not finite",)),
    ):
        with refused("calibrate_centers", *words):
            calibrate_centers(keys, m, seed=0)


@pytest.mark.parametrize("form", [*FORMS, "reference"])
@pytest.mark.parametrize("orders", ["0", "0..2"])
def test_keys_halfway_between_two_centers_belong_to_the_first(orders, form):
    """As those of centers that are plainly nearer: which of two equal distances rounding makes the smaller one says nothing."""
    spec = parse(f"taylor:{orders}@mean2+w2s1e4")
    centers, noise = numbers(1, 2, 4).double(), numbers(1, 20, 1, 4, seed=1).double()
    apart = centers[0, 1] - centers[0, 0]
    across = noise - (noise @ apart)[..., None] * apart / apart.square().sum()
    arguments = {"key": centers.mean(dim=1) + across, "query": numbers(1, 20, 2, 4, seed=2).double()}
    arguments["value"] = numbers(1, 20, 1, 4, seed=3).double()
    plain = torch.stack([centers[:, 0], centers[:, 1] + apart], dim=1)
    expected, _ = attend(**arguments, spec=spec, parameters={"centers": plain}, form="parallel")
    close(attend(**arguments, spec=spec, parameters={"centers": centers}, form=form)[0], expected, "fp64", form)
