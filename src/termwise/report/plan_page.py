"""The page of a plan: the answer first, then the front, what every head keeps, and how far the proxies can be trusted."""

from __future__ import annotations

from collections import Counter
from typing import Any

from termwise.report import plan_figures
from termwise.report.blocks import Block, Cell, Column, Lines, Section, Table
from termwise.report.plan_view import KINDS, METHODS, PlanView, Point
from termwise.report.sections import method
from termwise.report.verdict import Summary
from termwise.report.words import Words
from termwise.results import Record

MOST_OPTIONS = 12


def parts(view: PlanView, say: Words) -> dict[str, Any]:
    """What the template is given: view, kicker, title, progress, summary, sections."""
    about = view.setting("about", {})
    title = say(
        "plan.title", model=about.get("name", say("not_measured")), context=say.integer(view.setting("context"))
    )
    return {
        "view": view, "kicker": say("plan.kicker"), "title": title, "progress": progress(view, say),
        "summary": summary(view, say), "sections": sections(view, say),
    }  # fmt: skip


def progress(view: PlanView, say: Words) -> str:
    """How many texts are reported; empty once all are."""
    planned = view.setting("texts", 0)
    return (
        say.plural("plan.unfinished", planned, done=view.num_reported, planned=planned)
        if view.num_reported < planned
        else ""
    )


def summary(view: PlanView, say: Words) -> Summary:
    """What the plan costs, and whether it beats the others of equal bytes."""
    chosen = view.chosen
    if chosen is None or chosen.rise is None:
        return Summary(say("plan.headline.none"), (), ())
    lines = [_gain(view, share, record, say) for (share, _), record in sorted(view.gains.items())]
    counts = Counter(head.keeps for head in view.heads)
    kinds = say.listing([say.plural(f"plan.kinds.{kind}", counts[kind]) for kind in KINDS if counts[kind]])
    lines.append(say.plural("plan.line.heads", len(view.heads), kinds=kinds))
    if view.shares and view.live is not None and view.live.value is not None:
        shares = {dtype: say.share(record.value) for dtype, record in view.shares.items()}
        lines.append(say("plan.line.sizes", **shares, live=say.size(view.live.value)))
    if view.longer is not None:
        length = say.integer(view.longer.subject["length"])
        lines.append(say("plan.line.longer", length=length, rise=say.signed(view.longer.value)))
    lines.append(say("plan.line.untrained"))
    return Summary(_headline(view, chosen, chosen.rise, say), tuple(lines), ())


def _headline(view: PlanView, chosen: Point, rise: Record, say: Words) -> str:
    target = view.setting("max_loss")
    key = "plan.headline"
    if target is not None:
        key += ".holds" if rise.high is not None and rise.high <= target else ".broken"
    interval = say.interval_beside(rise.low, rise.high, is_signed=True)
    return say(key, share=say.share(chosen.taken), rise=say.signed(rise.value), interval=interval, target=target)


def _gain(view: PlanView, share: float, record: Record, say: Words) -> str:
    fields = {
        "share": say.share(share),
        "value": say.signed(record.value, 4),
        "baseline": say(f"plan.baseline.{record.baseline}"),
    }
    if view.is_rival_itself(share, str(record.baseline)):
        return say("plan.line.gain.itself", **fields)
    if (found := answer(record)) == "few":
        return say("plan.line.gain.few", **fields)
    return say("plan.line.gain", **fields, interval=_interval(record, say, 4), answer=say(f"plan.answer.{found}"))


def answer(record: Record) -> str:
    """Which way a paired difference points, by its interval: lower, higher, none, or few where there is no interval."""
    if record.low is None or record.high is None:
        return "few"
    return "lower" if record.high < 0 else "higher" if record.low > 0 else "none"


def _interval(record: Record, say: Words, digits: int = 3) -> str:
    return say.interval(record.low, record.high, is_signed=True, digits=digits)


