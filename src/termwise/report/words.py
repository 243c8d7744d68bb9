"""Messages, numbers, lists and dates in a language. The messages stand in messages/*.po, English and Japanese side by side."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache, reduce
from pathlib import Path

from babel.dates import format_date, format_time
from babel.lists import format_list
from babel.messages.catalog import Message
from babel.messages.pofile import read_po
from babel.numbers import format_decimal

MESSAGES = Path(__file__).parent / "messages"
LOCALES = {"en": "en_GB", "ja": "ja"}
LANGUAGES = tuple(LOCALES)


class Words:
    """Messages and number forms of one language; `words` makes it.

    >>> say = words("en")
    >>> say("value.context", n=say.integer(16384)), say.signed(-0.2), say.number(None)
    ('16,384 tokens', '−0.200', 'not measured')
    """

    def __init__(self, language: str, table: dict[str, str]) -> None:
        self.language = language
        self._locale = LOCALES[language]
        self._table = table

    def __call__(self, key: str, **fields: object) -> str:
        """The message with its fields; an empty one, such as the interval of a count, takes the space before it along."""
        message = self._table[key]
        for name, value in fields.items():
            if value == "":
                message = message.replace(f" {{{name}}}", "")
        return message.format(**fields)

    def plural(self, key: str, n: int, **fields: object) -> str:
        """The message for n things; one thing has a message of its own where the language needs it."""
        singular = f"{key}.one"
        return self(singular if n == 1 and singular in self._table else key, n=n, **fields)

    def known(self, key: str, otherwise: str) -> str:
        """The message of a key that comes from the records, or the key in plain letters where no message exists."""
        return self._table.get(key, otherwise.replace("_", " "))

    def recorded(self, text: str) -> str:
        """A sentence that a run wrote, which is English, in this language; as it stands where no message has its form.

        >>> words("ja").recorded("not reached within 1,200 steps; equal to softmax_gate")
        '1,200ステップ以内に未達；softmax_gateと等しい'
        """
        if self.language == "en":
            return text
        for key, form in _recorded():
            if found := form.fullmatch(text):
                return self(key, **{name: self.recorded(value) for name, value in found.groupdict().items()})
        parts = text.split("; ")
        told = [self.recorded(part) for part in parts] if len(parts) > 1 else parts
        return text if told == parts else self.groups(told)

    def number(self, value: float | None, digits: int = 3) -> str:
        """A number with fixed decimals; a missing one in words."""
        return self("not_measured") if value is None else self._form(f"{value:.{digits}f}")

    def signed(self, value: float | None, digits: int = 3) -> str:
        """A difference, always with its sign."""
        return self("not_measured") if value is None else self._form(f"{value:.{digits}f}", "+")

    def integer(self, value: float | None) -> str:
        """A whole number with separators."""
        return self.number(value, 0)

    def digits(self, value: float) -> str:
        """Three digits, never an exponent.

        >>> [words("en").digits(x) for x in (0.0123, 2.5, 1234.5)]
        ['0.0123', '2.50', '1,234']
        """
        if value >= 1:
            return self.number(value, 0 if value >= 100 else 1 if value >= 10 else 2)
        return self._form(f"{Decimal(f'{value:.3g}' if value >= 1e-3 else f'{value:.1g}'):f}")

    def power(self, value: float) -> str:
        """Two digits and a power of ten, as relative errors are told."""
        return f"{value:.1e}" if value else "0"

    def share(self, value: float | None) -> str:
        """A share as a percentage: never 0 % for a small one, never 100 % for one that is not whole."""
        if value is None:
            return self("not_measured")
        if 0 < value < 0.0001:
            return self("share.below", n=self.number(0.01, 2))
        return self("share", n=self.number(100 * value, 0 if value in (0, 1) else 2 if value < 0.01 else 1))

    def level(self, value: float | None) -> str:
        """A confidence level such as 95 % or 99.17 %."""
        if value is None:
            return self("not_measured")
        return self("share", n=self._form(f"{100 * value:.2f}".rstrip("0").rstrip(".")))

    def interval(self, low: float | None, high: float | None, *, is_signed: bool = False, digits: int = 3) -> str:
        """[low, high]."""
        form = self.signed if is_signed else self.number
        return self("no_interval") if low is None or high is None else f"[{form(low, digits)}, {form(high, digits)}]"

    def interval_beside(
        self, low: float | None, high: float | None, *, is_signed: bool = False, digits: int = 3
    ) -> str:
        """The interval after a figure in a sentence, or that there is none.

        >>> words("en").interval_beside(0.1, 0.2), words("en").interval_beside(None, None)
        ('[0.100, 0.200]', '(no interval)')
        """
        if low is None or high is None:
            return self("no_interval.beside")
        return self.interval(low, high, is_signed=is_signed, digits=digits)

    def _form(self, exact: str, sign: str = "") -> str:
        """A rounded number with the separators of the language; babel would round halves another way."""
        value = Decimal(exact)
        if not value.is_finite():
            return exact
        decimals = -int(value.as_tuple().exponent)
        plain = "#,##0." + "0" * decimals if decimals > 0 else "#,##0"
        text = format_decimal(value, f"{sign}{plain};-{plain}", locale=self._locale)
        return text.replace("-", "\N{MINUS SIGN}")

    def duration(self, seconds: float) -> str:
        """Three digits in the unit that fits.

        >>> [words("en").duration(s) for s in (0.000123, 0.0456, 123.4)]
        ['123 µs', '45.6 ms', '123 s']
        """
        unit, factor = ("us", 1e6) if seconds < 1e-3 else ("ms", 1e3) if seconds < 1 else ("s", 1.0)
        return self(f"amount.{unit}", n=self.digits(seconds * factor))

    def size(self, num_bytes: float) -> str:
        """Bytes in binary units.

        >>> words("en").size(4461600), words("en").size(100)
        ('4.25 MiB', '100 B')
        """
        for power, unit in ((3, "gib"), (2, "mib"), (1, "kib")):
            if num_bytes >= 1024**power:
                return self(f"amount.{unit}", n=self.digits(num_bytes / 1024**power))
        return self("amount.b", n=self.integer(num_bytes))

    def bytes(self, value: float | None) -> str:
        """Bytes, every one of them, that no line end parts from their unit; missing ones in words."""
        return self("not_measured") if value is None else self("amount.bytes", n=self.integer(value))

    def length(self, tokens: float) -> str:
        """A length; multiples of 1,024 as people type them.

        >>> words("en").length(4096), words("en").length(700.4)
        ('4k', '700')
        """
        is_round = tokens >= 1024 and tokens % 1024 == 0
        return f"{tokens / 1024:.0f}k" if is_round else self.integer(tokens)

    def figure(self, value: float, unit: str) -> str:
        """A value in the unit of its record."""
        if unit in ("s", "s/token"):
            return self.duration(value)
        if unit == "B":
            return self.size(value)
        if unit == "B/s":
            return self("amount.gb_s", n=self.number(value / 1e9, 1))
        if unit == "operations/s":
            return self("amount.gflop_s", n=self.number(value / 1e9, 1))
        return self.digits(value)

    def date(self, moment: str) -> str:
        """The day of an ISO time, in UTC; a text that is none as it stands.

        >>> words("en").date("2026-12-01T02:15:07+00:00"), words("ja").date("2026-12-01T02:15:07+00:00")
        ('1 December 2026', '2026年12月1日')
        """
        found = _utc(moment)
        return format_date(found, "long", locale=self._locale) if found else moment

    def datetime(self, moment: str) -> str:
        """The day and minute of an ISO time, in UTC; a text that is none as it stands.

        >>> words("en").datetime("2026-12-01T11:15:07+09:00"), words("ja").datetime("2026-12-01T02:15:07")
        ('1 December 2026, 02:15 UTC', '2026年12月1日 02:15 UTC')
        """
        found = _utc(moment)
        if found is None:
            return moment
        return self("datetime", date=self.date(moment), time=format_time(found, "HH:mm", locale=self._locale))

    def listing(self, names: Sequence[str], at_most: int = 6) -> str:
        """a, b and c; a long list ends with how many more there are."""
        if len(names) > at_most:
            return self("more", names=self.row(names[:at_most]), n=self.integer(len(names) - at_most))
        return format_list(names, locale=self._locale)

    def row(self, names: Iterable[object]) -> str:
        """a, b, c: things in a row, without a word before the last."""
        return self._joined("row", names)

    def groups(self, groups: Iterable[str]) -> str:
        """Things in a row that may hold rows themselves."""
        return self._joined("groups", groups)

    def sentences(self, sentences: Iterable[str]) -> str:
        """Sentences one after the other; empty ones are left out."""
        return self._joined("sentences", filter(None, sentences))

    def _joined(self, key: str, parts: Iterable[object]) -> str:
        texts = [str(part) for part in parts]
        return reduce(lambda before, after: self(key, before=before, after=after), texts) if texts else ""


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
    return {str(m.context): str(m.id if language == "en" else m.string) for m in messages()}


@lru_cache
def messages() -> tuple[Message, ...]:
    """Every entry of every file, in order; `context` is the key."""
    found: list[Message] = []
    for path in sorted(MESSAGES.glob("*.po")):
        with path.open("rb") as file:
            found += [message for message in read_po(file, abort_invalid=True) if message.id]
    return tuple(found)


@lru_cache
def _recorded() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """(key, form) of every sentence that runs write, the most telling first; a field ends where a part of a sentence does."""
    found = [(str(m.context), str(m.id)) for m in messages() if str(m.context).startswith("recorded.")]
    found.sort(key=lambda entry: -len(re.sub(r"\{\w+\}", "", entry[1])))
    return tuple((key, re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^;]+?)", re.escape(text)))) for key, text in found)


def _utc(moment: str) -> datetime | None:
    """An ISO time in UTC, which it is taken to be where it names no zone."""
    try:
        found = datetime.fromisoformat(moment)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
