"""Small texts on disk, and what a part holds read back without the code under test."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from termwise.data import Text, Tokens, open_text

END = 256
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。"
ODD = (
    "\ttabs  two spaces\r\nCRLF\r\nNUL \0 here, line separator \u2028 and \u0085, \ufeff inside, emoji 👩‍👩‍👧, "
    + JAPANESE
)


def write_documents(folder: Path, documents: list[str]) -> Path:
    """A folder with one .txt a document, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, document in enumerate(documents):
        (folder / f"{number:05d}.txt").write_bytes(document.encode())
    return folder


def open_documents(folder: Path, documents: list[str], **options: object) -> Text:
    return open_text([str(write_documents(folder / "text", documents))], cache=folder / "cache", **options)  # type: ignore[arg-type]


def strings(part: Tokens) -> list[str]:
    """The documents of a bytes part as text, asserting that the end of document stands at the end only."""
    found = []
    for index in range(part.num_documents):
        ids = part.document(index)
        assert END not in ids[:-1]
        found.append(bytes(ids[ids != END].astype(np.uint8)).decode())
    return found
