"""The catalogue: every message in every language, said once."""

from __future__ import annotations

import re

from termwise.report.words import LANGUAGES, MESSAGES, messages, words

KEY = re.compile(r'^msgctxt "(.+)"$', re.MULTILINE)


def test_a_key_stands_once_in_all_files():
    keys = [key for path in MESSAGES.glob("*.po") for key in KEY.findall(path.read_text(encoding="utf-8"))]
    assert len(keys) > 600
    assert sorted(keys) == sorted(set(keys))
    assert set(keys) == {message.context for message in messages()}


def test_every_language_has_every_message():
    for language in LANGUAGES:
        say = words(language)
        assert all(say.known(str(message.context), "") for message in messages()), language
