"""Copy the records of a run folder into benchmarks/records/NAME, paths of this machine left out.

python benchmarks/export.py RUN NAME [KIND,...]

With kinds, only records of these, without their empty fields.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from termwise.results import RunFolder

RECORDS = Path(__file__).parent / "records"


def main(run: Path, name: str, kinds: frozenset[str] = frozenset()) -> None:
    target = RECORDS / name
    target.mkdir(parents=True, exist_ok=True)
    described = json.loads((run / "run.json").read_text(encoding="utf-8"))
    is_sealed = described.pop("num_records", None) is not None
    text = json.dumps(described, indent=1, ensure_ascii=False)
    (target / "run.json").write_text(
        re.sub(r'(?<=["\'])/[^"\']*/([^/"\']+)(?=["\'])', r"\1", text) + "\n", encoding="utf-8"
    )
    lines = (run / "records.jsonl").read_bytes().splitlines(keepends=True)
    (target / "records.jsonl").write_bytes(b"".join(_chosen(lines, kinds) if kinds else lines))
    if is_sealed:
        RunFolder.seal(target)


def _chosen(lines: list[bytes], kinds: frozenset[str]) -> Iterator[bytes]:
    for line in lines:
        record = json.loads(line)
        if record["kind"] in kinds:
            full = {name: value for name, value in record.items() if value is not None or name == "value"}
            yield json.dumps(full, ensure_ascii=False).encode() + b"\n"


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2], frozenset(sys.argv[3].split(",") if len(sys.argv) == 4 else ()))
