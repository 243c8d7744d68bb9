"""The page of a benchmark: crossings first, then figures, tables, the machine, what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from termwise.report import bench_figures, bench_tables
from termwise.report.bench_view import BASELINE, MACHINE, MEASURES, WHOLE_MODELS, BenchView, Series
from termwise.report.blocks import Block, Facts, Lines, Section
from termwise.report.sections import method
from termwise.report.verdict import Summary
from termwise.report.words import Words


def parts(view: BenchView, say: Words) -> dict[str, Any]:
    """What the template is given: view, kicker, title, progress, summary, sections."""
    return {
        "view": view, "kicker": say("bench.kicker"), "title": title(view, say), "progress": progress(view, say),
        "summary": summary(view, say), "sections": sections(view, say),
    }  # fmt: skip


def title(view: BenchView, say: Words) -> str:
    """What is compared."""
    if view.picks:
        return say("bench.title.calibration")
    if not view.names:
        return say("bench.title.none")
    return say.plural("bench.title", len(view.names), variant=view.names[0])


def progress(view: BenchView, say: Words) -> str:
    """How far a benchmark is; empty once every row that was begun has its figure."""
    rows = [record for one in view.series if one.variant != BASELINE for record in one.main.values()]
    lengths = view.reading.setting("lengths", [])
    missing = [n for n in lengths if isinstance(n, int) and n not in {r.subject["length"] for r in rows}]
    if not rows or not missing:
        return ""
    return say("bench.unfinished", done=len(view.lengths), planned=len(lengths))


def summary(view: BenchView, say: Words) -> Summary:
    """Where each subject passes the baseline, in sentences."""
    if view.picks:
        good = sum((pick.value or 1.0) <= 1 + bench_tables.GOOD for *_, pick in view.picks)
        return Summary(say("bench.headline.picks", good=good, n=len(view.picks)), (say("bench.line.picks"),), ())
    compared = [one for measure in MEASURES for one in view.of(measure) if one.variant != BASELINE]
    if not compared:
        return Summary(say("bench.headline.empty"), (), ())
    ahead = [one for one in compared if one.crossing and one.crossing.value and one.measure != "memory"]
    # One subject in the headline, in every measure; the lines below it tell of all.
    facts = [_fact(one, say) for one in ahead if one.variant == ahead[0].variant]
    longest = say.length(max(view.lengths))
    headline = say("bench.headline.none", longest=longest)
    if facts:
        headline = say("bench.headline.some", facts=say.listing(facts[:3]))
    lines = [_shape(view, say), *(_sentence(one, view, say) for one in compared if one.ratio)]
    return Summary(headline, tuple(lines), ())


def _shape(view: BenchView, say: Words) -> str:
    setting = view.reading.setting
    names = ("batch", "heads", "kv_heads", "key_width", "value_width", "dtype", "threads")
    are_models = all(one.measure in WHOLE_MODELS for one in view.series)
    key = "bench.shape.models" if are_models else "bench.shape"
    return say(key, **{name: setting(name, say("not_measured")) for name in names})


def _fact(one: Series, say: Words) -> str:
    assert one.crossing is not None
    key = f"bench.fact.{one.measure}" + ("" if bench_figures.is_inside(one) else ".always")
    return say(key, variant=bench_tables.name(one, say), length=say.integer(one.crossing.value))


def _sentence(one: Series, view: BenchView, say: Words) -> str:
    longest = max(length for length, record in one.ratio.items() if record.value is not None)
    crossing = say("bench.crosses.never", length=say.length(longest))
    if one.crossing is not None and one.crossing.value is not None:
        key = "bench.crosses" if bench_figures.is_inside(one) else "bench.crosses.always"
        crossing = say(key, length=say.length(round(one.crossing.value)))
    fields = {
        "measure": say(f"bench.measure.{one.measure}"), "variant": bench_tables.name(one, say), "crossing": crossing,
        "longest": say.length(longest),
    }  # fmt: skip
    if one.measure == "memory":
        base = next((other.values.get(longest) for other in view.of("memory") if other.variant == BASELINE), None)
        own = one.values.get(longest)
        sizes = {"own": say.size(own or 0), "base": say.size(base or 0)}
        return say("bench.line.memory", **fields, **sizes)
    return say("bench.line", **fields, ratio=say("bench.times", value=say.digits(one.ratio[longest].value or 0.0)))


def sections(view: BenchView, say: Words) -> list[Section]:
    """Every section that has something to say, below the crossings."""
    made: list[tuple[str, Sequence[Block | None]]] = [
        ("picks", [bench_tables.picks(view, say)]),
        ("figures", bench_figures.figures(view, say)),
        ("tables", bench_tables.measures(view, say)),
        ("state", [bench_tables.state(view, say)]),
        ("machine", [_machine(view, say), bench_tables.limits(view, say)]),
        ("forms", [bench_tables.forms(view, say)]),
        (
            "problems",
            [bench_tables.problems(view, say) or (Lines((say("bench.problems.none"),)) if view.series else None)],
        ),
    ]
    found = []
    for key, blocks in made:
        kept: tuple[Block, ...] = tuple(block for block in blocks if block is not None)
        if kept:
            found.append(Section(key, say(f"bench.section.{key}"), kept))
    return [*found, method(view.reading, say), _threats(say)]


def _machine(view: BenchView, say: Words) -> Facts | None:
    pairs = []
    for metric in MACHINE:
        record = view.machine.get(metric)
        if record is not None and record.value is not None:
            text = say.figure(record.value, record.unit)
            if record.low is not None and record.high is not None:
                text += f" [{say.figure(record.low, record.unit)}, {say.figure(record.high, record.unit)}]"
            pairs.append((say(f"bench.machine.{metric}"), (text,), False))
    return Facts(tuple(pairs)) if pairs else None


def _threats(say: Words) -> Section:
    keys = ("one_machine", "threads", "random", "quality", "interpolated")
    return Section(
        "threats",
        say("bench.section.threats"),
        (Lines(tuple(say(f"bench.threat.{key}") for key in keys), is_list=True),),
    )
