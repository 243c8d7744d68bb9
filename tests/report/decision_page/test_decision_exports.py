"""Markdown, CSV and JSON of a decision: they agree with each other and with the evidence, and miss nothing."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re

import pytest
from planted_case import ANSWERS, case, evidence, runs

from termwise.report.decision.case import Refused
from termwise.report.decision.evidence import Complexity
from termwise.report.decision.figures import Pair, exactly, missing
from termwise.report.decision_page.engineer import engineer
from termwise.report.decision_page.exports import COLUMNS, as_csv, as_json, as_markdown
from termwise.report.decision_page.manager import manager, texts
from termwise.report.flaws import Flaw
from termwise.report.words import words

SAY = words("en")
BOTH = (evidence(), evidence(candidate="half as many", latency=Pair(change=missing("decision.why.no_latency"))))


def rows(weighed) -> dict[tuple[str, str], dict[str, str]]:
    found = list(csv.DictReader(io.StringIO(as_csv(weighed, SAY))))
    return {(row["candidate"], row["measure"]): row for row in found}


def test_the_table_has_a_row_a_figure_and_leaves_missing_ones_empty():
    weighed = case(*BOTH)
    table = rows(weighed)
    assert as_csv(weighed, SAY).splitlines()[0] == ",".join(COLUMNS)
    assert len(table) == 2 * (3 + 1 + 4)
    good = table["tiny, 25 % plan", "accuracy"]
    assert (good["today"], good["with_candidate"], good["change"], good["allowed"]) == ("3.0", "3.021", "0.021", "0.05")
    assert (good["low"], good["high"], good["outcome"], good["source"]) == ("0.011", "0.034", "within", "runs/plan")
    lacking = table["half as many", "latency"]
    assert [lacking[name] for name in ("today", "with_candidate", "change", "low", "high")] == [""] * 5
    assert (lacking["outcome"], lacking["note"]) == ("missing", "no run measured its time")


def test_json_holds_the_whole_decision_and_null_where_nothing_was_measured(tmp_path):
    weighed = case(*BOTH, readings=runs(tmp_path), refused=(Refused("photos", "no run.json"),))
    found = json.loads(json.dumps(as_json(weighed, SAY), allow_nan=False))
    assert found["schema"] == 1
    assert found["decision"] == found["candidates"][0]
    assert [one["answer"] for one in found["candidates"]] == [v.decision.answer.value for v in weighed.verdicts]
    assert found["candidates"][1]["evidence"]["latency"]["change"]["value"] is None
    assert found["candidates"][1]["cost_per_month"] is None and found["decision"]["cost_per_month"]["change"] < 0
    assert found["limits"]["accuracy"] == 0.05 and found["limits_fixed"] == "before"
    assert [one["command"] for one in found["runs"]] == ["study", "inspect", "plan"]
    assert found["refused"] == [{"path": "photos", "why": "no run.json"}]
    assert len(found["components"]) == len(weighed.components)


@pytest.mark.parametrize("answer", ANSWERS)
def test_csv_and_json_hold_the_same_figures(answer):
    weighed = case(evidence(**ANSWERS[answer]), BOTH[1])
    whole, table = as_json(weighed, SAY), rows(weighed)
    for one in whole["candidates"]:
        for measure in ("accuracy", "memory", "latency"):
            row, pair = table[one["candidate"], measure], one["evidence"][measure]
            for column, figure in (("today", "today"), ("with_candidate", "candidate"), ("change", "change")):
                assert row[column] == ("" if pair[figure]["value"] is None else str(pair[figure]["value"]))
            assert row["outcome"] == one["outcomes"][measure]


SAID = {
    "latency": (missing("decision.why.no_latency"), "no run measured its time", "時間を測定した実行がない"),
    "memory": (
        dataclasses.replace(exactly(1.5, "1"), why="decision.why.other_context", fields=(("measured", 8192), ("context", 128))),
        "counted at 8,192 tokens, asked at 128", "計数は 8,192 トークン、対象は 128 トークン",
    ),
    "accuracy": (missing("the budget was spent"), "the budget was spent", None),
}  # fmt: skip


@pytest.mark.parametrize("lang", ["en", "ja"])
def test_what_a_figure_says_of_itself_is_in_words_in_every_export(tmp_path, lang):
    say = words(lang)
    flaw = Flaw("unfinished", "runs/convert")
    changes = {name: Pair(change=figure) for name, (figure, *_) in SAID.items()}
    weighed = case(
        evidence(**changes, slots=missing("decision.why.no_slots_plan"), flaws=(flaw,)), readings=runs(tmp_path)
    )
    table = list(csv.DictReader(io.StringIO(as_csv(weighed, say))))
    whole = as_json(weighed, say)
    text = as_markdown(manager(weighed, say), engineer(weighed, say), say)
    for row in table[:3]:
        figure, english, japanese = SAID[row["measure"]]
        wanted = english if lang == "en" else japanese or say.recorded(english)
        told = whole["decision"]["evidence"][row["measure"]]["change"]
        assert row["note"] == told["why"] == wanted
        assert told["why_key"] == (figure.why if japanese else "")
        assert wanted in text
    assert whole["decision"]["evidence"]["flaws"][0]["why"] == say("flaw.unfinished", run="runs/convert")
    for export in (json.dumps(whole["components"]), *(row["note"] for row in table), text):
        assert "decision." not in export


@pytest.mark.parametrize("lang", ["en", "ja"])
def test_markdown_says_all_that_the_page_says(tmp_path, lang):
    say = words(lang)
    weighed = case(*BOTH, readings=runs(tmp_path), refused=(Refused("photos", "no run.json"),))
    first = manager(weighed, say)
    text = as_markdown(first, engineer(weighed, say), say).replace("\\|", "|")
    shown = [
        one
        for one in texts(first)
        if one not in (first.answer, "table", "number", "missing", "lower", "higher", "flag")
    ]
    assert [one for one in shown if " ".join(one.split()) not in " ".join(text.split())] == []
    assert "photos" in text and "half as many" in text
    pipes = [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")]
    assert min(pipes) >= 5


def test_a_name_cannot_break_a_table():
    weighed = case(evidence(candidate="a|b\nc", complexity=Complexity()))
    text = as_markdown(manager(weighed, words("en")), engineer(weighed, words("en")), words("en"))
    assert "a\\|b c" in text
    assert rows(weighed)["a|b\nc", "memory"]["change"] == "0.25"
