"""The catalogue: every message in every language, said once, its terms translated once."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path
from string import Formatter

import pytest

from termwise.report.words import LANGUAGES, MESSAGES, messages, words

KEY = re.compile(r'^msgctxt "(.+)"$', re.MULTILINE)
JAPANESE = "ぁ-んァ-ヶー一-鿿々〇"
ALL = {str(m.context): (str(m.id), str(m.string)) for m in messages()}
TERMS = tomllib.loads((MESSAGES / "terms.toml").read_text(encoding="utf-8"))
GLOSSARY = Path(__file__).parents[2] / "examples" / "glossary.md"


def test_a_key_stands_once_in_all_files():
    keys = [key for path in MESSAGES.glob("*.po") for key in KEY.findall(path.read_text(encoding="utf-8"))]
    assert len(keys) > 600
    assert sorted(keys) == sorted(set(keys))
    assert set(keys) == ALL.keys()


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


def test_a_message_is_there_in_both_languages_with_the_same_fields():
    assert [key for key, texts in ALL.items() if not all(text.strip() for text in texts)] == []
    assert [key for key, (english, japanese) in ALL.items() if fields(english) != fields(japanese)] == []


# Fields, units, files and commands are no words of the sentence.
NAMES = re.compile(r"\{.*?\}|nats(?:/| a )token|bits/byte|\w+\.jsonl?|`.*?`|termwise \w+|--[\w-]+")


def has_term(english: str, term: str) -> bool:
    return re.search(rf"\b{term}s?\b", NAMES.sub("", english), re.IGNORECASE) is not None


def lacking(key: str, english: str, japanese: str) -> list[str]:
    """The terms of an English message whose Japanese form its translation lacks."""
    excused = TERMS["exceptions"].get(key, {})
    return [
        term
        for term, form in TERMS["terms"].items()
        if has_term(english, term) and form not in japanese and term not in excused
    ]


def test_a_term_has_one_japanese_form():
    assert {key: terms for key, texts in ALL.items() if (terms := lacking(key, *texts))} == {}
    assert lacking("", "The held-out loss of each seed.", "検証ロスはシードごとです。") == ["held-out loss", "loss"]


def test_an_exception_is_needed_and_says_why():
    for key, reasons in TERMS["exceptions"].items():
        english, japanese = ALL[key]
        for term, why in reasons.items():
            assert has_term(english, term), f"{key} has no {term!r}"
            assert TERMS["terms"][term] not in japanese, f"{key} needs no exception for {term!r}"
            assert len(why) > 5


def test_the_words_that_the_glossary_rejects_are_not_used():
    rows = [line.split("|") for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    rejected = [word.strip() for row in rows[1:] for word in row[3].split(",") if word.strip()]
    assert "ステート" in rejected
    assert [(key, word) for key, (_, japanese) in ALL.items() for word in rejected if word in japanese] == []


MIXED = re.compile(rf"[{JAPANESE}）」][.,;:?!(]|[,;:?!)][{JAPANESE}（「]|[、。，．！？：；] |  ")


def test_japanese_has_japanese_signs():
    # the brackets of a function's name are its own
    assert [key for key, (_, japanese) in ALL.items() if MIXED.search(re.sub(r"\w\(\)", "f", japanese))] == []
    assert all(MIXED.search(bad) for bad in ("損失です.", "損失(平均)", "損失, 平均", "損失：  平均", "損失。 平均"))


def test_a_sentence_ends_as_one():
    for key, (english, japanese) in ALL.items():
        assert japanese.endswith(("。", "：")) or not english.endswith((".", ":")), key
        assert not japanese.endswith((".", ":", "．")), key


def test_a_number_is_the_same_in_both_languages():
    for key, texts in ALL.items():
        english, japanese = (Counter(re.findall(r"\d+", re.sub(r"\{.*?\}", "", text))) for text in texts)
        assert english <= japanese, key


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_message_can_be_said(language):
    say = words(language)
    for key, (english, _) in ALL.items():
        assert "{" not in say(key, **dict.fromkeys(fields(english), "x")), key
