"""Files that are whole or not there, and the one text and name of a value."""

from __future__ import annotations

import hashlib
import json
import os
import urllib.parse
from pathlib import Path
from typing import Any


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, no NaN. ValueError for what JSON cannot hold.

    >>> canonical_json({"b": (1, 2), "a": None})
    '{"a":null,"b":[1,2]}'
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{value!r} does not go into JSON ({error}); allowed are finite numbers, text, lists, dicts"
        ) from error


def config_hash(value: Any) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of the canonical JSON.

    >>> config_hash({"lr": 0.1, "steps": 3}) == config_hash({"steps": 3, "lr": 0.1})
    True
    """
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:12]


def file_name(variant: str) -> str:
    """A variant's name as one folder name on every system; urllib.parse.unquote gives the name back.

    Names that would be too long end in a hash of the whole instead: still unique, no longer reversible.

    >>> file_name("taylor:0..2@mean+w64s4")
    'taylor%3A0..2@mean+w64s4'
    """
    if not variant:
        raise ValueError("variant='' names no folder; give a catalogue name, a short name or a spec file")
    name = urllib.parse.quote(variant, safe="@+=,")
    if name.startswith(".") or name.endswith("."):
        name = name.replace(".", "%2E")
    return name if len(name) <= 120 else f"{name[:100]}%{config_hash(variant)}"


def sync_folder(path: Path) -> None:
    """Make renames inside a folder survive a power cut (where the system can open a folder)."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def atomic_write_text(path: str | Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new one, never a part, also after a power cut.

    Temporary file in the same folder, fsync, rename, fsync of the folder. OSError leaves the old file as it was.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def is_left_over(path: Path) -> bool:
    """A temporary file of atomic_write_text whose process was killed."""
    return path.name.startswith(".") and path.name.endswith(".tmp") and path.is_file()
