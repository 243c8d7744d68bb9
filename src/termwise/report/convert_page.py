"""The page of a conversion: what is kept, the losses in one table, the bytes, what was not measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from termwise.report.blocks import Block, Cell, Column, Facts, Lines, Section, Table
from termwise.report.read import Reading
from termwise.report.sections import method
from termwise.report.verdict import Summary
from termwise.report.words import Words
from termwise.results import Record

ORIGINAL, TUNED, ORIGINAL_TUNED = "original", "converted, tuned", "original, tuned"
MODELS = (ORIGINAL, "converted", TUNED, ORIGINAL_TUNED, "window of equal bytes", "slots alone")


@dataclass(frozen=True)
class ConvertView:
    """A conversion as its readers see it: the last record on each figure."""

    reading: Reading
    losses: dict[str, Record]
    differences: dict[tuple[str, str], Record]
    bytes: dict[str, Record]
    recovery: Record | None
    heads: dict[str, int]
    is_finished: bool
    is_demonstration: bool = False


def convert_view(reading: Reading) -> ConvertView:
    """What the records of a conversion say; of two about one figure the later counts."""
    losses, differences, sizes, recovery = {}, {}, {}, None
    for record in reading.records:
        name = str(record.subject.get("variant"))
        if record.metric == "held_out_nats":
            losses[name] = record
        elif record.metric == "difference" and record.baseline:
            differences[name, record.baseline] = record
        elif record.kind == "memory":
            sizes[record.metric] = record
        elif record.metric == "recovery":
            recovery = record
    heads = reading.run.get("heads")
    return ConvertView(
        reading,
        losses,
        differences,
        sizes,
        recovery,
        heads if isinstance(heads, dict) else {},
        bool(reading.run.get("finished")),
    )


def parts(view: ConvertView, say: Words) -> dict[str, Any]:
    """What the template is given: view, kicker, title, progress, summary, sections."""
    return {
        "view": view, "kicker": say("convert.kicker"), "title": title(view, say),
        "progress": "" if view.is_finished else say("convert.unfinished"), "summary": summary(view, say),
        "sections": sections(view, say),
    }  # fmt: skip


def title(view: ConvertView, say: Words) -> str:
    """Which model under which plan."""
    name = str(view.reading.setting("model", "")).rstrip("/").rsplit("/", 1)[-1]
    return say("convert.title", model=name, plan=view.reading.setting("plan", ""))


def summary(view: ConvertView, say: Words) -> Summary:
    """What was lost, what tuning brought back, what a state takes."""
    name = TUNED if TUNED in view.losses else "converted"
    record = view.differences.get((name, ORIGINAL))
    headline = say(f"convert.headline.{'unscored' if view.is_finished else 'unfinished'}")
    if record is not None:
        headline = say(
            f"convert.headline.{'tuned' if name == TUNED else 'plain'}", difference=say.signed(record.value, 4)
        )
    lines = []
    if view.recovery is not None:
        lines.append(
            say("convert.line.recovery", share=say.share(view.recovery.value), interval=_shares(view.recovery, say))
        )
    state, cache, half = (view.bytes.get(key) for key in ("state", "cache", "cache_half"))
    if state and cache and half and state.value and cache.value and half.value:
        lines.append(
            say(
                "convert.line.bytes",
                context=say.integer(state.subject["length"]),
                state=say.bytes(state.value),
                share=say.share(state.value / cache.value),
                half=say.share(state.value / half.value),
            )
        )
    if view.is_finished:
        lines.append(say("convert.line.folder", path=view.reading.folder.path / "model"))
    return Summary(headline, tuple(lines), ())


def sections(view: ConvertView, say: Words) -> list[Section]:
    """Every section that has something to say."""
    made: list[tuple[str, Sequence[Block | None]]] = [
        ("losses", [losses(view, say)]),
        ("heads", [heads(view, say)]),
        ("bytes", [sizes(view, say)]),
        ("missing", [_missing(view, say)]),
    ]
    found = []
    for key, blocks in made:
        kept = tuple(block for block in blocks if block is not None)
        if kept:
            found.append(Section(key, say(f"convert.section.{key}"), kept))
    return [*found, method(view.reading, say)]


def _shares(record: Record, say: Words) -> str:
    """The interval of a share, or that there is none."""
    if record.low is None or record.high is None:
        return say("no_interval.beside")
    return f"[{say.share(record.low)}, {say.share(record.high)}]"


def losses(view: ConvertView, say: Words) -> Table | None:
    """Every model's held-out loss and its differences, in pairs of documents."""
    if not view.losses:
        return None
    columns = (
        Column(say("convert.column.model")),
        Column(say("column.loss"), say("unit.nats"), True),
        Column(say("convert.column.difference"), say("unit.nats"), True),
        Column(say("convert.column.interval"), say("unit.nats"), True),
    )
    rows = tuple(_loss_row(name, view, say) for name in MODELS if name in view.losses)
    level = next((record.level for record in view.differences.values() if record.level), 0.95)
    num = view.losses[ORIGINAL].n if ORIGINAL in view.losses else None
    caption = say("convert.caption.losses", level=say.level(level), n=say.integer(num))
    versus = view.differences.get((TUNED, ORIGINAL_TUNED))
    if versus is not None:
        interval = say.interval_beside(versus.low, versus.high, is_signed=True)
        told = say("convert.caption.tuned", difference=say.signed(versus.value, 4), interval=interval)
        caption = say.sentences((caption, told))
    return Table(caption, columns, rows, frozenset({0}))


def _loss_row(name: str, view: ConvertView, say: Words) -> tuple[Cell, ...]:
    record, found = view.losses[name], view.differences.get((name, ORIGINAL))
    label = Cell(_model(name, say))
    if record.value is None:
        return label, Cell(say("not_measured"), say.recorded(record.reason or ""), "missing"), Cell(""), Cell("")
    if found is None:
        return label, Cell(say.number(record.value, 4)), Cell(""), Cell("")
    interval = Cell(say.interval(found.low, found.high, is_signed=True))
    return label, Cell(say.number(record.value, 4)), Cell(say.signed(found.value, 4)), interval


def _model(name: str, say: Words) -> str:
    return say.known(f"convert.model.{name}", name)


def heads(view: ConvertView, say: Words) -> Table | None:
    """How many kv heads run which attention."""
    if not view.heads:
        return None
    columns = (Column(say("convert.column.attention")), Column(say("convert.column.heads"), "", True))
    counted = Counter(view.heads).most_common()
    rows = tuple((Cell(name), Cell(say.integer(count))) for name, count in counted)
    return Table(say("convert.caption.heads"), columns, rows)


def sizes(view: ConvertView, say: Words) -> Facts | None:
    """Bytes of states and of the cache in both precisions."""
    pairs = [
        (say(f"convert.bytes.{key}"), (say.bytes(record.value),), False)
        for key, record in view.bytes.items()
        if key in ("state", "cache", "cache_half")
    ]
    return Facts(tuple(pairs)) if pairs else None


def _missing(view: ConvertView, say: Words) -> Lines:
    reasons = [
        say("convert.missing", model=_model(name, say), reason=say.recorded(record.reason or ""))
        for name, record in view.losses.items()
        if record.value is None
    ]
    return Lines((*reasons, say("convert.missing.always")), is_list=True)
