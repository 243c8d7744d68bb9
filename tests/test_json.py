"""What --json prints: the figures of the summary, on one line, without the parts that only records.jsonl holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from termwise.commands.shared import finish
from termwise.results import RunFolder
from tests.conversion.tiny_conversion import original, run, text
from tests.conversion.tiny_conversion import plan as plan_of_heads
from tests.inspection import tiny_inspection
from tests.planning import tiny_plan


def inspected(top: Path) -> Path:
    asked = tiny_inspection.config(tiny_inspection.tiny_folder(top / "model"), tiny_inspection.write_text(top / "text"))
    tiny_inspection.inspected(asked, top / "out")
    return top / "out"


def converted(top: Path) -> Path:
    original(top / "original")
    asked = {"model": str(top / "original"), "plan": str(plan_of_heads(top / "plan")), "text": (text(top),)}
    run(top / "out", **asked, steps=4, context=32, max_tokens=256)
    return top / "out"


def planned(top: Path) -> Path:
    asked = tiny_plan.config(tiny_plan.tiny_folder(top / "model"), tiny_plan.write_text(top / "text"))
    tiny_plan.planned(asked, top / "out")
    return top / "out"


TOLD = {
    inspected: {"loss", "rise", "expected_loss", "kept_bytes", "fisher", "projected_error"},
    converted: {"held_out_nats", "held_out_bits", "difference", "recovery", "state", "cache", "cache_half"},
    planned: {"loss_rise", "gain", "state_share", "chosen_share", "live_bytes", "kept_bytes"},
}
PARTS = {
    inspected: {"magnitude", "output_error", "score_mean", "distance_weight"},
    converted: {"held_out_document"},
    planned: set(),
}


@pytest.mark.parametrize("made", TOLD, ids=lambda made: made.__name__)
def test_json_holds_the_figures_of_the_summary_and_not_their_parts(made, capsys, tmp_path):
    folder = made(tmp_path)
    capsys.readouterr()
    finish(folder, as_json=True)
    line = capsys.readouterr().out
    told = json.loads(line, parse_constant=pytest.fail)
    assert line.count("\n") == 1 and told["folder"] == str(folder) and Path(told["page"]).is_file()
    metrics = {record["metric"] for record in told["records"]}
    kept = {record.metric for record in RunFolder.open(folder).records()}
    assert metrics >= TOLD[made] and not metrics & PARTS[made]
    assert kept >= PARTS[made]
    assert all(record["subject"].get(place) is None for record in told["records"] for place in ("document", "text"))
    assert any(record["low"] is not None for record in told["records"])