def sections(view: PlanView, say: Words) -> list[Section]:
    """Every section that has something to say."""
    made: list[tuple[str, list[Block | None]]] = [
        ("front", [_about(view, say), plan_figures.front(view, say), front_table(view, say)]),
        ("heads", [plan_figures.heads(view, say), _options(view, say)]),
        ("predicted", [_ranks(view, say), plan_figures.predicted(view, say), _anchors(view, say)]),
    ]
    found = []
    for key, blocks in made:
        kept = tuple(block for block in blocks if block is not None)
        if kept:
            found.append(Section(key, say(f"plan.section.{key}"), kept))
    threats = tuple(say(f"plan.threat.{key}") for key in ("texts", "half", "proxy", "tasks", "speed"))
    last = Section("threats", say("plan.section.threats"), (Lines(threats, is_list=True),))
    return [*found, method(view.reading, say), last]


def _about(view: PlanView, say: Words) -> Lines:
    setting = view.setting
    length = setting("length") or setting("context")
    fields = {
        "context": say.integer(setting("context")),
        "dtype": setting("cache_dtype"),
        "length": say.integer(length),
    }
    fields |= {"planning": setting("planning_texts"), "texts": setting("texts")}
    return Lines((say.plural("plan.question", setting("texts"), **fields),))


def front_table(view: PlanView, say: Words) -> Table | None:
    """Every plan of the front beside the others of equal bytes."""
    rows: list[tuple[Cell, ...]] = []
    strong: set[int] = set()
    for share in sorted({point.share for point in view.points}):
        for name in METHODS:
            point = next((p for p in view.points if p.method == name and p.share == share), None)
            if point is not None and point.rise is not None:
                strong |= {len(rows)} if point.is_chosen else set()
                rows.append(_front_row(point, view, say))
    names = ("share", "method", "rise", "gain", "proxy", "planned")
    columns = tuple(Column(say(f"plan.column.{name}"), is_number=name not in ("share", "method")) for name in names)
    return Table(say("plan.table.front"), columns, tuple(rows), frozenset(strong)) if rows else None


def _front_row(point: Point, view: PlanView, say: Words) -> tuple[Cell, ...]:
    assert point.rise is not None
    gain = view.gains.get((point.share, point.method))
    tone = {"lower": "lower", "higher": "higher"}.get(answer(gain), "") if gain is not None else ""
    missing = Cell("")
    return (
        Cell(say.share(point.taken)),
        Cell(say(f"plan.method.{point.method}")),
        Cell(say.signed(point.rise.value, 4), _interval(point.rise, say, 4)),
        missing if gain is None else Cell(say.signed(gain.value, 4), _interval(gain, say, 4), tone),  # type: ignore[arg-type]
        missing if point.proxy is None else Cell(say.signed(point.proxy.value, 4)),
        missing if point.planning is None else Cell(say.signed(point.planning.value, 4)),
    )


def _options(view: PlanView, say: Words) -> Table | None:
    counts = Counter((head.variant, head.share) for head in view.heads)
    rows = tuple(
        (Cell(variant), Cell(say.share(share)), Cell(say.integer(number)))
        for (variant, share), number in counts.most_common(MOST_OPTIONS)
    )
    columns = (
        Column(say("plan.column.option")),
        Column(say("plan.column.share"), is_number=True),
        Column(say("plan.column.heads"), is_number=True),
    )
    return Table(say("plan.table.kinds"), columns, rows) if rows else None


def _ranks(view: PlanView, say: Words) -> Lines | None:
    if not view.ranks:
        return None
    proxy, change = (view.ranks.get(f"rank_of_{name}") for name in ("proxy", "change"))
    values = {
        name: say.number(record.value if record else None, 2) for name, record in (("proxy", proxy), ("change", change))
    }
    told = [say("plan.rank", n=len(view.anchors), **values)] if proxy or change else []
    inspected = view.ranks.get("rank_of_inspection")
    if inspected is not None:
        told.append(say("plan.rank.inspection", n=inspected.n, value=say.number(inspected.value, 2)))
    return Lines(tuple(told))


def _anchors(view: PlanView, say: Words) -> Table | None:
    rows = tuple(
        (
            Cell(f"{one.subject['layer']}, {one.subject['kv_head']}"), Cell(one.subject["variant"]),
            Cell(say.number(one.subject["proxy"], 5)), Cell(say.number(one.subject["output_change"], 3)),
            Cell(say.signed(one.value, 5)),
        )
        for one in view.anchors
    )  # fmt: skip
    names = ("place", "option", "proxy", "change", "true")
    columns = tuple(Column(say(f"plan.column.{name}"), is_number=name not in ("place", "option")) for name in names)
    return Table(say("plan.table.anchors"), columns, rows) if rows else None
