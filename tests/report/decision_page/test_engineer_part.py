"""The engineer's part and the page as a file: nothing left out, ids unique, nothing fetched, one script known by its hash."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest
from planted_case import MODEL, case, evidence, plan, runs

from termwise.report.decision.case import Refused
from termwise.report.decision.figures import MISSING, Figure, Pair
from termwise.report.decision_page.engineer import engineer
from termwise.report.decision_page.heads import choosers
from termwise.report.decision_page.manager import manager
from termwise.report.decision_page.pareto import pareto
from termwise.report.decision_page.writing import as_html
from termwise.report.read import read
from termwise.report.words import words

SAY = words("en")
OTHER = {"candidate": "slower", "latency": Pair(evidence().latency.today, Figure(0.02, 0.019, 0.021, unit="s/token"))}


def page(weighed, lang: str = "en") -> str:
    say = words(lang)
    return as_html(manager(weighed, say), engineer(weighed, say), say)


@pytest.fixture(scope="module")
def readings(tmp_path_factory):
    return runs(tmp_path_factory.mktemp("runs"))


class Page(HTMLParser):
    """Ids, links and the texts of tags of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found["href"]] if "href" in found else []


def test_two_runs_of_one_kind_stand_on_one_page_with_ids_of_their_own(readings, tmp_path):
    shown = Page(page(case(readings=(*readings, read(plan(tmp_path / "again")), readings[1]))))
    assert len(shown.ids) > 40
    assert sorted(shown.ids) == sorted(set(shown.ids))
    assert shown.links and {link.removeprefix("#") for link in shown.links} <= set(shown.ids)


@pytest.mark.parametrize("lang", ["en", "ja"])
def test_nothing_is_fetched_and_only_the_known_script_may_run(readings, lang):
    text = page(case(readings=readings), lang)
    assert f'<html lang="{lang}">' in text
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    known = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert f"script-src 'sha256-{known}'" in policy and policy.startswith("default-src 'none'")
    assert "unsafe-eval" not in policy and not re.search(r"\beval\b|new Function|innerHTML", script)
    assert not re.search(
        r"https?:|//[a-z]|<link|<iframe|<img|@import|\bsrc=|\son[a-z]+=|url\((?!#)", text.replace(script, "")
    )
    assert not re.search(r"https?:|fetch\(|XMLHttp|import\(|WebSocket|sendBeacon", script)


def test_names_from_records_are_text(readings):
    bad = '<script>alert("x")</script>'
    text = page(case(evidence(candidate=bad, machine=bad), readings=readings, refused=(Refused(bad, bad),)))
    assert text.count("<script>") == 1
    assert text.count("&lt;script&gt;") > 4


def test_every_run_is_there_with_its_own_sections(readings):
    behind = engineer(case(readings=readings), SAY)
    assert [run.command for run in behind.runs] == ["study", "inspect", "plan"]
    titles = {section.title for run in behind.runs for section in run.sections}
    assert {"Result", "Cost and health", "What each head keeps", "Loss against bytes"} <= titles
    assert [section.key for section in behind.sections] == [
        "question", "candidates", "pareto", "parts", "checks", "problems", "left-out", "threats", "method",
    ]  # fmt: skip


def test_what_failed_and_what_was_left_out_is_named(readings, tmp_path):
    folder = plan(tmp_path / "plan")
    with open(folder / "records.jsonl", "a") as file:
        file.write("no json\n")
    weighed = case(readings=(*readings, read(folder)), refused=(Refused("photos", "photos: no run.json"),))
    text = page(weighed)
    assert "photos: no run.json" in text and "is not JSON and is left out" in text
    assert "the budget was spent" in text


def test_every_candidate_has_a_row_and_a_missing_figure_says_so(readings):
    weighed = case(evidence(), evidence(candidate="unmeasured", latency=Pair()), readings=readings)
    (section,) = [one for one in engineer(weighed, SAY).sections if one.key == "candidates"]
    rows = {row[0].text: [cell.text for cell in row] for row in section.blocks[0].rows}
    assert rows["unmeasured"][4] == "not measured" and rows["tiny, 25 % plan"][4].endswith("33.3\N{NO-BREAK SPACE}%")


def test_the_figure_is_against_time_and_names_who_has_none():
    slower = evidence(**OTHER | {"accuracy": Pair(change=Figure(0.01, 0.0, 0.02))})
    unmeasured = evidence(candidate="unmeasured", latency=Pair())
    figure = pareto(case(evidence(), slower, unmeasured), SAY)
    assert "decode time of a token at 4,096 tokens" in str(figure.specification)
    assert figure.caption.endswith("Not drawn, because not measured: unmeasured.")
    assert "+0.021 [+0.011, +0.034], 8.20 ms, 1.00 MiB" in figure.description


def test_without_any_time_it_is_against_memory_and_says_so():
    figure = pareto(case(evidence(latency=Pair())), SAY)
    assert "Decode time was not measured for any candidate" in figure.caption
    assert pareto(case(evidence(latency=Pair(), memory=Pair())), SAY) is None
    assert pareto(case(evidence(accuracy=Pair(change=MISSING))), SAY) is None


def test_the_heads_of_one_model_stand_together_with_what_is_missing(readings):
    (chooser,) = choosers(readings, SAY)
    assert (chooser.model, chooser.layers, chooser.heads) == (MODEL, [0, 1], [0, 1])
    heads = [column.label for column in chooser.table.columns]
    rows = {
        place: dict(zip(heads, row, strict=True)) for place, row in zip(chooser.places, chooser.table.rows, strict=True)
    }
    assert rows[0, 1]["Score, mean"].text == "\N{MINUS SIGN}2.25" and rows[0, 1]["The plan keeps"].text == "slots+w64s4"
    assert rows[1, 0]["Rise if reduced"].note == "[+0.2000, +0.4000]"
    assert rows[1, 1]["Rise if reduced"].text == "not measured"
    behind = engineer(case(readings=readings), SAY)
    ((_, maps),) = behind.choosers
    assert [one.key for one in maps] == ["run2-inspect-importance", "run3-plan-heads"]
    keys = [
        block.key
        for run in behind.runs
        for section in run.sections
        for block in section.blocks
        if block.kind == "figure"
    ]
    assert not {one.key for one in maps} & set(keys)


def test_marks_say_what_they_are_and_which_head(readings):
    text = page(case(readings=readings))
    assert re.search(r'data-place="1,0" data-tip="layer 1, kv head 0: \+0\.3000"', text)
    assert re.search(r'<tr data-place="1,0">', text)
    assert 'aria-label="@' not in text
