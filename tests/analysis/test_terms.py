"""Every figure of a layer against a loop over heads, queries and keys, and its reductions against the algebra."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from termwise.analysis import terms
from termwise.analysis.terms import CENTERS, measure_terms, num_distances
from termwise.attention.forms import attend
from termwise.attention.kernels import Polynomial
from termwise.attention.spec import AttentionSpec, Local

T, G, SHARED, D, E, P = 11, 2, 2, 3, 2, 4
LOCAL = Local(3, 1)


@pytest.fixture
def qkv():
    torch.manual_seed(0)
    query, key = torch.randn(T, G * SHARED, D).double() * 2, torch.randn(T, G, D).double() * 2
    return query, key, torch.randn(T, G, E).double()


def by_loop(query, key, value, scale, is_causal, local):
    """Sums over the queries by the definitions in LayerTerms, one head, one query and one key at a time."""
    heads = query.shape[1]
    kinds = 1 + (local is not None)
    shape = (heads, 2, kinds, P + 1)
    out = {
        name: np.zeros(heads) for name in ("mean", "spread", "above", "below", "first", "top_exact", "norm", "square")
    }
    out |= {name: np.zeros(shape) for name in ("variation", "error_square", "negative", "vanishing", "top")}
    out |= {"magnitude": np.zeros((heads, 2, P + 1)), "distances": np.zeros((heads, 32))}
    for h in range(heads):
        for t in range(T):
            seen = range(t + 1) if is_causal else range(T)
            x = np.array([scale * float(query[t, h] @ key[s, h // SHARED]) for s in seen])
            v = np.array([value[s, h // SHARED].numpy() for s in seen])
            p = np.exp(x) / np.exp(x).sum()
            o = p @ v
            out["mean"][h] += x.mean()
            out["spread"][h] += x.std()
            out["above"][h] += x.max() - x.mean()
            out["below"][h] += x.mean() - x.min()
            out["first"][h] += p[0] if t > 0 else 0
            out["top_exact"][h] += p.max()
            out["norm"][h] += np.linalg.norm(o)
            out["square"][h] += o @ o
            for s in seen:
                if s > 0:
                    out["distances"][h, 0 if s == t else 1 + int(math.log2(abs(t - s)))] += p[s]
            for c, center in enumerate(CENTERS):
                middle = x.mean() if center == "mean" else 0.0
                for n in range(P + 1):
                    term = np.exp(middle) * (x - middle) ** n / math.factorial(n) / np.exp(x).sum()
                    out["magnitude"][h, c, n] += np.linalg.norm(term @ v)
                for kind in range(kinds):
                    far = np.array([kind == 0 or (t - s >= local.window and s >= local.sinks) for s in seen])
                    around = x[far].mean() if center == "mean" and far.any() else 0.0
                    for top in range(P + 1):
                        series = sum((x - around) ** n / math.factorial(n) for n in range(top + 1)) * np.exp(around)
                        w = np.where(far, series, np.exp(x))
                        floor = 1e-6 * np.where(far, np.exp(around), np.exp(x)).sum()
                        total = w.sum()
                        if abs(total) < floor:
                            out["vanishing"][h, c, kind, top] += 1
                            total = -floor if total < 0 else floor
                        w = w / total
                        place = h, c, kind, top
                        out["variation"][place] += np.abs(w - p).sum() / 2
                        out["error_square"][place] += ((w @ v - o) ** 2).sum()
                        out["negative"][place] += np.abs(w[w < 0]).sum() / np.abs(w).sum()
                        out["top"][place] += w[p.argmax()]
    return out


@pytest.mark.parametrize(("is_causal", "local"), [(True, LOCAL), (True, None), (False, None)])
@pytest.mark.parametrize("block", [20, 10_000])
def test_every_figure_is_its_definition(qkv, is_causal, local, block, monkeypatch):
    monkeypatch.setattr(terms, "BLOCK_SCORES", block * G * SHARED)
    found = measure_terms(*qkv, 0.5, is_causal=is_causal, top_order=P, local=local)
    expected = by_loop(*qkv, 0.5, is_causal, local)
    names = {"norm": "output_norm", "square": "output_square"}
    for name, sums in expected.items():
        got = getattr(found, names.get(name, name)).numpy()
        np.testing.assert_allclose(got, sums, rtol=1e-9, atol=1e-9, err_msg=name)
    assert found.num_queries.tolist() == [T] * (G * SHARED)
    assert float(found.distances[:, num_distances(T) :].abs().sum()) == 0


def test_means_are_over_the_queries_of_a_kv_head(qkv):
    sums = measure_terms(*qkv, 0.5, is_causal=True, top_order=P, local=LOCAL)
    means = sums.means(G)
    expected = by_loop(*qkv, 0.5, True, LOCAL)
    for g in range(G):
        of = slice(g * SHARED, (g + 1) * SHARED)
        assert float(means["mean"][g]) == pytest.approx(expected["mean"][of].sum() / (SHARED * T))
        assert float(means["first"][g]) == pytest.approx(expected["first"][of].sum() / (SHARED * (T - 1)))
        error = expected["error_square"][of].sum(axis=0) / expected["square"][of].sum()
        np.testing.assert_allclose(means["error"][g].numpy(), np.sqrt(error), rtol=1e-9)
        magnitude = expected["magnitude"][of].sum(axis=0) / expected["norm"][of].sum()
        np.testing.assert_allclose(means["magnitude"][g].numpy(), magnitude, rtol=1e-9)
    first_weight = torch.tensor([expected["first"][g * SHARED :][:SHARED].sum() + SHARED for g in range(G)]) / (
        SHARED * T
    )
    torch.testing.assert_close(first_weight.double() + means["distances"].sum(dim=-1), torch.ones(G).double())


@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize("local", [None, LOCAL])
def test_the_reduced_outputs_are_those_of_the_algebra(qkv, center, local):
    query, key, value = qkv
    exact, _ = attend(query[None], key[None], value[None], AttentionSpec(), 0.5)
    means = measure_terms(*qkv, 0.5, is_causal=True, top_order=P, local=LOCAL).means(G)
    for top in range(P + 1):
        kernel = Polynomial(tuple(range(top + 1)), center=center, allow_negative=True)
        out, _ = attend(query[None], key[None], value[None], AttentionSpec(kernel, local=local), 0.5, form="parallel")
        error = (out - exact).square().sum(dim=(0, 1, 3)).view(G, SHARED).sum(dim=1)
        error = (error / exact.square().sum(dim=(0, 1, 3)).view(G, SHARED).sum(dim=1)).sqrt()
        got = means["error"][:, CENTERS.index(center), int(local is not None), top]
        torch.testing.assert_close(got, error, rtol=1e-9, atol=1e-12)


def test_magnitudes_of_all_orders_add_up_to_the_output_when_nothing_cancels():
    """One key: the mean is the score itself, order 0 is everything."""
    one = torch.ones(1, 1, 2)
    means = measure_terms(one, one, one, 1.0, is_causal=True, top_order=2, local=None).means(1)
    assert means["magnitude"][0, CENTERS.index("mean")].tolist() == pytest.approx([1, 0, 0])
    x = 2.0
    around_zero = [x**n / math.factorial(n) / math.exp(x) for n in range(3)]
    assert means["magnitude"][0, CENTERS.index("zero")].tolist() == pytest.approx(around_zero)


def test_large_scores_in_single_precision_stay_finite():
    torch.manual_seed(1)
    query, key, value = torch.randn(40, 2, 8) * 12, torch.randn(40, 1, 8) * 12, torch.randn(40, 1, 8)
    means = measure_terms(query, key, value, 1.0, is_causal=True, top_order=8, local=LOCAL).means(1)
    assert all(bool(torch.isfinite(figure).all()) for figure in means.values())
