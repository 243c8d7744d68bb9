"""The manager's page from planted evidence, in both languages: what it says, and what it must not say."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as some
from planted_case import ANSWERS, GOOD, LIMITS, MODEL, case, evidence, runs

from termwise.report.decision.case import Refused
from termwise.report.decision.evidence import Checks, Complexity, Evidence
from termwise.report.decision.figures import MISSING, Figure, Pair
from termwise.report.decision.limits import Limits
from termwise.report.decision.rules import Outcome
from termwise.report.decision_page.cost import monthly
from termwise.report.decision_page.manager import TERMS, manager, texts
from termwise.report.words import words

MINUS = "\N{MINUS SIGN}"
LANGUAGES = ("en", "ja")
VERDICTS = {
    "en": {"adopt": "Adopt", "conditions": "Adopt with conditions", "open": "Cannot say yet", "reject": "Do not adopt"},
    "ja": {"adopt": "採用", "conditions": "条件付き採用", "open": "判断保留", "reject": "見送り"},
}
NOT_MEASURED = {"en": "not measured", "ja": "未測定"}


def page(*found: Evidence, lang: str = "en", **more):
    return manager(case(*found, **more), words(lang))


def said(made) -> str:
    return "\n".join(texts(made)).replace("\N{NO-BREAK SPACE}", " ")


def cells(made, row: int) -> list[str]:
    return [cell.text.replace("\N{NO-BREAK SPACE}", " ") for cell in made.measures.rows[row]]


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("answer", ANSWERS)
def test_every_verdict_has_its_words_reason_and_next_stage(answer, lang):
    made = page(evidence(**ANSWERS[answer]), lang=lang)
    assert (made.answer, made.verdict) == (answer, VERDICTS[lang][answer])
    assert GOOD["candidate"] in made.title and "4,096" in made.title
    assert made.reason and made.next_stage and made.reason != made.next_stage
    if answer in ("open", "reject"):
        change = ANSWERS[answer]["accuracy"].change
        assert f"+{change.value:.3f}" in made.reason and f"[+{change.low:.3f}, +{change.high:.3f}]" in made.reason


def test_the_four_measures_stand_side_by_side():
    made = page()
    assert cells(made, 0) == ["Accuracy", "3.000", "3.021", "+0.021", "at most +0.05", "keeps the limit"]
    assert cells(made, 1) == [
        "Memory", "4.00 MiB", "1.00 MiB", f"{MINUS}75.0 %", "at most 50 % of today", "better, keeps the limit",
    ]  # fmt: skip
    assert cells(made, 2) == [
        "Latency", "12.3 ms", "8.20 ms", f"{MINUS}33.3 %", "at most 100 % of today", "better, keeps the limit",
    ]  # fmt: skip
    assert cells(made, 3)[0] == "Implementation complexity"
    assert cells(made, 3)[-1] == "loads where it must"
    assert made.measures.rows[0][3].note == "[+0.011, +0.034]; perplexity +2.1\N{NO-BREAK SPACE}%"


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("measure", ["accuracy", "memory", "latency"])
def test_a_missing_figure_is_named_and_never_a_zero_or_a_dash(measure, lang):
    made = page(evidence(**{measure: Pair()}), lang=lang)
    row = cells(made, ["accuracy", "memory", "latency"].index(measure))
    assert row[1:4] == [NOT_MEASURED[lang]] * 3 and row[5] == NOT_MEASURED[lang]
    lines = [line for line in made.untested if words(lang)(f"decision.untested.{measure}") == line]
    assert len(lines) == 1
    values = [cell.text for row in made.measures.rows for cell in row]
    assert not [text for text in values if text.strip() in ("", "0", "-", "–", "—", MINUS)]


def test_what_nobody_counted_says_so_and_a_counted_zero_is_a_zero():
    unknown = page(evidence(complexity=Complexity()), engines=None)
    assert {fact.text for fact in unknown.complexity} == {"not counted"}
    assert cells(unknown, 3)[-1] == "not counted"
    none = page(evidence(complexity=Complexity((), 0)), engines=None)
    assert [(fact.text, fact.is_counted) for fact in none.complexity[:2]] == [("0", True), ("0", True)]


PHRASES = {
    "gain": ({}, {"memory": Pair(), "latency": Pair()}),
    "kept": ({}, ANSWERS["reject"]),
    "broken": (ANSWERS["reject"], {}),
    "open": (ANSWERS["open"], {}),
    "unknown": ({"latency": Pair()}, {}),
    "slots.better": ({}, {"slots": MISSING}),
    "slots.broken": ({"slots": Figure(0.04, 0.02, 0.06)}, {}),
    "back": ({"checks": Checks()}, {"complexity": Complexity()}),
}


def starts(line: str, key: str, lang: str) -> bool:
    """Whether a line is the message of this key, whatever its fields."""
    pattern = re.escape(words(lang)(f"decision.phrase.{key}", **dict.fromkeys(FIELDS, "\0"))).replace("\0", ".+")
    return re.fullmatch(pattern, line) is not None


FIELDS = ("context", "won", "change", "low", "high", "limit", "names", "n", "requests", "tokens", "saved")


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("key", PHRASES)
def test_a_phrase_stands_only_where_its_condition_holds(key, lang):
    true, false = PHRASES[key]
    for changes, is_there in ((true, True), (false, False)):
        made = page(evidence(**changes), lang=lang, price_per_hour=None)
        assert any(starts(line, key, lang) for line in made.phrases) == is_there, made.phrases


def test_phrases_are_filled_from_the_numbers():
    lines = "\n".join(page().phrases).replace("\N{NO-BREAK SPACE}", " ")
    assert f"memory {MINUS}75.0 % and time for a token {MINUS}33.3 %" in lines and "4,096 tokens" in lines
    assert "+0.021 nats/token in accuracy, at worst +0.034; we had allowed 0.05" in lines


def test_the_cost_is_the_arithmetic_of_load_price_and_time():
    found = monthly(evidence(), Limits(**LIMITS))
    tokens = 200_000 * 256 * 30
    assert found.today == pytest.approx(tokens * 0.0123 / 3600 * 2.5)
    assert found.change == pytest.approx(tokens * (0.0082 - 0.0123) / 3600 * 2.5)
    lines = "\n".join(page().cost)
    assert f"{found.candidate:,.0f}\N{NO-BREAK SPACE}USD" in lines and f"{-found.change:,.0f}" in lines
    assert "200,000 requests a day of 256 new tokens" in lines


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize(
    ("limits", "changes"),
    [({"price_per_hour": None}, {}), ({"requests_per_day": None}, {}), ({}, {"latency": Pair()})],
    ids=["no price", "no load", "no time"],
)
def test_there_is_no_cost_without_price_load_and_a_measured_time(limits, changes, lang):
    made = page(evidence(**changes), lang=lang, **limits)
    assert made.cost == ()
    assert "USD" not in said(made)


def test_the_stamp_of_the_limits_and_its_warnings(tmp_path):
    readings = runs(tmp_path)
    good = page(readings=readings)
    assert good.warnings == () and "1 February 2026, 09:00 UTC (limits.yaml)" in good.stamp
    late = page(readings=readings, written="2099-01-01T00:00:00+00:00")
    assert "after the first results" in late.warnings[0]
    assert "no date" in page(readings=readings, written=None).warnings[0]
    default = dataclasses.replace(case(readings=readings), limits_path="")
    assert "defaults of the program" in manager(default, words("en")).warnings[0]
    foreign = page(readings=readings, refused=(Refused("photos", "no run.json"),))
    assert "photos" in foreign.warnings[0]


def test_the_conditions_are_the_limits():
    made = page()
    assert any("0.05 nats/token at the far end" in line for line in made.go_on)
    assert any("50\N{NO-BREAK SPACE}%" in line for line in made.go_on)
    assert any("EPYC" in line for line in made.go_on)
    assert any("near end" in line for line in made.stop)
    unbounded = page(memory=None, latency=None, engines=None)
    assert not any("of today" in line for line in unbounded.go_on)


def test_only_parts_of_runs_about_the_candidates_model_are_shown(tmp_path):
    _, inspected, planned = readings = runs(tmp_path)
    assert page(evidence(sources=("another/run",))).parts is None
    about = case(evidence(sources=(str(planned.folder.path),)), readings=readings)
    ours = tuple(dataclasses.replace(one, source=str(inspected.folder.path)) for one in about.components)
    assert manager(about, words("en")).parts is None
    assert manager(dataclasses.replace(about, components=ours), words("en")).parts is not None


def test_few_parts_are_shown_the_heaviest_first_and_cut_ones_too():
    rows = [[cell.text for cell in row] for row in page().parts.rows]
    assert [row[0] for row in rows] == ["orders 0", "orders 1", "orders 2", "orders 5", "orders 4"]
    assert rows[0][1:] == ["+0.300", "0\N{NO-BREAK SPACE}%", "keep"] and rows[3][3] == "cut"


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_glossary_explains_what_the_page_uses_and_nothing_else(lang):
    say = words(lang)
    made = page(lang=lang)
    shown = said(dataclasses.replace(made, glossary=())).casefold()
    for term, meaning in made.glossary:
        assert term.casefold() in shown and meaning
    assert say("decision.term.slots") in [term for term, _ in made.glossary]
    plain = page(evidence(needs_slots=False, slots=MISSING), lang=lang)
    assert say("decision.term.slots") not in [term for term, _ in plain.glossary]
    assert len(TERMS) > len(made.glossary)


def test_no_formula_stands_on_the_page():
    assert not re.search(r"[∑√²^]|exp\(|q\.k|sum w v", said(page()))


def figures(low: float, high: float):
    """A figure that is missing, without an interval, or with one."""
    value = some.floats(low, high)
    return some.one_of(
        some.just(MISSING),
        value.map(lambda x: Figure(x, unit="1")),
        value.map(lambda x: Figure(x, x, x)),
        value.map(lambda x: Figure(x, x - 0.1 * abs(x), x + 0.1 * abs(x), 0.95, 3)),
    )


@given(
    accuracy=figures(-1, 1), memory=figures(0.01, 30), latency=figures(0.01, 30), slots=figures(-1, 1),
    failed=some.sampled_from([0, 1]), has_soak=some.booleans(), needs_slots=some.booleans(), demonstration=some.booleans(),
    limit=some.sampled_from([None, 0.5, 2.0]), machine=some.sampled_from([None, "EPYC", "H100"]),
    engines=some.sampled_from([None, ["vllm"], ["transformers"]]), lang=some.sampled_from(LANGUAGES),
)  # fmt: skip
def test_whatever_is_known_the_page_says_something(
    accuracy, memory, latency, slots, failed, has_soak, needs_slots, demonstration, limit, machine, engines, lang
):
    found = evidence(
        accuracy=Pair(change=accuracy), memory=Pair(change=memory), latency=Pair(change=latency), slots=slots,
        checks=Checks(3 * has_soak, failed, 0, has_soak, ("prefix",) * failed), needs_slots=needs_slots,
        is_demonstration=demonstration,
    )  # fmt: skip
    weighed = case(found, memory=limit, latency=limit, machine=machine, engines=engines)
    made = manager(weighed, words(lang))
    assert made.verdict == VERDICTS[lang][weighed.verdicts[0].decision.answer.value]
    missing = [name for name, o in weighed.verdicts[0].decision.outcomes.items() if o is Outcome.MISSING]
    assert len([line for line in made.untested if line]) >= len(missing)
    assert "{" not in said(made) and "None" not in said(made) and "nan" not in said(made).split()


def test_the_model_of_the_planted_runs_is_the_one_of_the_case(tmp_path):
    assert {one.setting("about", {}).get("name") for one in runs(tmp_path)[1:]} == {MODEL}
