"""The report in headless Chromium, in both languages: quiet, offline, drawn, sorted, chosen; without scripts; on paper.

Skipped without a browser; TERMWISE_BROWSER=required makes a missing one a failure.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import os
import shutil
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from planted_case import ANSWERS, case, evidence, runs

from termwise.report.decision.case import Refused, gather
from termwise.report.decision.evidence import Checks, Complexity
from termwise.report.decision.figures import MISSING, Figure, Pair, missing
from termwise.report.decision.limits import Limits
from termwise.report.decision_page.engineer import Engineer, engineer
from termwise.report.decision_page.manager import Manager, manager
from termwise.report.decision_page.writing import as_html
from termwise.report.words import words

pytestmark = pytest.mark.browser
LANGUAGES = ("en", "ja")
BROWSERS, DRIVERS = ("chromium", "chromium-browser", "google-chrome"), ("chromedriver", "chromium.chromedriver")
# One as root in a container; nothing of a desktop.
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,1000")


def found(names: tuple[str, ...]) -> str | None:
    return next((path for name in names if (path := shutil.which(name))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    browser, driver = found(BROWSERS), found(DRIVERS)
    if browser is None or driver is None:
        missing = "needs Chromium and its driver"
        pytest.fail(missing) if os.environ.get("TERMWISE_BROWSER") == "required" else pytest.skip(missing)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    made = webdriver.Chrome(options=options, service=Service(driver))
    yield made
    made.quit()


def shown(weighed, lang: str, *, is_first_alone: bool = False) -> tuple[Manager, str]:
    say = words(lang)
    first = manager(weighed, say)
    behind = Engineer((), (), ()) if is_first_alone else engineer(weighed, say)
    return first, as_html(first, behind, say)


# Not folded by Unicode; fonts draw them like these letters.
RADICALS = str.maketrans({"⻑": "長", "⺟": "母", "⻘": "青", "⻄": "西", "⻩": "黄", "⻋": "車", "⻆": "角"})
LONG = "taylor:0..8@mean|l2+w512s16h64 (25.5 % of the cache, tuned)"
UNKNOWN = {
    "candidate": LONG, "today": LONG, "accuracy": Pair(), "memory": Pair(change=missing("decision.why.no_memory")),
    "latency": Pair(change=missing("decision.why.lengths", context=4096, lengths=(512, 1024, 2048))), "slots": MISSING,
    "checks": Checks(), "complexity": Complexity(), "machine": "",
}  # fmt: skip
LATE = {"written": "2099-01-01T00:00:00+00:00", "engines": ["transformers", "vllm", "sglang"]}
REFUSED = (Refused("folder/of/photos", "no run.json"), Refused("somewhere/else/altogether", "no run.json"))
# The fullest pages: every warning and phrase; nothing known and long names; rejected; all conditions open.
FULL = {
    "whole": {"is_demonstration": True},
    "unknown": UNKNOWN,
    "rejected": ANSWERS["reject"] | {"candidate": LONG},
    "conditions": {
        "checks": Checks(),
        "machine": "another",
        "candidate": LONG,
        "today": LONG,
        "crossing": Figure(1234.0),
    },
}


RECORDS = Path(__file__).parents[3] / "benchmarks" / "records"
REAL = {"a study": ("prose", "bench_b64"), "an inspection": ("inspect_smollm2",), "a conversion": ("convert_carroll",)}
SHEETS = (*FULL, *REAL)


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[tuple[str, str], tuple[Manager, Path]]:
    """The fullest pages there can be, and those of real records, by name and language; one has its engineer's part."""
    folder = tmp_path_factory.mktemp("report")
    readings = runs(folder / "runs")
    cases = {
        name: case(evidence(**changes), evidence(candidate="another"), readings=readings, refused=REFUSED, **LATE)
        for name, changes in FULL.items()
    } | {name: gather([RECORDS / run for run in found], Limits()) for name, found in REAL.items()}
    made = {}
    for (name, weighed), lang in itertools.product(cases.items(), LANGUAGES):
        first, text = shown(weighed, lang, is_first_alone=name != "whole")
        (folder / f"{name}.{lang}.html").write_text(text, encoding="utf-8")
        made[name, lang] = first, folder / f"{name}.{lang}.html"
    return made


