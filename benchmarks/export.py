"""Copy the records of a run folder into benchmarks/records/NAME, paths of this machine left out.

python benchmarks/export.py RUN NAME
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

RECORDS = Path(__file__).parent / "records"


def main(run: Path, name: str) -> None:
    target = RECORDS / name
    target.mkdir(parents=True, exist_ok=True)
    described = json.loads((run / "run.json").read_text(encoding="utf-8"))
    text = json.dumps(described, indent=1, ensure_ascii=False)
    (target / "run.json").write_text(
        re.sub(r'(?<=["\'])/[^"\']*/([^/"\']+)(?=["\'])', r"\1", text) + "\n", encoding="utf-8"
    )
    (target / "records.jsonl").write_bytes((run / "records.jsonl").read_bytes())


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2])
