"""The statistics of a study: coverage, false winners, agreement with scipy, and what is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from scipy import stats

from termwise.statistics.intervals import MIN_DOCUMENTS, bootstrap, mean_over_seeds
from termwise.statistics.paired import compare, holm, pair


def scores(nats: np.ndarray, tokens: np.ndarray) -> dict:
    """nats (seeds, documents), tokens (documents,) as the mapping that `compare` takes."""
    return {
        s: {d: (float(x), int(n)) for d, (x, n) in enumerate(zip(row, tokens, strict=True))}
        for s, row in enumerate(nats)
    }


def simulated_study(
    rng: np.random.Generator, effects: list[float], num_seeds: int = 3, num_documents: int = 24
) -> dict:
    """Variants whose true held-out loss is 2 + effect; runs, documents and tokens all vary, lengths are skewed."""
    tokens = np.maximum(20, rng.lognormal(6, 1, num_documents)).round()
    hardness = rng.normal(2.0, 0.3, num_documents)
    study = {}
    for index, effect in enumerate(effects):
        run = rng.normal(0, 0.02, (num_seeds, 1))
        taste = rng.normal(0, 0.02, num_documents)
        noise = rng.normal(0, 1, (num_seeds, num_documents)) / np.sqrt(tokens)
        per_token = hardness + effect + run + taste + 0.3 * noise
        study["softmax" if index == 0 else f"v{index}"] = scores(per_token * tokens, tokens)
    return study


def test_the_difference_is_token_weighted_and_paired_by_seed_and_document():
    variant = {
        0: {"a": (10.0, 4), "b": (30.0, 16)},
        1: {"a": (12.0, 4), "b": (32.0, 16)},
        7: {"a": (1.0, 4), "b": (1.0, 16)},
    }
    baseline = {
        1: {"b": (31.0, 16), "a": (10.0, 4)},
        0: {"a": (11.0, 4), "b": (33.0, 16)},
        9: {"a": (0.0, 4), "b": (0.0, 16)},
    }
    paired = pair(variant, baseline)
    assert paired.seeds == (0, 1)
    assert paired.unpaired == (7, 9)
    np.testing.assert_allclose(paired.by_seed, [-4 / 20, 3 / 20])
    assert paired.difference == pytest.approx(-0.5 / 20)


@pytest.mark.parametrize("num_seeds", [2, 3, 5, 10])
@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
def test_the_interval_over_seeds_is_scipys_t_interval(num_seeds, level):
    values = np.random.default_rng(num_seeds).normal(0.1, 0.02, num_seeds)
    ours = mean_over_seeds(values.tolist(), level)
    theirs = stats.t.interval(level, num_seeds - 1, loc=values.mean(), scale=stats.sem(values))
    np.testing.assert_allclose((ours.low, ours.high), theirs, rtol=1e-12)
    assert (ours.level, ours.n) == (level, num_seeds)


def test_the_p_value_over_seeds_is_scipys_t_test():
    study = simulated_study(np.random.default_rng(3), [0.0, 0.004], num_seeds=5, num_documents=400)
    (comparison,) = compare(study, resamples=999)
    expected = stats.ttest_1samp(comparison.by_seed, 0).pvalue
    assert comparison.over_seeds.width > comparison.over_documents.width
    assert comparison.p_value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("sizes", ["equal", "skewed"])
def test_the_interval_over_documents_covers_the_truth_as_often_as_it_says(sizes):
    rng = np.random.default_rng(11)
    num_studies, num_documents, truth = 1200, 24, 0.05
    tokens = np.full(num_documents, 400.0) if sizes == "equal" else rng.lognormal(6, 1, num_documents).round()
    per_token = (
        truth
        + 0.02 * rng.standard_t(5, (num_studies, num_documents))
        + rng.normal(size=(num_studies, num_documents)) / np.sqrt(tokens)
    )
    intervals = [one.interval(0.9) for one in bootstrap(per_token * tokens, tokens, resamples=999, seed=1)]
    covered = np.mean([interval.low <= truth <= interval.high for interval in intervals])
    # three standard errors of 1200 studies are 2.6 %; at most 2 % lower is what 24 documents of skewed length cost
    assert 0.86 <= covered <= 0.93


def test_the_interval_over_seeds_covers_the_truth_as_often_as_it_says():
    values = np.random.default_rng(5).normal(0.3, 0.1, (4000, 3))
    intervals = [mean_over_seeds(row.tolist(), 0.95) for row in values]
    covered = np.mean([interval.low <= 0.3 <= interval.high for interval in intervals])
    assert abs(covered - 0.95) < 0.011


def test_equal_variants_rarely_give_a_false_winner():
    rng = np.random.default_rng(2025)
    winners = 0
    for _ in range(2000):
        study = simulated_study(rng, [0.0] * 6)
        winners += any(c.verdict in ("lower", "higher") for c in compare(study, resamples=399))
    assert winners / 2000 <= 0.06


def test_a_real_difference_is_found_with_its_sign():
    study = simulated_study(np.random.default_rng(1), [0.0, 0.6, -0.6, 0.0])
    verdicts = {c.variant: c.verdict for c in compare(study)}
    assert verdicts == {"v1": "higher", "v2": "lower", "v3": "no difference found"}


@settings(max_examples=60, deadline=None)
@given(
    seed=some.integers(0, 2**31),
    effects=some.lists(some.floats(-0.2, 0.2), min_size=1, max_size=6),
    num_seeds=some.integers(2, 6),
)
def test_a_verdict_is_the_wider_interval_excluding_zero(seed, effects, num_seeds):
    study = simulated_study(np.random.default_rng(seed), [0.0, *effects], num_seeds, num_documents=12)
    for c in compare(study, resamples=399):
        assert c.wider.width == max(c.over_seeds.width, c.over_documents.width)
        assert (c.verdict in ("lower", "higher")) == c.wider.excludes_zero
        assert c.wider.excludes_zero == (c.over_seeds.excludes_zero and c.over_documents.excludes_zero)
        assert (c.verdict == "lower") == (c.wider.high < 0)
        middle = [(interval.low + interval.high) / 2 for interval in (c.over_seeds, c.over_documents)]
        np.testing.assert_allclose(middle, c.difference, atol=1e-12)


def test_holm_by_hand():
    # 5 hypotheses at 5 %: limits 0.010, 0.0125, 0.0167, 0.025, 0.05; the third fails, so the last two are not asked
    answers = holm([0.02, 0.009, 0.0124, 0.9, 0.021])
    assert [rejected for rejected, _ in answers] == [False, True, True, False, False]
    np.testing.assert_allclose([1 - level for _, level in answers], [0.05 / 3, 0.01, 0.0125, 0.05 / 3, 0.05 / 3])


@settings(max_examples=100, deadline=None)
@given(p_values=some.lists(some.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_bonferroni_rejects_and_nothing_above_the_level(p_values):
    for p_value, (rejected, level) in zip(p_values, holm(p_values), strict=True):
        assert rejected or p_value > 0.05 / len(p_values)
        assert not rejected or p_value <= (1 - level) * (1 + 1e-9)
        assert level >= 0.95 - 1e-12


def test_one_seed_is_too_few_and_keeps_the_interval_over_documents():
    study = simulated_study(np.random.default_rng(4), [0.0, 1.0], num_seeds=1)
    (comparison,) = compare(study)
    assert comparison.verdict == "too few seeds"
    assert comparison.over_seeds is None
    assert comparison.wider is None
    assert comparison.over_documents.excludes_zero


def test_a_variant_without_a_common_seed_has_no_figure_and_no_verdict():
    study = simulated_study(np.random.default_rng(4), [0.0, 1.0, 0.2])
    study["v1"] = {}
    first, second = compare(study)
    assert (first.difference, first.verdict) == (None, "too few seeds")
    assert second.difference == pytest.approx(0.2, abs=0.1)


def test_too_few_documents_is_an_answer():
    study = simulated_study(np.random.default_rng(4), [0.0, 1.0], num_documents=MIN_DOCUMENTS - 1)
    (comparison,) = compare(study)
    assert (comparison.verdict, comparison.over_documents) == ("too few documents", None)
    assert comparison.over_seeds is not None


def test_the_same_variant_twice_differs_by_nothing():
    study = simulated_study(np.random.default_rng(4), [0.0])
    (comparison,) = compare({**study, "again": study["softmax"]})
    assert comparison.verdict == "no difference found"
    assert (comparison.over_documents.low, comparison.over_documents.high) == (0.0, 0.0)
    assert comparison.p_value == 1.0


def test_the_order_of_variants_and_documents_changes_nothing():
    study = simulated_study(np.random.default_rng(8), [0.0, 0.02, -0.03])
    backwards = {
        name: {seed: dict(reversed(run.items())) for seed, run in runs.items()}
        for name, runs in reversed(study.items())
    }
    forward = {c.variant: dataclasses.astuple(c) for c in compare(study, seed=3)}
    assert forward == {c.variant: dataclasses.astuple(c) for c in compare(backwards, seed=3)}
    other = {c.variant: dataclasses.astuple(c) for c in compare(study, seed=4)}
    assert forward != other


def test_blocks_of_resamples_equal_one_block():
    # 30,000 documents need several blocks; the interval must agree with the normal one
    rng = np.random.default_rng(0)
    tokens = np.full(30_000, 10.0)
    nats = rng.normal(0.1, 1.0, (1, 30_000)) * tokens
    interval = bootstrap(nats, tokens, resamples=199, seed=0)[0].interval(0.9)
    half = 1.645 / np.sqrt(30_000)
    assert interval.width / 2 == pytest.approx(half, rel=0.15)
    assert interval.low < 0.1 + half
    assert interval.high > 0.1 - half


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({0: {"a": (1.0, 2)}}, "document 'b'"),
        ({0: {"a": (1.0, 3), "b": (1.0, 2)}}, "same number"),
        ({0: {"a": (float("nan"), 2), "b": (1.0, 2)}}, "nan nats"),
        ({0: {"a": (1.0, 2), "b": (1.0, 2), "c": (1.0, 2)}}, "document 'c'"),
    ],
)
def test_what_is_not_comparable_is_refused_by_name(broken, message):
    good = {0: {"a": (1.0, 2), "b": (1.0, 2)}}
    with pytest.raises(ValueError, match=message):
        compare({"softmax": good, "v": broken})


def test_a_missing_baseline_a_bad_level_and_too_few_resamples_are_refused():
    study = simulated_study(np.random.default_rng(0), [0.0, 0.1])
    with pytest.raises(ValueError, match="baseline 'exp' has no scores"):
        compare(study, baseline="exp")
    with pytest.raises(ValueError, match=r"level 1\.5"):
        compare(study, level=1.5)
    with pytest.raises(ValueError, match="give more resamples"):
        compare(study, resamples=9)
