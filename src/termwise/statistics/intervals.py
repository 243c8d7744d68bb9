"""Confidence intervals of a mean: Student's t over seeds, the studentized bootstrap over documents.

Axes: V compared variants, D documents, B bootstrap resamples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MIN_DOCUMENTS = 8
"""Fewer documents give no bootstrap interval: with 8, one resample in two million holds a single document."""

OVER_SEEDS = "t over seeds"
OVER_DOCUMENTS = "bootstrap over documents"
OVER_REPEATS = "t over repeats, from percentiles"
T_OVER_TEXTS = "t over texts"
BOOTSTRAP_OVER_TEXTS = "bootstrap over texts"


@dataclass(frozen=True)
class Interval:
    """A confidence interval of a mean, with the level it was computed at and what it was taken over.

    >>> Interval(low=-0.3, high=-0.1, level=0.95, n=3, method="t over seeds").excludes_zero
    True
    """

    low: float
    high: float
    level: float
    n: int
    method: str

    @property
    def width(self) -> float:
        """high - low."""
        return self.high - self.low

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies strictly outside."""
        return self.low > 0 or self.high < 0


def mean_over_seeds(values: Sequence[float], level: float = 0.95) -> Interval | None:
    """The t interval of a mean over seeds; None below two seeds.

        mean +- t_{S-1, (1+level)/2} s / sqrt(S),   s the standard deviation with S - 1

    Valid for seeds drawn independently and differences near normal. Source: Student 1908,
    "The probable error of a mean".

    >>> interval = mean_over_seeds([1.0, 2.0, 3.0])
    >>> round(interval.low, 3), round(interval.high, 3)
    (-0.484, 4.484)
    """
    from scipy import special

    check_level(level)
    if len(values) < 2:
        return None
    half = special.stdtrit(len(values) - 1, (1 + level) / 2) * np.std(values, ddof=1) / np.sqrt(len(values))
    return _around(float(np.mean(values)), half, level, len(values), OVER_SEEDS)


def _around(center: float, half: float, level: float, n: int, method: str) -> Interval:
    return Interval(float(center - half), float(center + half), level, n, method)


def around_median(median: float, low: float, high: float, n: int, level: float = 0.95) -> Interval | None:
    """The interval of a median of which only percentiles 10 and 90 (interpolated) of `n` values are known; None below two.

        median +- t_{n-1, (1+level)/2} sqrt(pi / 2) s / sqrt(n),   s = (high - low) / E_n

    E_n is the distance expected between the percentiles of n standard normal values, their order statistics by Blom's formula.
    The percentiles themselves are no interval: of two equal things measured 5 times each, they call one faster in 10 % of cases,
    of 3 times in 32 %. Sources: Student 1908; Blom 1958, "Statistical Estimates and Transformed Beta-Variables".

    >>> around_median(1.0, 0.9, 1.1, n=5).width > 0.2
    True
    """
    from scipy import special

    check_level(level)
    if n < 2:
        return None
    place = 0.1 * (n - 1)
    first, second = (special.ndtri((rank + 1 - 0.375) / (n + 0.25)) for rank in (int(place), int(place) + 1))
    expected = -2 * (first + (second - first) * (place - int(place)))
    half = special.stdtrit(n - 1, (1 + level) / 2) * np.sqrt(np.pi / 2) * (high - low) / expected / np.sqrt(n)
    return _around(median, float(half), level, n, OVER_REPEATS)


def seed_p_value(values: np.ndarray) -> float:
    """Two-sided p-value of the t test that belongs to `mean_over_seeds`; 1 below two seeds."""
    from scipy import special

    if len(values) < 2 or values.mean() == 0:
        return 1.0
    spread = np.std(values, ddof=1) / np.sqrt(len(values))
    if spread == 0:
        return 0.0
    return float(2 * special.stdtr(len(values) - 1, -abs(values.mean() / spread)))


@dataclass(frozen=True)
class DocumentBootstrap:
    """The symmetric bootstrap-t over documents of one paired difference; `bootstrap` makes it.

        r = sum_d x_d / sum_d n_d,  x_d the mean over seeds of the nats difference,  n_d the tokens of document d
        se^2 = D/(D-1) sum_d (x_d - r n_d)^2 / (sum_d n_d)^2                     (linearised ratio)
        |t*_b| = |r*_b - r| / se*_b   over resamples b of whole documents        (`statistics`, sorted)
        interval = r +- se |t*|_(k),  k = ceil(level (B + 1));   p = (1 + #{|t*| >= |r|/se}) / (B + 1)

    Whole documents are drawn, so tokens of one document may depend on each other. The studentized form keeps its
    coverage where few long documents carry most tokens; percentile intervals do not. Sources: Efron 1979; Hall 1988,
    "On symmetric bootstrap confidence intervals"; Cochran 1977, chapter 6 (ratio).
    """

    estimate: float
    error: float
    num_documents: int
    statistics: np.ndarray

    def interval(self, level: float = 0.95) -> Interval | None:
        """The interval at `level`; None with fewer than MIN_DOCUMENTS documents or where no bound exists."""
        check_level(level)
        rank = int(np.ceil(level * (len(self.statistics) + 1) - 1e-9))
        if rank > len(self.statistics):
            raise ValueError(
                f"level {level:.6g} with {len(self.statistics)} resamples; allowed are levels up to "
                f"{1 - 1 / (len(self.statistics) + 1):.6g}; give more resamples"
            )
        critical = self.statistics[rank - 1]
        if self.num_documents < MIN_DOCUMENTS or not np.isfinite(critical):
            return None
        return _around(self.estimate, critical * self.error, level, self.num_documents, OVER_DOCUMENTS)

    @property
    def p_value(self) -> float:
        """The smallest 1 - level at which the interval excludes 0; 1 where there is no interval."""
        if self.num_documents < MIN_DOCUMENTS or self.estimate == 0:
            return 1.0
        observed = abs(self.estimate) / self.error if self.error > 0 else np.inf
        extreme = len(self.statistics) - int(np.searchsorted(self.statistics, observed, side="left"))
        return (1 + extreme) / (len(self.statistics) + 1)


