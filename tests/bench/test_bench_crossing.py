"""Crossings are interpolated between measured lengths, in logarithms."""

from __future__ import annotations

import pytest
from small_bench import config

from termwise.bench.crossing import crossing
from termwise.bench.run import crossings
from termwise.results import Record, RunFolder


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ({}, None),
        ({1024: 0.5}, None),
        ({1024: 2.0}, 1024),
        ({1024: 0.25, 4096: 1.0}, None),
        ({1024: 0.25, 4096: 4.0}, 2048),
        ({4096: 4.0, 1024: 0.25}, 2048),
        ({1024: 0.5, 2048: 0.5, 8192: 2.0}, 4096),
        ({1024: 2.0, 4096: 0.5}, None),
        ({512: 2.0, 1024: 0.5, 4096: 2.0, 8192: 4.0}, 2048),
        ({1024: 1.5, 4096: 3.0}, 1024),
    ],
)
def test_where_the_ratio_passes_one_for_good(ratios, expected):
    found = crossing(ratios)
    assert found == (None if expected is None else pytest.approx(expected))


def test_a_power_law_is_met_exactly():
    """Quadratic against linear time: the ratio is T / 3000."""
    assert crossing({length: length / 3000 for length in (512, 2048, 8192)}) == pytest.approx(3000)


def test_crossings_of_planted_records(tmp_path):
    folder = RunFolder.create(tmp_path / "out", "bench", {}, {})

    def plant(variant: str, length: int, value: float) -> None:
        subject = {"variant": variant, "measure": "decode", "length": length}
        folder.append(Record(run_id="r", kind="speed", subject=subject, metric="decode_ratio", value=value, unit="1"))

    for length in (1024, 4096):
        plant("fast", length, length / 2048)
        plant("slow", length, 0.1)
    found = {record.subject["variant"]: record for record in crossings(folder, config())}
    assert found["fast"].value == pytest.approx(2048)
    assert (found["slow"].value, found["slow"].status) == (None, "not_measured")
    assert found["slow"].reason == "no crossing up to 4,096"
