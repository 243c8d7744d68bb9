"""Properties over drawn shapes, orders and splits."""

from __future__ import annotations

from math import comb, factorial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from termwise.attention.forms import attend
from termwise.attention.kernels import Polynomial, Power
from termwise.attention.monomials import exponents, features, multiplicities, total_width, translate, width
from termwise.attention.normalizers import L2, RowSum
from termwise.attention.spec import AttentionSpec, Local
from tests.attention import oracle
from tests.attention.compare import close, equal
from tests.attention.slicing import tokens
from tests.attention.values import inputs

# The type checker picks the elements of a tuple that it looks at by `random`.
pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")

widths = some.integers(1, 6)
order_sets = some.lists(some.integers(0, 5), min_size=1, max_size=4, unique=True).map(lambda n: tuple(sorted(n)))
seeds = some.integers(0, 1000)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(widths, some.integers(0, 6))
def test_the_width_formula_is_the_real_width(d, n):
    equal(features(normal(0, d), (n,)).shape[0], width(d, n), "features of one order")
    equal(width(d, n), comb(d + n - 1, n), "C(d+n-1, n)")
    equal(total_width(d, tuple(range(n + 1))), comb(d + n, n), "C(d+P, P)")
    equal(len(set(exponents(d, n))), width(d, n), "each monomial once")
    equal(int(multiplicities(d, n).sum()), d**n, "multiplicities count the Kronecker power")


@given(widths, some.integers(1, 5))
def test_colex_order(d, n):
    """By largest index; those of largest index l are x_l times the first C(l+n-1, n-1) monomials of order n-1."""
    names = exponents(d, n)
    equal(list(names), sorted(names, key=lambda name: name[::-1]), "colex")
    for last in range(d):
        block = [name[:-1] for name in names if name[-1] == last]
        equal(block, list(exponents(d, n - 1)[: comb(last + n - 1, n - 1)]), f"largest index {last}")
    x = normal(1, d)
    expected = torch.stack([torch.stack([x[i] for i in name]).prod() for name in names])
    close(features(x, (n,)), expected, "fp64", "each feature is its monomial")
    sizes = [factorial(n) for _ in names]
    for i, name in enumerate(names):
        for index in set(name):
            sizes[i] //= factorial(name.count(index))
    equal(multiplicities(d, n).tolist(), [float(size) for size in sizes], "n! / prod m_i!")


@given(widths, order_sets, seeds)
def test_the_feature_product_is_the_polynomial(d, orders, seed):
    x, y = normal(seed, d) / 2, normal(seed + 1, d) / 2
    weights = torch.cat([torch.from_numpy(multiplicities(d, n)) / factorial(n) for n in orders])
    product = (features(x, orders) * weights) @ features(y, orders)
    expected = sum((x @ y) ** n / factorial(n) for n in orders)
    scale = sum((x.norm() * y.norm()) ** n / factorial(n) for n in orders)  # what the terms may be before they cancel
    close(torch.stack([product, scale]), torch.stack([expected, scale]), "fp64", f"orders {orders}")


@given(widths, some.integers(0, 4), seeds)
def test_translating_moments_is_moving_keys(d, top, seed):
    keys, values, shift = normal(seed, 5, d), normal(seed + 1, 5, 2), normal(seed + 2, d)
    orders = tuple(range(top + 1))

    def moments(x):
        return torch.einsum("sf,se->fe", features(x, orders), values)

    close(translate(moments(keys), shift, orders), moments(keys + shift), "fp64", f"orders 0..{top}")


kernels = some.one_of(
    some.builds(
        lambda top, center: Polynomial(tuple(range(top + 1)), center=center),
        some.sampled_from([0, 2, 4]),
        some.sampled_from(["zero", "mean"]),
    ),
    some.builds(lambda degree: Power(2 * degree), some.integers(1, 2)),
)
locals_ = some.none() | some.builds(Local, some.integers(1, 12), some.integers(0, 4))


@given(kernels, locals_, some.booleans(), some.integers(1, 160), some.integers(1, 90), seeds)
def test_any_chunk_size_is_the_same(kernel, local, decays, length, chunk, seed):
    spec = AttentionSpec(kernel, RowSum(), log_decay=decays, local=local)
    arguments = inputs(spec, length=length, heads=1, key_width=2, value_width=2, seed=seed)
    expected = oracle.attend(**arguments, spec=spec)
    close(attend(**arguments, spec=spec, form="chunked", chunk_size=chunk)[0], expected, "fp64", spec.short_name)


