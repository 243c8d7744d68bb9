"""Which intervals are evidence: those at the verdict's own level or above, over enough repeats, texts, seeds or documents."""

from __future__ import annotations

import json

import pytest
from planted_runs import CONTEXT, bench, convert, inspect, plan, spec, study, verify

from termwise.report.decision.case import gather
from termwise.report.decision.figures import LEAST, LEVEL, Figure, as_evidence
from termwise.report.decision.gathering.pairing import difference_of_texts
from termwise.report.decision.limits import Limits
from termwise.report.decision.rules import Answer
from termwise.report.decision_page import wording
from termwise.report.words import words

LIMITS = Limits(context=CONTEXT, machine="EPYC")


def rewritten(folder, metric, **fields):
    """Every record of a metric says something else."""
    path = folder / "records.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    told = [record | (fields if record["metric"] == metric else {}) for record in records]
    path.write_text("".join(json.dumps(record) + "\n" for record in told))
    return folder


def adopted(tmp_path):
    """A conversion with its benchmark and its verification, all of which keep every limit."""
    made = convert(tmp_path / "c")
    return [made, bench(tmp_path / "b", str(made)), verify(tmp_path / "v", made)]


def first(folders, limits=LIMITS):
    return gather(folders, limits).verdicts[0]


NARROW = {"low": 0.0099, "high": 0.0101, "value": 0.01}


@pytest.mark.parametrize("level", [0.1, 0.8, 0.9, 0.949, None])
def test_an_interval_of_a_lower_level_is_no_evidence_and_says_so(tmp_path, level):
    folders = adopted(tmp_path)
    assert first(folders).decision.answer is Answer.ADOPT
    rewritten(folders[0], "difference", level=level, **NARROW)
    found = first(folders)
    change = found.evidence.accuracy.change
    assert found.decision.answer is Answer.OPEN and found.decision.reason == "accuracy_open"
    assert change.value == 0.01 and not change.has_interval and change.why == "decision.why.other_level"
    said = {lang: wording.why(change, words(lang)) for lang in ("en", "ja")}
    if level is None:
        assert "does not say at which level" in said["en"] and "示されていない" in said["ja"]
    else:
        percent = words("en").level(level)
        assert (
            said["en"] == f"its interval stands at {percent}, which is no evidence: {words('en').level(0.95)} is needed"
        )
        assert "根拠に使用できない" in said["ja"]


@pytest.mark.parametrize("level", [0.95, 0.975, 0.99])
def test_a_higher_level_as_a_correction_asks_for_is_evidence(tmp_path, level):
    folder = rewritten(study(tmp_path / "s", {"elu1": (-0.02, 0.02)}), "verdict", level=level)
    assert first([folder], Limits()).evidence.accuracy.change.has_interval


def test_the_level_counts_in_every_run(tmp_path):
    about = {
        "s": rewritten(study(tmp_path / "s", {"elu1": (-0.02, 0.02)}), "verdict", level=0.1),
        "p": rewritten(plan(tmp_path / "p"), "loss_rise", level=0.1),
        "i": rewritten(inspect(tmp_path / "i"), "rise", level=0.1),
    }
    for folder in about.values():
        case = gather([folder], Limits())
        assert {one.evidence.accuracy.change.why for one in case.verdicts} == {"decision.why.other_level"}
        heads = [one for one in case.components if one.kind in ("head", "layer")]
        assert not any(one.recommendation in ("keep", "cut") for one in heads)
    gains = gather([rewritten(plan(tmp_path / "g"), "gain", level=0.1)], LIMITS)
    assert {one.evidence.slots.why for one in gains.verdicts} == {"decision.why.other_level"}
    assert {one.recommendation for one in gains.components if one.kind == "sums"} == {"open"}


def test_the_percentiles_of_a_benchmark_are_those_that_are_expected(tmp_path):
    folders = adopted(tmp_path)
    rewritten(folders[1], "step_ratio", level=0.1)
    change = first(folders).evidence.latency.change
    assert not change.has_interval and dict(change.fields) == {"level": 0.1, "needed": 0.8}
    assert first(folders).decision.answer is Answer.CONDITIONS and first(folders).decision.reason == "bench"


@pytest.mark.parametrize(("num_repeats", "is_enough"), [(2, False), (3, True)])
def test_two_repeats_carry_no_claim_on_time(tmp_path, num_repeats, is_enough):
    made = convert(tmp_path / "c")
    timed = bench(tmp_path / "b", str(made), num_repeats=num_repeats, ratio=(2.0, 1.9999, 2.0001))
    found = first([made, timed, verify(tmp_path / "v", made)])
    assert found.evidence.latency.change.has_interval is is_enough
    assert (found.decision.answer is Answer.ADOPT) is is_enough
    if not is_enough:
        change = found.evidence.latency.change
        assert change.why == "decision.why.too_few" and dict(change.fields) == {"n": 2, "least": 3}
        assert wording.why(change, words("en")) == "only 2 were measured; an interval counts from 3 on"


@pytest.mark.parametrize(
    ("fields", "is_enough"),
    [
        ({"n": 2}, False),
        ({"n": 3}, True),
        ({"n": None}, False),
        ({"n": 7, "method": "bootstrap over documents"}, False),
        ({"n": 8, "method": "bootstrap over documents"}, True),
    ],
)
def test_a_loss_needs_three_values_and_a_bootstrap_eight_documents(tmp_path, fields, is_enough):
    folders = adopted(tmp_path)
    rewritten(folders[0], "difference", **fields)
    found = first(folders)
    assert found.evidence.accuracy.change.has_interval is is_enough
    assert found.decision.answer is (Answer.ADOPT if is_enough else Answer.OPEN)


def test_two_seeds_or_texts_are_too_few_in_every_run(tmp_path):
    for folder in (
        rewritten(study(tmp_path / "s", {"elu1": (-0.02, 0.02)}), "verdict", n=2),
        rewritten(plan(tmp_path / "p"), "loss_rise", n=2),
        rewritten(inspect(tmp_path / "i"), "rise", n=2),
    ):
        case = gather([folder], Limits())
        assert {one.evidence.accuracy.change.why for one in case.verdicts} == {"decision.why.too_few"}
    assert not difference_of_texts([0.1, 0.11], "nats/token", "run").has_interval
    assert difference_of_texts([0.1, 0.11, 0.1], "nats/token", "run").has_interval
    entries = [
        {"name": name, "short_name": name, "spec": spec(orders=orders), "layer": {}}
        for name, orders in (("softmax", (0, 1)), ("more", (0, 1, 2)))
    ]
    for seeds in ((0, 1), (0, 1, 2)):
        folder = study(tmp_path / f"a{len(seeds)}", {"more": (0.0, 0.02)}, entries=entries, seeds=seeds)
        (order,) = (one for one in gather([folder], Limits()).components if one.kind == "order")
        assert order.loss.has_interval is (len(seeds) > 2)


def test_a_count_needs_neither_level_nor_repeats():
    assert as_evidence(Figure(1.0)) == Figure(1.0)
    assert as_evidence(Figure(1.0, 0.9, 1.1, level=LEVEL, n=LEAST)).has_interval
