"""One model is known by its weights: two of one name are not mixed, one under two places is one, and what is not known is said."""

from __future__ import annotations

import json

import pytest
from planted_runs import CONTEXT, Planted, bench, convert, inspect, plan, spec, verify

from termwise.report.decision.case import gather
from termwise.report.decision.limits import Limits
from termwise.report.decision_page.engineer import engineer
from termwise.report.decision_page.heads import choosers
from termwise.report.decision_page.parts import few_parts
from termwise.report.words import words
from termwise.results import config_hash

LIMITS = Limits(context=CONTEXT, machine="EPYC")
LAYERS = [[{"kv_heads": [0], "spec": spec()}]]


def planned_and_made(tmp_path, first, second, **made):
    """A plan and a conversion that follows it, of originals with these weights."""
    of = [{} if one is None else {"weights": one} for one in (first, second)]
    planned = plan(tmp_path / "p", layers=LAYERS, **of[0])
    return planned, convert(tmp_path / "c", plan=str(planned), plan_hash=config_hash(LAYERS), **of[1], **made)


def told(folder, **fields):
    """run.json says more."""
    run = json.loads((folder / "run.json").read_text()) | fields
    (folder / "run.json").write_text(json.dumps(run))
    return folder


def threats(case, lang="en"):
    return next(one for one in engineer(case, words(lang)).sections if one.key == "threats").blocks[0].lines


def sources(case):
    return {one.evidence.candidate: set(one.evidence.sources) for one in case.verdicts}


@pytest.mark.parametrize(
    ("first", "second", "name", "are_one"),
    [
        ("a1", "a1", "models/original", True),
        ("a1", "b2", "models/original", False),
        ("a1", "a1", "elsewhere/renamed", True),
        ("a1", "b2", "elsewhere/renamed", False),
        ("a1", None, "models/original", True),
        (None, "a1", "models/original", True),
        (None, None, "models/original", True),
        (None, None, "elsewhere/renamed", False),
        ("a1", None, "elsewhere/renamed", False),
    ],
)
def test_originals_of_other_weights_are_not_merged_whatever_they_are_called(tmp_path, first, second, name, are_one):
    planned, made = planned_and_made(tmp_path, first, second, model=name)
    found = sources(gather([planned, made], LIMITS))
    assert (found["plan:25%"] == {str(planned), str(made)}) is are_one
    assert ("c" in found) is not are_one


def test_what_is_not_known_to_be_the_same_weights_is_said_where_runs_are_merged(tmp_path):
    planned, made = planned_and_made(tmp_path, "a1", None)
    said = {"en": "Not known to be of the same weights", "ja": "同じ重みであるとは確認できず"}
    for lang, text in said.items():
        (line,) = (line for line in threats(gather([planned, made], LIMITS), lang) if text in line)
        assert str(made) in line and str(planned) not in line
    alone = gather([made], LIMITS)
    known = gather(list(planned_and_made(tmp_path / "known", "a1", "a1")), LIMITS)
    assert not any(said["en"] in line for case in (alone, known) for line in threats(case))


def test_checks_of_other_weights_in_the_same_folder_are_not_those_of_the_candidate(tmp_path):
    made = told(convert(tmp_path / "c", weights="a1"), written="f00")
    checked = verify(tmp_path / "v", made)
    timed = bench(tmp_path / "b", str(made))
    entries = json.loads((timed / "run.json").read_text())["variants"]
    told(timed, variants=[entries[0], entries[1] | {"weights": "f00"}])
    found = gather([made, checked, timed], LIMITS)
    assert found.verdicts[0].decision.answer == "adopt" and not found.unused
    told(made, written="another")
    again = gather([made, checked, timed], LIMITS)
    assert again.verdicts[0].decision.answer == "conditions" and set(again.unused) == {str(checked), str(timed)}
    assert not again.verdicts[0].evidence.checks.were_run and not again.verdicts[0].evidence.latency.change.is_there


def test_a_loss_of_other_weights_in_the_same_folder_is_not_that_of_the_candidate(tmp_path):
    made = told(convert(tmp_path / "c", rise=None, weights="a1"), written="f00")
    for weights, is_taken in (("f00", True), ("b2", False)):
        scored = Planted(tmp_path / weights, "evaluate", {"models": ["models/original", str(made)], "context": CONTEXT})
        scored.folder.update(variants=[{"name": "models/original"}, {"name": str(made), "weights": weights}])
        for name, loss in (("models/original", 3.0), (str(made), 3.02)):
            scored.add("loss", "held_out_nats", loss, variant=name, seed=0, n=9000)
        case = gather([made, scored.write()], LIMITS)
        assert case.verdicts[0].evidence.accuracy.change.is_there is is_taken
        assert bool(case.unused) is not is_taken


def test_a_copy_is_known_by_its_weights(tmp_path):
    made = told(convert(tmp_path / "c", weights="a1"), written="f00")
    found = gather([made, verify(tmp_path / "v", "/copied/elsewhere")], LIMITS).verdicts[0].evidence
    assert found.checks.were_run and found.checks.has_soak
    strangers = gather([convert(tmp_path / "d"), verify(tmp_path / "w", "/copied/elsewhere")], LIMITS)
    assert not strangers.verdicts[0].evidence.checks.were_run


def test_what_was_measured_of_one_place_with_other_weights_stays_apart(tmp_path):
    model, folders = str(tmp_path / "model"), []
    for number, weights in enumerate(("a1", "b2", None)):
        folder = verify(tmp_path / f"v{number}", model)
        run = json.loads((folder / "run.json").read_text())
        folders.append(told(folder, resolved=run["resolved"] | {"weights": weights}))
    case = gather(folders, LIMITS)
    # The run that does not say belongs to either; that is said of both.
    expected = [[str(folders[0]), str(folders[2])], [str(folders[1]), str(folders[2])]]
    assert sorted(sorted(one.evidence.sources) for one in case.verdicts) == expected
    assert {one.evidence.unidentified for one in case.verdicts} == {(str(folders[2]),)}


def test_heads_and_parts_of_two_models_of_one_name_are_not_mixed(tmp_path):
    one, other = inspect(tmp_path / "one", weights="a1"), inspect(tmp_path / "other", weights="b2")
    planned = plan(tmp_path / "p", weights="a1", about={"name": "small"})
    case = gather([one, other, planned], LIMITS)
    assert [found.model for found in choosers(case.readings, words("en"))] == ["small (a1)", "small (b2)"]
    assert [run.model for run in engineer(case, words("en")).runs] == ["small (a1)", "small (b2)", "small (a1)"]
    same = gather([one, planned], LIMITS)
    assert [found.model for found in choosers(same.readings, words("en"))] == ["small"]
    apart = gather([other, planned], LIMITS)
    in_parts = [" ".join(row[0].text for row in few_parts(found, words("en")).rows) for found in (same, apart)]
    assert "kv head" in in_parts[0] and "kv head" not in in_parts[1]
