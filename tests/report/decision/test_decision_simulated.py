"""Studies of variants that are all the same: how often the whole way from scores to verdicts finds a winner."""

from __future__ import annotations

import numpy as np
import pytest
from planted_runs import Planted, entry

from termwise.report.decision import case
from termwise.report.decision.limits import Limits
from termwise.report.decision.rules import Answer, Outcome
from termwise.report.read import Reading
from termwise.results import Record
from termwise.statistics.paired import compare
from termwise.study.measures import _records_of_comparison

NUM_STUDIES, NUM_VARIANTS, NUM_SEEDS, NUM_DOCUMENTS, NUM_REPEATS = 2000, 3, 3, 16, 3
NAMES = tuple(f"v{number}" for number in range(NUM_VARIANTS))
CONTEXT = 256
pytestmark = pytest.mark.slow


def scores(rng: np.random.Generator) -> dict:
    """The same model under several names: other seeds, other noise, no other loss."""
    tokens = np.maximum(20, rng.lognormal(6, 1, NUM_DOCUMENTS)).round()
    hardness = rng.normal(2.0, 0.3, NUM_DOCUMENTS)
    found = {}
    for name in ("softmax", *NAMES):
        run, taste = rng.normal(0, 0.02, (NUM_SEEDS, 1)), rng.normal(0, 0.02, NUM_DOCUMENTS)
        noise = 0.3 * rng.normal(0, 1, (NUM_SEEDS, NUM_DOCUMENTS)) / np.sqrt(tokens)
        nats = (hardness + run + taste + noise) * tokens
        found[name] = {
            s: {str(d): (float(nats[s, d]), int(tokens[d])) for d in range(NUM_DOCUMENTS)} for s in range(NUM_SEEDS)
        }
    return found


def times(rng: np.random.Generator) -> dict[str, tuple[float, float, float]]:
    """Baseline over candidate in a few interleaved rounds of equal speed: median, percentiles 10 and 90."""
    ratios = np.exp(0.05 * rng.standard_t(4, (NUM_VARIANTS, NUM_REPEATS)))
    return dict(zip(NAMES, np.quantile(ratios, (0.5, 0.1, 0.9), axis=1).T.tolist(), strict=True))


@pytest.fixture
def weigh(tmp_path, monkeypatch):
    """The verdicts on a study and a benchmark of these records, as if they had been read from disk."""
    settings = {"variants": [entry(name) for name in ("softmax", *NAMES)], "seeds": [0, 1, 2], "context": CONTEXT}
    study = Planted(tmp_path / "study", "study", settings).folder
    bench = Planted(tmp_path / "bench", "bench", {"variants": list(NAMES)}).folder
    bench.update(variants=[{"name": name, "short_name": name} for name in ("sdpa", *NAMES)])

    def verdicts(of_study, of_bench, limits):
        found = {"study": Reading(study, tuple(of_study), ()), "bench": Reading(bench, tuple(of_bench), ())}
        monkeypatch.setattr(case, "read", lambda folder: found[folder])
        return case.gather(["study", "bench"], limits).verdicts

    return verdicts


def study_records(rng: np.random.Generator) -> list[Record]:
    found = [record for one in compare(scores(rng), resamples=199) for record in _records_of_comparison("r", one)]
    for name in ("softmax", *NAMES):
        subject = {"variant": name, "length": CONTEXT}
        found.append(Record(run_id="r", kind="memory", subject=subject, metric="state", value=1000, unit="B"))
    return found


def bench_records(rng: np.random.Generator) -> list[Record]:
    found = []
    for name, (middle, low, high) in times(rng).items():
        subject = {"variant": name, "measure": "decode", "length": CONTEXT}
        common = {"run_id": "r", "kind": "speed", "subject": subject, "n": NUM_REPEATS}
        found.append(Record(metric="decode", value=0.001 / middle, unit="s/token", **common))
        found.append(Record(metric="decode_ratio", value=middle, low=low, high=high, level=0.8, unit="1", **common))
    return found


def test_equal_variants_rarely_win_and_never_by_having_been_one_of_many(weigh):
    rng = np.random.default_rng(5)
    limits = Limits(accuracy=0.2, machine="EPYC")
    winners = lower = recommended = looked = 0
    for _ in range(NUM_STUDIES):
        verdicts = weigh(study_records(rng), bench_records(rng), limits)
        outcomes = [one.decision.outcomes for one in verdicts]
        looked += sum(found["latency"] is not Outcome.MISSING for found in outcomes)
        is_lower = any(found["accuracy"] is Outcome.BETTER for found in outcomes)
        is_recommended = any(one.decision.answer in (Answer.ADOPT, Answer.CONDITIONS) for one in verdicts)
        lower, recommended = lower + is_lower, recommended + is_recommended
        winners += is_lower or is_recommended
    # Every variant was weighed with its time, and noise in the time alone is enough for some to look faster.
    assert looked == NUM_STUDIES * NUM_VARIANTS and recommended > 0
    assert winners / NUM_STUDIES <= 0.06, (winners, lower, recommended)
