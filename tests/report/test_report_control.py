"""A control on the page and in the terminal: said in words, shown with the others, and no candidate anywhere."""

from __future__ import annotations

import pytest
from planted_study import Planted

from termwise.report import page, scatter, tables
from termwise.report.decision.gathering.study import from_study
from termwise.report.decision.limits import Limits
from termwise.report.read import read
from termwise.report.verdict import summary
from termwise.report.view import view
from termwise.report.words import words

CONTROL, OFFSET, SEEDS = "softmax (again)", 1_000_000, (0, 1, 2)
NAMES = ["softmax", "linear_elu", CONTROL]


def planted(path, answer: str | None, value: float = 0.002, names: list[str] = NAMES) -> Planted:
    """A study in which the control got this answer; None: it has not been trained yet."""
    described = [Planted.describe(name) for name in names]
    described[-1] |= {"control_of": "softmax", "seed_offset": OFFSET}
    study = Planted(path, names, SEEDS, variants=described)
    for name in names:
        seeds = SEEDS if name != CONTROL else [seed + OFFSET for seed in SEEDS] if answer else []
        for seed in seeds:
            study.run(name, seed)
        study.costs(name)
    if "linear_elu" in names:
        study.verdict("linear_elu", "higher", 0.59, 0.08, 0.02)
    if answer:
        study.verdict(CONTROL, answer, value, 0.03, 0.01)
    return study


def shown(study: Planted):
    return view(read(study.write()))


@pytest.mark.parametrize(
    ("answer", "value", "told"),
    [
        ("no difference found", 0.002, "no difference found, as it should be (+0.002 [~0.028, +0.032] nats/token)"),
        ("lower", -0.05, "differs from itself (~0.050 [~0.080, ~0.020] nats/token): the intervals of this study are too narrow"),
        ("higher", 0.05, "differs from itself (+0.050 [+0.020, +0.080] nats/token): the intervals of this study are too narrow"),
        ("too few seeds", 0.01, "cannot be said: too few seeds"),
        ("too few documents", 0.01, "cannot be said: too few documents"),
        (None, 0.0, "there is no verdict on it yet"),
    ],
)  # fmt: skip
def test_what_it_found_is_said_in_words(tmp_path, answer, value, told):
    study = shown(planted(tmp_path / "run", answer, value))
    found = summary(study, words("en"))
    (line,) = [line for line in found.lines if line.startswith("Control: softmax ")]
    told = told.replace("~", "\N{MINUS SIGN}")
    assert told in line
    assert found.headline == "softmax has the lowest held-out loss; linear_elu came out higher."
    assert [group.answer for group in found.groups] == ["higher"]
    assert told in page.write(study.reading.folder.path).read_text(encoding="utf-8").replace("\n", " ")
    japanese = summary(study, words("ja"))
    assert any(line.startswith("対照\N{FULLWIDTH COLON}softmaxを別のシードで") for line in japanese.lines)


def test_it_is_shown_with_the_others_under_its_own_seeds(tmp_path):
    study = shown(planted(tmp_path / "run", "no difference found"))
    assert study.control.finished == study.control.seeds == tuple(seed + OFFSET for seed in SEEDS)
    assert study.seeds == SEEDS
    assert study.problems == ()
    result = tables.result(study, words("en"))
    assert CONTROL in [row[0].text for row in result.rows]
    assert "correction for 1 comparisons (Holm)" in result.caption
    assert f"{CONTROL} is a control: softmax a second time" in result.caption
    assert page.title(study, words("en")).startswith("2 attention variants on")
    assert {curve.seed for curve in study.curves() if curve.variant == CONTROL} == set(study.control.seeds)
    assert "1000000, 1000001, 1000002" in page.write(study.reading.folder.path).read_text(encoding="utf-8")


def test_what_has_not_been_trained_is_named_with_its_own_seeds(tmp_path):
    (problem,) = shown(planted(tmp_path / "run", None)).problems
    assert (problem.variants, problem.seeds) == ((CONTROL,), tuple(seed + OFFSET for seed in SEEDS))


def test_it_is_no_candidate(tmp_path):
    study = planted(tmp_path / "run", "lower", -0.05)
    assert [claim.names[0] for claim in from_study(read(study.write()), Limits())] == ["linear_elu"]
    assert CONTROL not in str(scatter.state(shown(study), words("en")))


def test_a_control_alone_is_enough(tmp_path):
    study = shown(planted(tmp_path / "run", "no difference found", names=["softmax", CONTROL]))
    found = summary(study, words("en"))
    assert "there is no other variant to compare it with" in found.headline
    assert any("as it should be" in line for line in found.lines)
    caption = tables.result(study, words("en")).caption
    assert "outside the correction for several comparisons" in caption and "Holm" not in caption
