"""docs/verdict.md says what the rules do: its example is read, its tables name every reason, condition and missing figure."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from termwise.report.decision.evidence import Checks, Complexity, Evidence
from termwise.report.decision.figures import MISSING, Figure, Pair
from termwise.report.decision.limits import Limits, read_limits
from termwise.report.decision.rules import decide
from termwise.report.flaws import Flaw
from termwise.report.words import words

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "verdict.md").read_text(encoding="utf-8")


def test_the_example_is_a_file_of_limits(tmp_path):
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    path = tmp_path / "limits.yaml"
    path.write_text(text)
    found = read_limits(path)
    assert found.context == 4096 and found.written is not None and found.engines == ("transformers",)
    told = set(re.findall(r"^(\w+):", text, flags=re.MULTILINE)) | {"candidate"}
    assert told == set(Limits.model_fields)


def test_the_defaults_are_those_that_the_page_tells():
    assert Limits().accuracy == 0.05 and "0.05 nats/token, about 5 % of perplexity" in PAGE
    assert (Limits().memory, Limits().latency, Limits().context, Limits().machine, Limits().engines) == (None,) * 4 + (
        (),
    )


def reached() -> tuple[set[str], set[str]]:
    """Every reason, condition and missing figure that some evidence leads to."""
    ratios = (MISSING, Figure(0.5), Figure(0.5, 0.4, 0.6), Figure(2.0, 1.9, 2.1))
    losses = (MISSING, Figure(0.0, 0.0, 0.01), Figure(0.0, -0.1, 0.1), Figure(0.2, 0.1, 0.3))
    slots = (None, MISSING, Figure(-0.1, -0.2, -0.05), Figure(0.0, -0.1, 0.1), Figure(0.2, 0.1, 0.3))
    checks = (Checks(), Checks(9), Checks(9, has_soak=True), Checks(9, 1))
    bounds = (
        Limits(), Limits(machine="EPYC"), Limits(machine="EPYC", engines=("vllm",)), Limits(memory=0.5), Limits(latency=0.5),
        Limits(latency=0.3),
    )  # fmt: skip
    reasons: set[str] = set()
    missing: set[str] = set()
    for why in ("incomplete", "implausible", "unfinished"):
        reasons.add(decide(Evidence("a", "b", flaws=(Flaw(why, "run"),)), Limits()).reason)
    for loss, memory, latency, slot, check, limits in itertools.product(losses, ratios, ratios, slots, checks, bounds):
        for short, shown in ((4096, False), (512, False), (4096, True)):
            evidence = Evidence(
                "a", "b", 4096, short, Pair(change=loss), Pair(change=memory), Pair(change=latency),
                slots=slot or MISSING, needs_slots=slot is not None, checks=check, complexity=Complexity(),
                machine="AMD EPYC" if latency.is_there else "", is_demonstration=shown,
            )  # fmt: skip
            found = decide(evidence, limits)
            reasons |= {found.reason, *found.conditions}
            missing |= set(found.missing)
    return reasons, missing


def test_the_tables_name_every_reason_and_no_other():
    reasons, missing = reached()
    rules = PAGE.split("## The rules, in this order")[1].split("```python")[0]
    table = "\n".join(line.split("|")[2] for line in rules.splitlines() if line.startswith("| ") and "---" not in line)
    assert set(re.findall(r"`(\w+)`", table)) == reasons
    told = rules.split("Missing are named:")[1]
    assert set(re.findall(r"`(\w+)`", told)) == missing


def test_the_page_is_linked_from_the_others():
    for name in ("README.md", "docs/reading.md"):
        assert "verdict.md" in (ROOT / name).read_text(encoding="utf-8")


def test_every_reason_of_a_figure_has_its_words_in_both_languages():
    sources = (ROOT / "src" / "termwise" / "report" / "decision" / "gathering").glob("*.py")
    keys = {
        key for path in sources for key in re.findall(r"\"(decision\.why\.\w+)\"", path.read_text(encoding="utf-8"))
    }
    keys |= {f"decision.why.{name}" for name in ("no_memory", "no_latency", "too_few_seeds", "too_few_documents")}
    assert len(keys) > 15
    for lang in ("en", "ja"):
        assert {key for key in keys if not words(lang).known(key, "")} == set()
