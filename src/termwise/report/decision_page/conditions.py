"""What has to hold and what ends it, when that was fixed, and what nobody has tested."""

from __future__ import annotations

from termwise.report.decision.case import Case, Verdict
from termwise.report.decision.limits import Limits, fixed_before
from termwise.report.decision.rules import Outcome
from termwise.report.decision_page import wording
from termwise.report.words import Words

MOST_UNTESTED = 6


def limits_state(case: Case) -> str:
    """How far the limits can be trusted to be fixed beforehand: default, undated, late or before."""
    if not case.limits_path:
        return "default"
    if case.limits.written is None:
        return "undated"
    created = (str(one.run.get("created") or "") for one in case.readings)
    return "late" if fixed_before(case.limits, created) is False else "before"


def stamp(case: Case, say: Words) -> str:
    """When the limits were fixed, and by which file."""
    written = case.limits.written
    if not case.limits_path:
        return say("decision.stamp.default")
    if written is None:
        return say("decision.stamp.undated", path=case.limits_path)
    return say("decision.stamp", time=say.datetime(written.isoformat()), path=case.limits_path)


def go_on(verdict: Verdict, limits: Limits, say: Words) -> tuple[str, ...]:
    """What has to hold, from the limits and the fixed rules."""
    lines = [say("decision.go.accuracy", limit=wording.short(limits.accuracy))]
    lines += _cost_lines("go", limits, say)
    if verdict.evidence.needs_slots:
        lines.append(say("decision.go.slots"))
    lines.append(say("decision.go.checks"))
    machine = limits.machine or say("decision.target")
    lines.append(say("decision.go.machine", machine=machine))
    if limits.engines:
        lines.append(say("decision.go.engines", names=say.listing(limits.engines, 3)))
    return tuple(lines)


def _cost_lines(kind: str, limits: Limits, say: Words) -> list[str]:
    """Memory and time: what was asked of them, and that one of them must be better."""
    asked = [
        say(f"decision.{kind}.{name}", limit=wording.percent(value, say))
        for name, value in (("memory", limits.memory), ("latency", limits.latency))
        if value is not None
    ]
    return [*asked, say(f"decision.{kind}.gain")]


def stop(verdict: Verdict, limits: Limits, say: Words) -> tuple[str, ...]:
    """What ends it."""
    lines = [say("decision.stop.accuracy", limit=wording.short(limits.accuracy)), *_cost_lines("stop", limits, say)]
    if verdict.evidence.needs_slots:
        lines.append(say("decision.stop.slots"))
    lines.append(say("decision.stop.checks"))
    return tuple(lines)


def untested(case: Case, say: Words) -> tuple[str, ...]:
    """What nobody knows yet: the figures that are missing, then what the records do not reach."""
    evidence, decision = case.verdicts[0].evidence, case.verdicts[0].decision
    # Without a time there is no machine that it was taken on.
    implied = {"machine"} if "latency" in decision.missing else set()
    keys = [key for key in decision.missing if key not in implied and say.known(f"decision.untested.{key}", "")]
    if decision.outcomes.get("latency") is not Outcome.MISSING and "bench_on_target" in decision.conditions:
        keys.append("target")
    tasks = {
        str(task) for one in case.readings if one.run["command"] == "evaluate" for task in one.setting("tasks", [])
    }
    if not tasks - {"perplexity", "recall"}:
        keys.append("tasks")
    keys += ["texts", "load"]
    lines = [say(f"decision.untested.{key}") for key in keys]
    if evidence.context is not None:
        lines.append(say("decision.untested.context", context=say.integer(evidence.context)))
    return tuple(lines[:MOST_UNTESTED])
