"""Words and number forms of a language. The messages stand in messages/*.po, English and Japanese side by side."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from babel.messages.catalog import Message
from babel.messages.pofile import read_po

MESSAGES = Path(__file__).parent / "messages"
LANGUAGES = ("en", "ja")


class Words:
    """Messages and number forms of one language; `words` makes it.

    >>> say = words("en")
    >>> say("value.context", n=say.integer(16384)), say.signed(-0.2), say.number(None)
    ('16,384 tokens', '−0.200', 'not measured')
    """

    def __init__(self, language: str, table: dict[str, str]) -> None:
        self.language = language
        self._table = table

    def __call__(self, key: str, **fields: object) -> str:
        return self._table[key].format(**fields)

    def plural(self, key: str, n: int, **fields: object) -> str:
        """The message for n things; one thing has a message of its own where the language needs it."""
        singular = f"{key}.one"
        return self(singular if n == 1 and singular in self._table else key, n=n, **fields)

    def known(self, key: str, otherwise: str) -> str:
        """The message of a key that comes from the records, or the key in plain letters where no message exists."""
        return self._table.get(key, otherwise.replace("_", " "))

    def number(self, value: float | None, digits: int = 3) -> str:
        """A number with fixed decimals; a missing one in words."""
        return self("not_measured") if value is None else f"{value:,.{digits}f}".replace("-", "\N{MINUS SIGN}")

    def signed(self, value: float | None, digits: int = 3) -> str:
        """A difference, always with its sign."""
        return self("not_measured") if value is None else f"{value:+,.{digits}f}".replace("-", "\N{MINUS SIGN}")

    def integer(self, value: float | None) -> str:
        """A whole number with separators."""
        return self.number(value, 0)

    def share(self, value: float | None) -> str:
        """A share as a percentage: never 0 % for a small one, never 100 % for one that is not whole."""
        if value is None:
            return self("not_measured")
        if 0 < value < 0.0001:
            return "< 0.01 %"
        digits = 0 if value in (0, 1) else 2 if value < 0.01 else 1
        return f"{value:.{digits}%}".replace("%", "\N{NO-BREAK SPACE}%")

    def level(self, value: float | None) -> str:
        """A confidence level such as 95 % or 99.17 %."""
        if value is None:
            return self("not_measured")
        return f"{100 * value:.2f}".rstrip("0").rstrip(".") + "\N{NO-BREAK SPACE}%"

    def interval(self, low: float | None, high: float | None, *, is_signed: bool = False) -> str:
        """[low, high]."""
        form = self.signed if is_signed else self.number
        return self("no_interval") if low is None or high is None else f"[{form(low)}, {form(high)}]"

    def listing(self, names: Sequence[str], at_most: int = 6) -> str:
        """a, b and c; a long list ends with how many more there are."""
        if len(names) > at_most:
            return self("more", names=", ".join(names[:at_most]), n=len(names) - at_most)
        if len(names) < 2:
            return "".join(names)
        return self("and", first=", ".join(names[:-1]), last=names[-1])


def words(language: str) -> Words:
    """The words of a language. ValueError for one that is not there.

    >>> words("en")("not_measured")
    'not measured'
    """
    if language not in LANGUAGES:
        raise ValueError(f"language {language!r} is not there; available: {', '.join(LANGUAGES)}; give --lang en")
    return Words(language, _table(language))


@lru_cache
def _table(language: str) -> dict[str, str]:
    """Key -> message. English is what a translator reads (msgid), Japanese what he wrote (msgstr)."""
    return {str(m.context): str(m.id if language == "en" else m.string or m.id) for m in messages()}


@lru_cache
def messages() -> tuple[Message, ...]:
    """Every entry of every file, in order; `context` is the key."""
    found: list[Message] = []
    for path in sorted(MESSAGES.glob("*.po")):
        with path.open("rb") as file:
            found += [message for message in read_po(file, abort_invalid=True) if message.id]
    return tuple(found)
