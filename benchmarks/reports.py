"""Write the reports of docs/reports from run folders, in both languages.

    python benchmarks/reports.py NAME RUN ...

docs/reports/NAME.html and NAME.ja.html; the same command on the same records gives the same pages. An inspection's own run folder
shows more than its kept records, which leave the terms of each head out.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from termwise.report import decision_page

REPORTS = Path(__file__).parents[1] / "docs" / "reports"


def main(name: str, runs: list[Path]) -> None:
    REPORTS.mkdir(parents=True, exist_ok=True)
    for lang, ending in (("en", ".html"), ("ja", ".ja.html")):
        with tempfile.TemporaryDirectory() as out:
            page = decision_page.write(runs, lang=lang, out=Path(out)).page
            (REPORTS / f"{name}{ending}").write_bytes(page.read_bytes())


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], [Path(run) for run in sys.argv[2:]])