@pytest.fixture(params=LANGUAGES)
def opened(request, browser, pages):
    """The browser with a page, and what the page was made of."""
    browser.get_log("browser"), browser.get_log("performance")
    first, path = pages["whole", request.param]
    browser.get(path.as_uri())
    return browser, first


def requests_of(browser) -> list[str]:
    """Every address that the page asked for, from the log of the network."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]


def brought_into_view(browser, mark) -> Any:
    """The mark in the middle of the window, after the page has drawn and said that it scrolled."""
    browser.execute_async_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'});"
        "requestAnimationFrame(() => requestAnimationFrame(() => arguments[1]()))", mark
    )  # fmt: skip
    return mark


def css(browser, selector: str) -> list[Any]:
    return browser.find_elements("css selector", selector)


def squeezed(text: str) -> str:
    """Without spaces, presentation forms and the radicals that a PDF reads in place of letters."""
    plain = unicodedata.normalize("NFKC", text).translate(RADICALS)
    return "".join(plain.split()).replace("`", "").replace("\N{MINUS SIGN}", "-")


def sentences(first: Manager) -> list[str]:
    """What must be readable of the first page."""
    cells = [cell for table in (first.measures, first.parts) if table for row in table.rows for cell in row]
    facts = [text for fact in first.complexity for text in (fact.name, fact.text)]
    lists = (first.warnings, first.cost, first.go_on, first.stop, first.untested, first.phrases)
    told = [first.kicker, first.title, first.verdict, first.reason, first.next_stage, first.stamp]
    told += [text for cell in cells for text in (cell.text, cell.note)] + facts
    told += [line for lines in lists for line in lines] + [text for pair in first.glossary for text in pair]
    return [squeezed(text) for text in told if text]


def test_the_page_is_quiet_and_stays_on_this_machine(opened):
    browser, _ = opened
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    asked = requests_of(browser)
    assert asked and all(address.startswith(("file:", "data:")) for address in asked)


def test_a_page_that_asks_for_more_would_be_seen(browser, tmp_path):
    (tmp_path / "bad.html").write_text('<img src="http://127.0.0.1:9/x.png"><script>nowhere()</script>')
    browser.get_log("browser"), browser.get_log("performance")
    browser.get((tmp_path / "bad.html").as_uri())
    assert any(address.startswith("http:") for address in requests_of(browser))
    assert any(entry["level"] == "SEVERE" for entry in browser.get_log("browser"))


def test_another_script_may_not_run(browser, pages, tmp_path):
    text = pages["whole", "en"][1].read_text(encoding="utf-8")
    (tmp_path / "changed.html").write_text(text.replace("<main>", "<main><script>document.title = 'taken'</script>"))
    browser.get((tmp_path / "changed.html").as_uri())
    assert browser.title != "taken"


def test_figures_are_drawn_with_marks_that_have_a_size(opened):
    browser, _ = opened
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('figure svg')].map(svg => [svg.getBoundingClientRect().height,"
        " svg.querySelectorAll('[data-tip]').length])"
    )
    assert len(sizes) >= 8
    assert all(height > 40 for height, _ in sizes)
    assert sum(marks for _, marks in sizes) > 40


def test_a_mark_says_what_it_is(opened):
    from selenium.webdriver import ActionChains

    browser, _ = opened
    mark = brought_into_view(browser, css(browser, '#figure-run3-plan-heads [data-place="1,0"]')[0])
    ActionChains(browser).move_to_element(mark).perform()
    (tip,) = css(browser, "#tip")
    assert tip.is_displayed() and "mean+w64s4" in tip.text
    assert tip.get_attribute("textContent") == mark.get_attribute("data-tip")


def test_a_head_is_chosen_and_marked_on_every_map(opened):
    from selenium.webdriver.support.select import Select

    browser, _ = opened
    Select(css(browser, ".chooser .layer")[0]).select_by_visible_text("1")
    Select(css(browser, ".chooser .head")[0]).select_by_visible_text("0")
    (card,) = css(browser, ".chooser .card")
    assert "+0.3000" in card.text and "mean+w64s4" in card.text and "\N{MINUS SIGN}1.50" in card.text
    chosen = {mark.get_attribute("data-place") for mark in css(browser, ".chosen")}
    maps = browser.execute_script(
        "return [...document.querySelectorAll('figure')].filter(f => f.querySelector('.chosen')).map(f => f.id)"
    )
    assert chosen == {"1,0"} and {"figure-run2-inspect-importance", "figure-run3-plan-heads"} < set(maps)


def test_a_head_is_chosen_on_the_map(opened):
    browser, _ = opened
    brought_into_view(browser, css(browser, '#figure-run2-inspect-importance [data-place="0,1"]')[0]).click()
    assert css(browser, ".chooser .layer")[0].get_attribute("value") == "0"
    assert css(browser, ".chooser .head")[0].get_attribute("value") == "1"
    assert "slots+w64s4" in css(browser, ".chooser .card")[0].text


def column(browser, number: int) -> list[str]:
    return browser.execute_script(
        "return [...document.querySelectorAll('.chooser tbody tr')].map(row =>"
        " row.cells[arguments[0]].querySelector('.value').textContent.replace('\u2212', '-'))", number
    )  # fmt: skip


def test_a_table_is_sorted_by_number_with_missing_figures_last(opened):
    from selenium.webdriver.common.keys import Keys

    browser, _ = opened
    heads = css(browser, ".chooser thead th")
    place = next(number for number in range(len(heads)) if column(browser, number)[0].startswith("+0.5"))
    button = heads[place].find_element("css selector", "button")
    for state, key in (("ascending", Keys.ENTER), ("descending", Keys.SPACE)):
        button.send_keys(key)
        *numbers, last = column(browser, place)
        values = [float(text) for text in numbers]
        assert heads[place].get_attribute("aria-sort") == state
        assert values == sorted(values, reverse=state == "descending") and len(set(values)) == 3
        assert not last.startswith("+")
    heads[1].find_element("css selector", "button").click()
    values = [float(text) for text in column(browser, 1)]
    assert values == sorted(values) and values[0] == -2.5
    assert [head.get_attribute("aria-sort") for head in heads].count("ascending") == 1


@pytest.mark.parametrize("lang", LANGUAGES)
def test_everything_is_read_with_scripts_off(browser, pages, lang):
    first, path = pages["whole", lang]
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(path.as_uri())
        root = browser.execute_cdp_cmd("DOM.getDocument", {"depth": -1})["root"]
        text = squeezed(" ".join(_texts(root)))
        assert [one for one in sentences(first) if one not in text] == []
        html = browser.execute_cdp_cmd("DOM.getOuterHTML", {"nodeId": root["nodeId"]})["outerHTML"]
        assert 'class="sort"' not in html.split("<script>")[0] and html.count("<svg") >= 8
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def _texts(node: dict[str, Any]) -> Iterator[str]:
    """Texts of a document as the browser parsed it, without those of scripts and style sheets."""
    if node["nodeName"] in ("SCRIPT", "STYLE", "NOSCRIPT"):
        return
    if node["nodeType"] == 3:
        yield node["nodeValue"]
    for child in node.get("children", ()):
        yield from _texts(child)


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("name", SHEETS)
def test_the_first_sheet_of_paper_is_the_managers_page(browser, pages, name, lang):
    from pypdf import PdfReader

    first, path = pages[name, lang]
    browser.get(path.as_uri())
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": True})
    sheets = PdfReader(io.BytesIO(base64.b64decode(printed["data"]))).pages
    assert [round(float(side) / 72 * 25.4) for side in sheets[0].mediabox[2:]] == [210, 297]
    texts = [squeezed(sheet.extract_text()) for sheet in sheets[:2]]
    assert [one for one in sentences(first) if one not in texts[0]] == []
    say = words(lang)
    assert texts[1].startswith(squeezed(say("decision.part.engineer") + say("decision.engineer.title")))


@pytest.mark.parametrize("width", [360, 768, 1200])
def test_nothing_hangs_over_the_edge(opened, width):
    browser, _ = opened
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
