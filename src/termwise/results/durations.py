"""Times as people write and read them."""

from __future__ import annotations

import re

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str) -> float:
    """Seconds of a time like 90s, 10m, 1h30m; a bare number is minutes.

    >>> parse_duration("10m"), parse_duration("1h30m"), parse_duration("90s"), parse_duration("2")
    (600.0, 5400.0, 90.0, 120.0)
    """
    text = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return _positive(float(text) * 60.0, text)
    if not re.fullmatch(r"(\d+(\.\d+)?[smhd])+", text):
        raise ValueError(f"time {text!r}; allowed are numbers with s, m, h or d, e.g. 90s, 10m, 1h30m")
    return _positive(sum(float(n) * _UNITS[unit] for n, unit in re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)), text)


def _positive(seconds: float, text: str) -> float:
    if seconds <= 0:
        raise ValueError(f"time {text!r} is nothing; give e.g. 10m")
    return seconds


def format_duration(seconds: float) -> str:
    """A time for people.

    >>> format_duration(8.4), format_duration(95), format_duration(5400)
    ('8 s', '1 min 35 s', '1 h 30 min')
    """
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s" if seconds % 60 else f"{seconds // 60} min"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"