@given(kernels, locals_, some.booleans(), some.lists(some.integers(1, 179), min_size=1, max_size=4, unique=True), seeds)
def test_any_split_is_the_same(kernel, local, decays, cuts, seed):
    spec = AttentionSpec(kernel, L2(), log_decay=decays, local=local)
    arguments = inputs(spec, length=180, heads=1, key_width=2, value_width=2, seed=seed)
    expected = oracle.attend(**arguments, spec=spec)
    outputs, state = [], None
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), 180], strict=True):
        out, state = attend(**tokens(arguments, start, stop), spec=spec, initial_state=state, output_final_state=True)
        outputs.append(out)
    close(torch.cat(outputs, dim=1), expected, "fp64", f"{spec.short_name} at {sorted(cuts)}")


@given(some.sampled_from([1, 2, 4]), locals_, some.lists(some.floats(-3, 3), min_size=3, max_size=3), seeds)
def test_a_shift_of_all_keys_changes_nothing_around_the_mean(top, local, shift, seed):
    spec = AttentionSpec(Polynomial(tuple(range(top + 1)), center="mean"), RowSum(), local=local)
    arguments = inputs(spec, length=70, heads=1, seed=seed)
    moved = {**arguments, "key": arguments["key"] + torch.tensor(shift, dtype=torch.float64)}
    close(attend(**moved, spec=spec)[0], attend(**arguments, spec=spec)[0], "fp64", spec.short_name)


@given(some.integers(1, 3), some.integers(1, 3), seeds)
def test_query_heads_share_kv_heads_in_runs(kv_heads, group, seed):
    spec = AttentionSpec(Polynomial((0, 1, 2)), RowSum())
    arguments = inputs(spec, length=9, heads=kv_heads * group, kv_heads=kv_heads, seed=seed)
    out, _ = attend(**arguments, spec=spec)
    for h in range(kv_heads * group):
        g = h // group
        one = {
            "query": arguments["query"][:, :, h : h + 1],
            "key": arguments["key"][:, :, g : g + 1],
            "value": arguments["value"][:, :, g : g + 1],
        }
        close(out[:, :, h : h + 1], attend(**one, spec=spec)[0], "fp64", f"head {h} reads kv head {g}")


@given(some.lists(some.integers(1, 30), min_size=1, max_size=6), seeds)
def test_packed_documents_are_separate_whatever_their_lengths(lengths, seed):
    spec = AttentionSpec(Polynomial((0, 1, 2), center="mean"), RowSum(), local=Local(3, 1))
    total = sum(lengths)
    arguments = inputs(spec, length=total, seed=seed)
    ends = torch.tensor([0, *lengths]).cumsum(dim=0)
    out, state = attend(**arguments, spec=spec, cu_seqlens=ends, output_final_state=True)
    equal(state.with_batch_ranks().count.tolist(), lengths, "each document has its own count")
    for start, stop in zip(ends.tolist(), ends.tolist()[1:], strict=False):
        close(
            out[:, start:stop], attend(**tokens(arguments, start, stop), spec=spec)[0], "fp64", f"document at {start}"
        )


@given(some.lists(some.booleans(), min_size=12, max_size=12), seeds)
def test_padding_anywhere_is_as_if_it_were_not_there(real, seed):
    spec = AttentionSpec(Polynomial((0, 1, 2), center="mean"), RowSum(), log_decay=True, local=Local(2, 1))
    arguments = inputs(spec, length=12, seed=seed)
    mask = torch.tensor([real])
    poisoned = {
        n: torch.where(mask.reshape(1, 12, *[1] * (t.dim() - 2)), t, torch.nan) if n != "parameters" else t
        for n, t in arguments.items()
    }
    out, state = attend(**poisoned, spec=spec, key_mask=mask, output_final_state=True, form="chunked", chunk_size=5)
    equal(state.count.expand(1).tolist(), [sum(real)], "real keys")
    equal(bool((out[~mask] == 0).all()), True, "padded rows are zero")
    if any(real):
        alone = {n: t[:, mask[0]] if n != "parameters" else t for n, t in arguments.items()}
        close(out[mask][None], attend(**alone, spec=spec)[0], "fp64", f"{real}")