def bootstrap(nats: np.ndarray, tokens: np.ndarray, resamples: int = 9999, seed: int = 0) -> list[DocumentBootstrap]:
    """Bootstrap documents for V paired differences at once: nats (V, D) summed differences, tokens (D,).

    All rows see the same resamples. The same seed gives the same intervals. Memory stays below about 100 MB.

    >>> x = np.linspace(-1, 3, 20)[None]
    >>> bootstrap(x, np.full(20, 10.0), seed=1)[0].interval(0.95).excludes_zero
    True
    """
    num_variants, num_documents = nats.shape
    if num_variants == 0:
        return []
    scale = tokens.mean()
    x, n = nats / scale, tokens / scale
    columns = np.concatenate([n[None], n[None] ** 2, x, x**2, x * n]).T
    generator = np.random.default_rng(seed)
    rows = max(1, 2_000_000 // num_documents)
    parts = [
        _resampled(generator, min(rows, resamples - done), columns, num_variants) for done in range(0, resamples, rows)
    ]
    ratio, error = (np.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True))
    estimate, observed_error = _ratio_and_error(columns.sum(axis=0)[None], num_variants, num_documents)
    # differences below rounding are none: sums in another order are no evidence
    rounding = 1e-12 * (np.abs(x).max(axis=1, keepdims=True) + 1e-300)
    distance = np.abs(ratio - estimate)
    distance[distance <= rounding] = 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        statistics = np.where(distance == 0, 0.0, distance / np.where(error <= rounding, 0.0, error))
    statistics.sort(axis=1)
    observed_error[observed_error <= rounding] = 0.0
    return [
        DocumentBootstrap(float(estimate[v, 0]), float(observed_error[v, 0]), num_documents, statistics[v])
        for v in range(num_variants)
    ]


def _resampled(
    generator: np.random.Generator, rows: int, columns: np.ndarray, num_variants: int
) -> tuple[np.ndarray, np.ndarray]:
    """Ratio and its error (V, rows) of `rows` resamples of whole documents."""
    num_documents = len(columns)
    drawn = generator.integers(0, num_documents, (rows, num_documents), dtype=np.int32)
    flat = (drawn + np.arange(rows, dtype=np.int64)[:, None] * num_documents).ravel()
    counts = np.bincount(flat, minlength=rows * num_documents).reshape(rows, num_documents)
    return _ratio_and_error(counts @ columns, num_variants, num_documents)


def _ratio_and_error(sums: np.ndarray, num_variants: int, num_documents: int) -> tuple[np.ndarray, np.ndarray]:
    n, nn = sums[:, 0], sums[:, 1]
    x, xx, xn = np.split(sums[:, 2:].T, 3)
    ratio = x / n
    residual = np.maximum(xx - 2 * ratio * xn + ratio**2 * nn, 0.0)
    return ratio, np.sqrt(residual * num_documents / max(num_documents - 1, 1)) / n


def check_level(level: float) -> None:
    """ValueError unless 0 < level < 1."""
    if not 0 < level < 1:
        raise ValueError(f"level {level!r}; allowed are numbers between 0 and 1; 0.95 is usual")


def over_texts(differences: Sequence[float], level: float = 0.95, seed: int = 0) -> Interval | None:
    """The interval of a mean over texts of equal length: the wider of Student's t and the bootstrap.

    The t interval alone below MIN_DOCUMENTS texts or where the bootstrap has no bound; None below two texts.

    >>> over_texts([0.1, 0.2, 0.3]).method
    't over texts'
    """
    student = mean_over_seeds(differences, level)
    if student is None:
        return None
    student = dataclasses.replace(student, method=T_OVER_TEXTS)
    values = np.asarray(differences, dtype=np.float64)
    drawn = bootstrap(values[None], np.ones(len(values)), seed=seed)[0].interval(level)
    if drawn is None:
        return student
    return max(student, dataclasses.replace(drawn, method=BOOTSTRAP_OVER_TEXTS), key=lambda interval: interval.width)
