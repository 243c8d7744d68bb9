"""Times, sizes and ratios as people read them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Three digits in the unit that fits.

    >>> duration(0.000123), duration(0.0456), duration(123.4)
    ('123 µs', '45.6 ms', '123 s')
    """
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if seconds < 1 / factor * 1000:
            return f"{digits(seconds * factor)} {unit}"
    return f"{digits(seconds)} s"


def size(num_bytes: float) -> str:
    """Bytes in binary units.

    >>> size(4461600), size(100)
    ('4.25 MiB', '100 B')
    """
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if num_bytes >= 1024**power:
            return f"{digits(num_bytes / 1024**power)} {unit}"
    return f"{num_bytes:.0f} B"


def tokens(length: float) -> str:
    """A length; multiples of 1,024 as people type them.

    >>> tokens(4096), tokens(700.4)
    ('4k', '700')
    """
    if length >= 1024 and length % 1024 == 0:
        return f"{length / 1024:.0f}k"
    return f"{length:,.0f}"


def digits(number: float) -> str:
    """Three digits, never an exponent.

    >>> digits(0.0123), digits(2.5), digits(1234.5)
    ('0.0123', '2.50', '1,234')
    """
    if number >= 100:
        return f"{number:,.0f}"
    if number >= 1:
        return f"{number:.2f}" if number < 10 else f"{number:.1f}"
    return f"{number:.3g}" if number >= 1e-3 or number == 0 else f"{number:.1g}"


def figure(value: float, unit: str) -> str:
    """A value in its unit."""
    if unit in ("s", "s/token"):
        return duration(value)
    if unit == "B":
        return size(value)
    if unit == "B/s":
        return f"{value / 1e9:.1f} GB/s"
    if unit == "operations/s":
        return f"{value / 1e9:.1f} GFLOP/s"
    return digits(value)
