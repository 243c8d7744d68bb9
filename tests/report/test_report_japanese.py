"""Pages and terminal in Japanese, from the kept records and from planted ones: no English is left on them."""

from __future__ import annotations

import html
import io
import re
import shutil
from pathlib import Path

import pytest
from planted_study import complete
from rich.console import Console
from test_messages import ALL

from termwise.report import page, terminal
from termwise.report.words import words

RECORDS = Path(__file__).parents[2] / "benchmarks" / "records"
# Whole English messages that a Japanese page of the same records would show if one were asked for in the wrong language.
ENGLISH = [
    english for english, japanese in ALL.values() if english != japanese and "{" not in english and " " in english
]
# Formulas, commands, names of models and of software stay as they are.
STAYS = re.compile(
    r"w = [^<]*|termwise \w+|`.*?`|et al\.|AMD EPYC|King James Bible and Shakespeare|[^<]* / sum|a note on \S+"
)


def texts(markup: str) -> list[str]:
    """What a page shows or reads out, without code and styles."""
    markup = re.sub(r"<(style|code)>.*?</\1>", "", markup, flags=re.DOTALL)
    found = re.findall(r">([^<>]+)<", markup) + re.findall(r'aria-label="([^"]*)"', markup)
    return [text.strip() for text in map(html.unescape, found) if text.strip()]


def english_in(found: list[str]) -> list[str]:
    """Texts with two words of lower case in a row, or with a whole English message."""
    rest = [STAYS.sub("", text) for text in found]
    return [t for t in rest if re.search(r"[a-z]{2,} [a-z]{2,}\b", t) or any(t == english for english in ENGLISH)]


def shown(folder: Path) -> str:
    stream = io.StringIO()
    Console(file=stream, width=240).print(terminal.summary(folder, lang="ja"))
    return stream.getvalue()


@pytest.fixture(params=["ladder", "inspect_smollm2", "bench_b16", "calibration", "convert_carroll"])
def kept(request, tmp_path) -> Path:
    return Path(shutil.copytree(RECORDS / request.param, tmp_path / request.param))


def test_a_page_of_kept_records_is_japanese(kept):
    markup = page.write(kept, lang="ja").read_text(encoding="utf-8")
    assert '<html lang="ja">' in markup
    assert english_in(texts(markup)) == []
    assert re.search(r"2026年1[12]月\d+日 \d\d:\d\d UTC", markup)
    assert english_in(shown(kept).splitlines()) == []


def test_a_page_of_a_planted_study_is_japanese(tmp_path):
    planted = complete(tmp_path / "run", seeds=(0, 1), data={"name": "King James Bible and Shakespeare"})
    lost = {"variant": "softmax", "seed": 9}
    planted.record("train", "train_loss", "nats/token", None, lost, status="failed", reason="NaN")
    markup = page.write(planted.write(), lang="ja").read_text(encoding="utf-8")
    assert english_in(texts(markup)) == []
    for said in ("softmaxより検証損失が低い方式は見つかりませんでした。", "差は認められず", "失敗"):
        assert said in markup
    assert "softmax（シード：9）：学習、失敗：NaN" in shown(tmp_path / "run")


def test_the_same_figures_stand_on_both_pages(kept):
    numbers = re.compile(r"[+−]?\d[\d,.]*\d")
    pages = [page.write(kept, lang=lang).read_text(encoding="utf-8") for lang in ("en", "ja")]
    cells = [
        re.findall(r'<td [^>]*class="number"[^>]*><span class="value[^"]*">([^<]*)<', markup.replace("\n", ""))
        for markup in pages
    ]
    first, second = ([numbers.findall(html.unescape(cell)) for cell in found] for found in cells)
    assert first == second
    assert len(first) > 3


def test_what_english_left_over_would_be_found():
    assert english_in(["損失", "held-out loss", "Not measured"]) == ["held-out loss", "Not measured"]
    assert "not measured" not in words("ja")("not_measured")


def test_a_language_that_is_not_there_is_refused_with_those_that_are(tmp_path, capsys):
    from termwise.cli import main

    folder = complete(tmp_path / "run", ["softmax"], (0,)).write()
    with pytest.raises(SystemExit) as ended:
        main(["report", str(folder), "--lang", "de"])
    assert ended.value.code == 2
    assert "language 'de' is not there; available: en, ja" in capsys.readouterr().err
