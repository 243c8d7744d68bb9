"""The page of an inspection: the ladder, what heads are worth, maps, the viewer, the text and what is missing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from termwise.report import inspect_figures
from termwise.report.blocks import Block, Cell, Column, Facts, Html, Lines, Section, Table
from termwise.report.inspect_view import CENTERS, FAR_SHARE, Head, InspectView, rank_correlation
from termwise.report.sections import method
from termwise.report.verdict import Summary
from termwise.report.viewer import viewer
from termwise.report.words import Words

MOST_HEADS = 20


def parts(view: InspectView, say: Words) -> dict[str, Any]:
    """What the template is given: view, kicker, title, progress, summary, sections."""
    return {
        "view": view, "kicker": say("inspect.kicker"), "title": title(view, say), "progress": progress(view, say),
        "summary": summary(view, say), "sections": sections(view, say),
    }  # fmt: skip


def title(view: InspectView, say: Words) -> str:
    """Which model."""
    return say("inspect.title", name=view.about.get("name", ""))


def progress(view: InspectView, say: Words) -> str:
    """What the budget did not reach; empty where everything was measured."""
    return say("inspect.unfinished", n=view.num_unmeasured) if view.num_unmeasured else ""


def summary(view: InspectView, say: Words) -> Summary:
    """What the ladder says, and which heads matter."""
    even = {center: _even(view, center) for center in CENTERS}
    headline = say("inspect.headline.none")
    if len(even["mean"]) > 1:
        falls = _falls(even["mean"]), _falls(even["zero"])
        key = {(True, False): "mean", (True, True): "both", (False, True): "zero", (False, False): "neither"}[falls]
        headline = say(f"inspect.headline.{key}", what=say("inspect.loss" if view.has_loss else "inspect.change"))
    lines = [
        line
        for line in (_exact(view, say), _ladder(view, say), _slots(view, say), _heads(view, say), _ranks(view, say))
        if line
    ]
    warnings = map(say.recorded, view.reading.setting("warnings", []))
    return Summary(headline, (*warnings, *lines), ())


def _even(view: InspectView, center: str) -> list[float]:
    by_order = view.rungs.get((center, None), {})
    return [record.value for order, record in by_order.items() if order % 2 == 0 and record.value is not None]


def _falls(rises: Sequence[float]) -> bool:
    """Whether each is lower than the one before."""
    return len(rises) > 1 and all(later < before for before, later in itertools.pairwise(rises))


def _exact(view: InspectView, say: Words) -> str:
    if view.exact is None or view.exact.value is None or not view.has_loss:
        return "" if view.has_loss else say("inspect.line.encoder")
    expected = view.expected.value if view.expected else None
    return say("inspect.line.loss", loss=say.number(view.exact.value), expected=say.number(expected), n=view.exact.n)


def _ladder(view: InspectView, say: Words) -> str:
    told = []
    base = view.exact.value if view.exact is not None and view.exact.value is not None and view.has_loss else 0.0
    for center in CENTERS:
        found = [
            (n, r.value) for n, r in view.rungs.get((center, None), {}).items() if n % 2 == 0 and r.value is not None
        ]
        if found:
            figures = say.row(say.number(base + value, 2) for _, value in found)
            told.append(say(f"inspect.line.{center}", figures=figures, last=found[-1][0]))
    return say.sentences(told)


def _slots(view: InspectView, say: Words) -> str:
    alone, best = view.slots_alone, view.rungs.get(("mean", view.slots), {})
    kept = best.get(2)
    if alone is None or kept is None:
        return ""
    return say(
        "inspect.line.beside", slots=view.slots, alone=_rise(alone, say), kept=_rise(kept, say),
    )  # fmt: skip


def _rise(record: Any, say: Words) -> str:
    interval = say.interval(record.low, record.high, is_signed=True) if record.low is not None else ""
    return f"{say.signed(record.value)} {interval}".strip()


def _heads(view: InspectView, say: Words) -> str:
    measured = [head for head in view.heads if head.rise is not None]
    if not measured:
        return ""
    found = [head for head in measured if head.is_retrieval]
    noisy = sum(not head.is_beyond_noise for head in measured)
    names = say.listing([_name(head, say) for head in sorted(found, key=_worth)], 8) or say("inspect.no_heads")
    return say(
        "inspect.line.heads", n=len(measured), noisy=noisy, found=len(found), names=names, share=say.share(FAR_SHARE)
    )


def _ranks(view: InspectView, say: Words) -> str:
    """How well the cheap proxies put heads in order."""
    told = []
    for name in ("fisher", "projected_error"):
        pairs = []
        for head in view.heads:
            proxy = getattr(head, name)
            if proxy is not None and head.rise is not None and head.rise.value is not None:
                pairs.append((proxy, head.rise.value))
        if (found := rank_correlation(pairs)) is not None:
            told.append(say(f"inspect.proxy.{name}", value=say.number(found, 2)))
    return say("inspect.line.proxies", told=say.listing(told)) if told else ""


def _name(head: Head, say: Words) -> str:
    return say("inspect.place", layer=head.layer, head=head.kv_head)


def _worth(head: Head) -> float:
    return -(head.rise.value or 0.0) if head.rise is not None else 0.0


def sections(view: InspectView, say: Words) -> list[Section]:
    """Every section that has something to say, below the summary."""
    made: list[tuple[str, Sequence[Block | None]]] = [
        ("ladder", [inspect_figures.ladder(view, say), ladder_table(view, say)]),
        ("importance", [inspect_figures.importance(view, say), heads_table(view, say)]),
        ("viewer", _viewer(view, say)),
        ("maps", inspect_figures.head_maps(view, say)),
        ("orders", inspect_figures.order_maps(view, say)),
        ("text", [_text(view, say)]),
    ]
    found = []
    for key, blocks in made:
        kept: tuple[Block, ...] = tuple(block for block in blocks if block is not None)
        if kept:
            found.append(Section(f"inspect-{key}", say(f"inspect.section.{key}"), kept))
    keys = ("texts", "untrained", "single", "proxies", "noise")
    threats = Lines(tuple(say(f"inspect.threat.{key}") for key in keys), is_list=True)
    return [*found, method(view.reading, say), Section("threats", say("inspect.section.threats"), (threats,))]


def ladder_table(view: InspectView, say: Words) -> Table | None:
    """Rise over the exact model by the highest order kept."""
    if not view.rungs:
        return None
    kinds = sorted(view.rungs, key=lambda kind: (kind[1] is not None, CENTERS.index(kind[0])))
    columns = [Column(say("inspect.column.orders"))]
    for center, slots in kinds:
        name = say(f"inspect.center.{center}")
        label = name if slots is None else say("inspect.center.slots", center=name, slots=slots)
        columns.append(Column(label, say.known(f"unit.{view.unit}", view.unit), True))
    rows = []
    if view.slots_alone is not None:
        empty = [Cell(say("inspect.none")) for kind in kinds if kind[1] is None]
        same = [_cell(view.slots_alone, say) for kind in kinds if kind[1] is not None]
        rows.append((Cell(say("inspect.dropped")), *empty, *same))
    for order in sorted({order for by_order in view.rungs.values() for order in by_order}):
        rows.append(
            (Cell(f"0..{order}" if order else "0"), *(_cell(view.rungs[kind].get(order), say) for kind in kinds))
        )
    return Table(
        say("inspect.table.ladder", unit=say.known(f"unit.{view.unit}", view.unit)), tuple(columns), tuple(rows)
    )


def _cell(record: Any, say: Words) -> Cell:
    if record is None or record.value is None:
        return Cell(say("not_measured"), tone="missing")
    note = say.interval(record.low, record.high, is_signed=True) if record.low is not None else ""
    return Cell(say.signed(record.value), note)


def heads_table(view: InspectView, say: Words) -> Table | None:
    """The heads whose reduction costs most."""
    measured = sorted((head for head in view.heads if head.rise is not None), key=_worth)[:MOST_HEADS]
    if not measured:
        return None
    columns = (
        Column(say("inspect.column.head")), Column(say("inspect.column.rise"), say.known(f"unit.{view.unit}", view.unit), True),
        Column(say("inspect.column.fisher"), say("unit.nats"), True), Column(say("inspect.column.error"), say("inspect.relative"), True),
        Column(say("inspect.column.first"), say("inspect.share"), True), Column(say("inspect.column.far"), say("inspect.share"), True),
        Column(say("inspect.column.kind")),
    )  # fmt: skip
    rows = []
    for head in measured:
        kind = "retrieval" if head.is_retrieval else "noise" if not head.is_beyond_noise else "near"
        assert head.rise is not None
        interval = say.interval(head.rise.low, head.rise.high, is_signed=True) if head.rise.low is not None else ""
        rows.append((
            Cell(_name(head, say)), Cell(say.signed(head.rise.value, 4), interval), Cell(say.number(head.fisher, 4)),
            Cell(say.number(head.projected_error, 2)), Cell(say.share(head.first)), Cell(say.share(head.far)),
            Cell(say(f"inspect.kind.{kind}")),
        ))  # fmt: skip
    caption = say(
        "inspect.table.heads", n=len(rows), spec=view.reading.setting("reduced", ""), share=say.share(FAR_SHARE)
    )
    return Table(caption, columns, tuple(rows))


def _viewer(view: InspectView, say: Words) -> list[Block | None]:
    if view.sentence is None:
        return []
    return [Lines((say("inspect.viewer.intro"),)), Html(viewer(view.sentence, say))]


def _text(view: InspectView, say: Words) -> Facts:
    data, setting = view.reading.setting("data", {}), view.reading.setting
    keys = ("family", "num_layers", "num_heads", "num_kv_heads", "head_dim", "context")
    found = {key: view.about[key] for key in keys if view.about.get(key) is not None}
    about = [say(f"inspect.about.{k}", n=say.integer(v) if isinstance(v, int) else v) for k, v in found.items()]
    size = say("inspect.size", texts=setting("texts", 0), length=setting("length", 0))
    pairs = [
        (say("inspect.fact.model"), (say.row(about) or say("none_given"),), False),
        (say("inspect.fact.text"), tuple(map(say.recorded, data.get("notes", ()))) or (say("none_given"),), False),
        (say("inspect.fact.size"), (size,), False),
        (say("inspect.fact.places"), tuple(map(say.recorded, data.get("places", ()))) or (say("none_given"),), False),
        (say("inspect.fact.digest"), (str(data.get("digest", "")),), True),
        (say("inspect.fact.reduced"), (str(setting("reduced", "")),), True),
    ]
    return Facts(tuple(pairs))
