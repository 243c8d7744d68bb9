"""The real commands one after the other on a tiny model: their runs are recognised as being about one candidate."""

from __future__ import annotations

import pytest
from tests.conversion.tiny_conversion import original
from tests.planning.tiny_plan import CONTEXT, write_text

from termwise.cli import main
from termwise.report.decision.case import gather
from termwise.report.decision.limits import Limits
from termwise.report.decision.rules import Outcome

pytestmark = pytest.mark.slow


def run(*words: object) -> None:
    """A command as it is typed."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert ended.value.code in (0, None)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("commands")
    model, text = root / "model", write_text(root / "text")
    original(model, max_position_embeddings=512)
    planned, made, timed, scored = (root / name for name in ("plan", "made", "timed", "scored"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        about = ("--context", CONTEXT, "--text", text)
        run("plan", model, *about, "--max-state", "50%", "--shares", "40%,50%", "--texts", 3, "--planning-texts", 2,
            "--anchors", 0, "--out", planned)  # fmt: skip
        run("convert", "model", "--plan", planned, *about, "--max-tokens", 4096, "--out", "made")
        run("bench", "made/model", "--lengths", CONTEXT, "--measures", "step", "--repeats", 3, "--out", timed)
        run("evaluate", made, model, "--tasks", "perplexity", *about, "--max-tokens", 4096, "--out", scored)
    return [planned, made, timed, scored]


def test_all_runs_about_a_converted_plan_meet_in_one_candidate(folders):
    case = gather(folders, Limits(context=CONTEXT, accuracy=1.0))
    assert not case.refused and not case.unused
    names = [one.evidence.candidate for one in case.verdicts]
    assert sorted(names) == ["plan:40%", "plan:50%"]
    found = next(one for one in case.verdicts if one.evidence.candidate == "plan:50%")
    evidence = found.evidence
    assert set(evidence.sources) == {str(folder) for folder in folders}
    assert evidence.unidentified == () and evidence.flaws == ()
    assert evidence.accuracy.change.has_interval and evidence.accuracy_context == CONTEXT
    assert evidence.memory.change.is_there and evidence.latency.change.has_interval and evidence.machine
    assert Outcome.MISSING not in found.decision.outcomes.values() and found.decision.missing == ("checks",)
    assert evidence.complexity.tuning_hours == 0.0 and evidence.complexity.own_kernels is not None


def test_a_plan_is_told_in_its_own_bytes_without_the_conversion(folders):
    case = gather(folders[:1], Limits())
    found = next(one for one in case.verdicts if one.evidence.is_chosen).evidence
    assert found.candidate == "plan:50%" and found.context == CONTEXT
    assert found.memory.change.value == pytest.approx(found.memory.candidate.value / found.memory.today.value)
    assert found.accuracy.today.is_there and found.accuracy.candidate.is_there and found.slots.is_there
    change = found.accuracy.candidate.value - found.accuracy.today.value
    assert found.accuracy.change.value == pytest.approx(change, abs=1e-9)
