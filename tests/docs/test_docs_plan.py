"""The figures of plans in the findings are those of the record."""

from __future__ import annotations

import plan
from tests.docs.conftest import ROOT

VIEW = plan.plan_view(plan.read(ROOT / "benchmarks" / "records" / "plan_smollm2"))


def test_the_table_in_the_findings_is_the_record():
    assert plan.table(VIEW) in (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")


def test_the_record_shows_what_the_readme_says():
    told = (ROOT / "README.md").read_text(encoding="utf-8")
    for point in VIEW.points:
        assert f"{point.rise.value:+.4f}" in told, (point.method, point.share)
    for (share, rival), gain in VIEW.gains.items():
        if rival == "slots":
            row = next(line for line in told.splitlines() if line.startswith(f"| {100 * share:.0f} % |"))
            assert (
                f"{gain.value:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}]" in row and plan.WORDS[plan.answer(gain)] in row
            )
    assert plan.kinds(VIEW) == {"exact": 5, "slots": 40, "centers": 39, "mean": 6}
    assert VIEW.num_reported == 8 and f"{VIEW.longer.value:+.3f}" in told
