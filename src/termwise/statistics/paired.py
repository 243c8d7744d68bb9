"""Paired comparison of variants on the same held-out documents: differences, two intervals, Holm, verdicts.

Axes: S seeds, D documents. The intervals themselves are in `intervals.py`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from termwise.statistics.intervals import (
    DocumentBootstrap,
    Interval,
    bootstrap,
    check_level,
    mean_over_seeds,
    seed_p_value,
)

Verdict = Literal["lower", "higher", "no difference found", "too few seeds", "too few documents"]
Scores = Mapping[int, Mapping[Any, tuple[float, int]]]
"""seed -> document -> (sum of nats, number of tokens) of one variant."""


@dataclass(frozen=True)
class Pairs:
    """Two variants on the same seeds and documents: what every interval is computed from.

        nats[s, d] = nats of the variant on document d after training with seed s, minus those of the baseline

    `unpaired` are the seeds that only one of the two has; they are left out.
    """

    seeds: tuple[int, ...]
    documents: tuple[Hashable, ...]
    nats: np.ndarray
    tokens: np.ndarray
    unpaired: tuple[int, ...] = ()

    @property
    def by_seed(self) -> np.ndarray:
        """d_s = sum_d nats[s, d] / sum_d tokens[d], the token-weighted difference of each seed, nats/token."""
        return self.nats.sum(axis=1) / self.tokens.sum()

    @property
    def difference(self) -> float | None:
        """Mean over seeds of d_s; None without a seed."""
        return float(self.by_seed.mean()) if self.seeds else None


@dataclass(frozen=True)
class Comparison:
    """One variant against the baseline: nats/token, below 0 where the variant is better.

    `level` is the Holm level both intervals stand at (see `compare`); `p_value` the larger of the two.
    """

    variant: str
    baseline: str
    difference: float | None
    by_seed: tuple[float, ...]
    over_seeds: Interval | None
    over_documents: Interval | None
    level: float
    p_value: float
    verdict: Verdict
    num_documents: int
    unpaired_seeds: tuple[int, ...] = ()

    @property
    def wider(self) -> Interval | None:
        """The interval the verdict rests on: the wider of the two; None unless both exist."""
        if self.over_seeds is None or self.over_documents is None:
            return None
        return max(self.over_seeds, self.over_documents, key=lambda interval: interval.width)


def pair(variant: Scores, baseline: Scores) -> Pairs:
    """Line up two variants over their common seeds.

    Differences are paired: seed with seed (same data order, same initial weights) and document with document.
    ValueError when documents or their token counts differ between any two runs, or a figure is not finite.

    >>> pair({0: {"a": (3.0, 2)}}, {0: {"a": (4.0, 2)}}).difference
    -0.5
    """
    seeds = tuple(sorted(variant.keys() & baseline.keys()))
    every = [*variant.values(), *baseline.values()]
    tokens_of = {document: tokens for document, (_, tokens) in every[0].items()} if every else {}
    for scores in (variant, baseline):
        for seed, run in scores.items():
            _check_run(seed, run, tokens_of)
    documents = tuple(sorted(tokens_of, key=str))
    nats = np.array(
        [[variant[seed][d][0] - baseline[seed][d][0] for d in documents] for seed in seeds], dtype=np.float64
    ).reshape(len(seeds), len(documents))
    tokens = np.array([tokens_of[d] for d in documents], dtype=np.float64)
    return Pairs(seeds, documents, nats, tokens, tuple(sorted(variant.keys() ^ baseline.keys())))


def _check_run(seed: int, run: Mapping[Any, tuple[float, int]], tokens_of: Mapping[Any, int]) -> None:
    if run.keys() != tokens_of.keys():
        odd = sorted(map(str, run.keys() ^ tokens_of.keys()))[0]
        raise ValueError(
            f"seed {seed}: document {odd!r} was scored in one run and not in another; a paired comparison needs the "
            f"same held-out documents everywhere; score all runs on the same text"
        )
    for document, (nats, tokens) in run.items():
        if tokens != tokens_of[document] or tokens < 1:
            raise ValueError(
                f"seed {seed}: document {document!r} has {tokens} tokens here and {tokens_of[document]} in another "
                f"run; allowed is the same number, at least 1; score all runs with the same tokenizer and context"
            )
        if not np.isfinite(nats):
            raise ValueError(f"seed {seed}: document {document!r} has {nats} nats; leave out the runs that failed")


def holm(p_values: Sequence[float], level: float = 0.95) -> list[tuple[bool, float]]:
    """Holm's step-down test of m hypotheses: for each whether it is rejected, and the level its interval stands at.

        p_(1) <= ... <= p_(m);  step k = 1, 2, ... rejects while p_(k) <= (1 - level) / (m - k + 1)

    The level is 1 - (1 - level) / (m - k + 1) of the step that rejected, or of the step where the test stopped, so an
    interval excludes 0 exactly where its hypothesis is rejected. A wrong rejection anywhere has probability at most
    1 - level. Each interval covers at its own (stricter) level; for joint coverage use 1 - (1 - level) / m for all
    (Bonferroni). Source: Holm 1979, "A simple sequentially rejective multiple test procedure".

    >>> [rejected for rejected, _ in holm([0.01, 0.04, 0.03])]
    [True, False, False]
    """
    check_level(level)
    answers: list[tuple[bool, float]] = [(False, level)] * len(p_values)
    is_open, left = True, len(p_values)
    for index in sorted(range(len(p_values)), key=lambda i: p_values[i]):
        # the tolerance only undoes rounding of 1 - level
        is_open = is_open and p_values[index] <= (1 - level) / left * (1 + 1e-9)
        answers[index] = (is_open, 1 - (1 - level) / left)
        left -= int(is_open)
    return answers


def compare(
    scores: Mapping[str, Scores], baseline: str = "softmax", level: float = 0.95, resamples: int = 9999, seed: int = 0
) -> list[Comparison]:
    """Compare every variant with the baseline, on the same seeds and documents, Holm-corrected over the variants.

        difference = mean over seeds of sum_d (variant_sd - baseline_sd) / sum_d tokens_d          nats/token

    Two intervals, both symmetric about the difference: t over seeds (would another seed say the same?) and bootstrap
    over documents (would another text?). The verdict rests on the wider, which excludes 0 exactly when both do; its
    p-value is the larger of the two. Holm over all variants given, those without a verdict included. Below two common
    seeds the answer is "too few seeds" (the interval over documents is still given); below MIN_DOCUMENTS documents, or
    where the bootstrap has no bound, "too few documents": cut a text held out as one block into blocks first.
    ValueError without the baseline or when documents do not match.

    >>> base = {s: {d: (10.0 + 0.01 * s * d, 5) for d in range(9)} for s in range(3)}
    >>> worse = {s: {d: (nats + 1.0 + 0.1 * d, n) for d, (nats, n) in run.items()} for s, run in base.items()}
    >>> compare({"softmax": base, "elu1": worse})[0].verdict
    'higher'
    """
    if baseline not in scores:
        raise ValueError(
            f"baseline {baseline!r} has no scores; given are {sorted(scores)}; add its runs or name another"
        )
    return compared(
        {(name, baseline): pair(scores[name], scores[baseline]) for name in scores if name != baseline},
        level,
        resamples,
        seed,
    )


def compared(
    pairs: Mapping[tuple[str, str], Pairs], level: float = 0.95, resamples: int = 9999, seed: int = 0
) -> list[Comparison]:
    """Every (variant, baseline) as `compare` does, Holm-corrected over all of them. They share their documents."""
    measured = [names for names, paired in pairs.items() if paired.seeds]
    documents: dict[tuple[str, str], DocumentBootstrap] = {}
    if measured:
        nats = np.stack([pairs[names].nats.mean(axis=0) for names in measured])
        documents = dict(zip(measured, bootstrap(nats, pairs[measured[0]].tokens, resamples, seed), strict=True))
    p_values = [
        max(seed_p_value(paired.by_seed), documents[names].p_value) if names in documents else 1.0
        for names, paired in pairs.items()
    ]
    return [
        _comparison(*names, paired, documents.get(names), p_value, is_rejected, at)
        for (names, paired), p_value, (is_rejected, at) in zip(
            pairs.items(), p_values, holm(p_values, level), strict=True
        )
    ]


def _comparison(
    name: str,
    baseline: str,
    paired: Pairs,
    documents: DocumentBootstrap | None,
    p_value: float,
    is_rejected: bool,
    level: float,
) -> Comparison:
    over_documents = documents.interval(level) if documents else None
    verdict: Verdict = "no difference found"
    if len(paired.seeds) < 2:
        verdict = "too few seeds"
    elif over_documents is None:
        verdict = "too few documents"
    elif is_rejected:
        verdict = "lower" if paired.by_seed.mean() < 0 else "higher"
    return Comparison(
        variant=name,
        baseline=baseline,
        difference=paired.difference,
        by_seed=tuple(float(value) for value in paired.by_seed),
        over_seeds=mean_over_seeds(paired.by_seed.tolist(), level),
        over_documents=over_documents,
        level=level,
        p_value=p_value,
        verdict=verdict,
        num_documents=len(paired.documents),
        unpaired_seeds=paired.unpaired,
    )
