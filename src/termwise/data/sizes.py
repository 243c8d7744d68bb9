"""Sizes for people."""

from __future__ import annotations


def counted(number: int, what: str, several: str | None = None) -> str:
    """So many of something; `several` where more than one is not spelt with an s.

    >>> counted(1, "token"), counted(20000, "token"), counted(2, "copy", "copies")
    ('1 token', '20,000 tokens', '2 copies')
    """
    return f"{number:,} {what if number == 1 else several or what + 's'}"


def in_bytes(size: float) -> str:
    """Bytes for people.

    >>> in_bytes(12), in_bytes(4096), in_bytes(5e9)
    ('12 B', '4.1 kB', '5.0 GB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} B" if unit == "B" else f"{size:,.1f} {unit}" if size < 1e5 else f"{size:.1e} {unit}"
