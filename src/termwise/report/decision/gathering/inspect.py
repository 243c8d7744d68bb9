"""An inspection: what each order, head and layer of an existing model is worth, and the whole model by each rung of the ladder."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from termwise.report.decision.figures import Figure, Pair, exactly, missing
from termwise.report.decision.gathering.claim import NATS, Claim, about, model_keys, weights_key, whole
from termwise.report.decision.gathering.complexity import kernels_of
from termwise.report.decision.gathering.component import Component, recommended
from termwise.report.decision.gathering.pairing import difference_of_texts
from termwise.report.decision.gathering.plan import of_record
from termwise.report.decision.limits import Limits
from termwise.report.inspect_view import InspectView, inspect_view
from termwise.report.read import Reading
from termwise.results import Record

CENTER = "mean"
MOST = 4096  # layers, or heads of a layer


def subjects(reading: Reading) -> list[Claim]:
    """The whole model by each rung that was measured, for a report that has nothing else to decide on."""
    return [_rung(record, reading) for record in _rises(reading).values() if record.value is not None]


def figures(reading: Reading, candidates: Sequence[Claim]) -> list[Claim | None]:
    """Loss and bytes of its own rungs; an inspection knows nothing of other candidates."""
    shown, rises = inspect_view(reading), _rises(reading)
    return [_figures(shown, rises.get(one.name), one) for one in candidates]


def _figures(shown: InspectView, rise: Record | None, candidate: Claim) -> Claim | None:
    reading = shown.reading
    if rise is None or not _rung(rise, reading).keys & candidate.keys:
        return None
    source, why = str(reading.folder.path), "decision.why.not_evaluated"
    losses = (_mean_loss(reading, candidate.name), of_record(rise, source, why))
    return Claim(
        **about(reading),
        names=candidate.names,
        is_chosen=candidate.name == reading.setting("reduced"),
        context=candidate.context,
        accuracy_context=whole(reading.setting("length")),
        accuracy=Pair(of_record(shown.exact, source, why), *losses),
        memory=_memory(shown, candidate),
        slots=missing("decision.why.no_slots_plan", source),
        needs_slots=True,
        kernels=kernels_of([candidate.name]),
        dtype="bfloat16",
    )


def _mean_loss(reading: Reading, variant: str) -> Figure:
    """Of a rung, over its texts."""
    found = [r for r in reading.records if r.kind == "loss" and r.metric == "loss" and "text" not in r.subject]
    mine = next((r for r in reversed(found) if r.subject.get("variant") == variant), None)
    return of_record(mine, str(reading.folder.path), "decision.why.not_evaluated")


def _memory(shown: InspectView, candidate: Claim) -> Pair:
    """Bytes of all heads by one attention, over those of their whole caches."""
    reading, source = shown.reading, str(shown.reading.folder.path)
    held = _bytes(reading, candidate.context).get(candidate.name)
    if held is None:
        return Pair(change=_no_bytes(reading, candidate.context))
    num_layers, num_heads = _counts(shown)
    mine, today = (exactly(num_layers * num_heads * size, "B", source) for size in held)
    return Pair(today, mine, exactly(held[0] / held[1], "1", source))


def components(reading: Reading, limits: Limits) -> list[Component]:
    """Orders around the mean with and without slots, layers, heads."""
    shown = inspect_view(reading)
    if not shown.has_loss:
        return []
    context = limits.context or whole(reading.setting("length"))
    return [*_orders(shown, limits, context), *_layers(shown, limits, context), *_heads(shown, limits, context)]


def _rises(reading: Reading) -> dict[str, Record]:
    """By rung. An encoder's are changes of its final hidden state, which no limit on a loss is about."""
    found = (r for r in reading.records if r.kind == "loss" and r.metric == "rise" and r.unit == NATS)
    return {str(record.subject.get("variant")): record for record in found if "text" not in record.subject}


def _rung(record: Record, reading: Reading) -> Claim:
    name, place = str(record.subject.get("variant")), str(reading.folder.path)
    told = reading.setting("about")
    model = str(told.get("name") or "") if isinstance(told, dict) else ""
    keys = frozenset({f"rung:{place}:{name}"})
    return Claim(
        **about(reading), names=(name,), keys=keys, today=model, 
        today_keys=model_keys(reading.setting("model")) | weights_key(reading.setting("weights")),
        context=whole(reading.setting("length")),
    )  # fmt: skip


def _bytes(reading: Reading, context: int | None) -> dict[str, tuple[float, float]]:
    """Of one kv head: bytes with each attention and of its whole cache, at a context."""
    found = (r for r in reading.records if r.metric == "kept_bytes" and r.value is not None)
    return {
        str(r.subject.get("variant")): (r.value or 0.0, float(r.subject["whole"]))
        for r in found
        if r.subject.get("length") == context
    }


def _no_bytes(reading: Reading, context: int | None) -> Figure:
    lengths = {r.subject.get("length") for r in reading.records if r.metric == "kept_bytes"}
    told = tuple(sorted(length for length in lengths if isinstance(length, int)))
    return missing("decision.why.lengths", str(reading.folder.path), context=context, lengths=told)


def _orders(shown: InspectView, limits: Limits, context: int | None) -> list[Component]:
    """One for every step down the ladder around the mean, from an even order to the next lower one that was measured.

    A sum that ends in an odd order turns negative for some scores, so odd orders go with the even one above them.
    """
    found = []
    for slots in dict.fromkeys((None, shown.slots)):
        rungs: dict[int | None, Record] = {}
        if slots and shown.slots_alone is not None:
            rungs[None] = shown.slots_alone
        measured = shown.rungs.get((CENTER, slots), {})
        rungs.update((order, record) for order, record in measured.items() if order % 2 == 0)
        places = sorted(rungs, key=lambda order: -1 if order is None else order)
        found += [_order(*pair, rungs, shown, limits, context) for pair in itertools.pairwise(places)]
    return found


def _order(
    low: int | None, high: int | None, rungs: dict[int | None, Record], shown: InspectView, limits: Limits, context: int | None
) -> Component:  # fmt: skip
    reading, source = shown.reading, str(shown.reading.folder.path)
    without, with_it = (str(rungs[order].subject.get("variant")) for order in (low, high))
    first, last = (0 if low is None else low + 1), high or 0
    name = f"{first}" if first == last else f"{first}..{last}"
    slots = rungs[high].subject.get("slots")
    loss = _difference(reading, without, with_it, shown.unit)
    held = _bytes(reading, context)
    saved = _no_bytes(reading, context)
    if without in held and with_it in held:
        saved = exactly((held[with_it][0] - held[without][0]) / held[without][1], "share", source)
    label = f"{name}@{CENTER}" + (f"+{slots}" if slots else "")
    return Component(label, "order", loss, saved, recommended(loss, saved, limits.accuracy), source)


def _difference(reading: Reading, one: str, other: str, unit: str) -> Figure:
    """The rise from one rung to another, paired by text."""
    losses = [_by_text(reading, name) for name in (one, other)]
    texts = sorted(losses[0])
    if not texts or losses[0].keys() != losses[1].keys():
        return missing("decision.why.other_documents", str(reading.folder.path))
    differences = [losses[0][text] - losses[1][text] for text in texts]
    return difference_of_texts(differences, unit, str(reading.folder.path))


def _by_text(reading: Reading, variant: str) -> dict[str, float]:
    found = (r for r in reading.records if r.kind == "loss" and r.metric == "loss" and "text" in r.subject)
    return {
        str(r.subject["text"]): r.value for r in found if r.subject.get("variant") == variant and r.value is not None
    }


def _counts(shown: InspectView) -> tuple[int, int]:
    """Layers and kv heads of a layer; 1 where run.json does not say, or says what no model has."""
    told: Any = shown.about
    told = told if isinstance(told, dict) else {}
    layers, heads = (whole(told.get(name)) or 1 for name in ("num_layers", "num_kv_heads"))
    return (layers, heads) if max(layers, heads) <= MOST else (1, 1)


def _saved(shown: InspectView, context: int | None, share: float) -> Figure:
    """What running a share of all heads reduced saves of today's bytes."""
    name, reading = str(shown.reading.setting("reduced", "")), shown.reading
    held = _bytes(reading, context).get(name)
    if held is None:
        return _no_bytes(reading, context)
    return exactly(share * (1 - held[0] / held[1]), "share", str(reading.folder.path))


def _layers(shown: InspectView, limits: Limits, context: int | None) -> list[Component]:
    """Each with its share of what may be lost: cut together they should keep the limit."""
    (num_layers, _), source = _counts(shown), str(shown.reading.folder.path)
    saved = _saved(shown, context, 1 / num_layers)
    found = []
    for layer in sorted({*shown.layers, *range(num_layers if shown.layers else 0)}):
        loss = of_record(shown.layers.get(layer), source, "decision.why.not_evaluated")
        found.append(
            Component(f"{layer}", "layer", loss, saved, recommended(loss, saved, limits.accuracy / num_layers), source)
        )
    return found


def _heads(shown: InspectView, limits: Limits, context: int | None) -> list[Component]:
    num_layers, num_heads = _counts(shown)
    share, source = 1 / (num_layers * num_heads), str(shown.reading.folder.path)
    saved, reasons = _saved(shown, context, share), _reasons(shown.reading)

    rises = {(head.layer, head.kv_head): head.rise for head in shown.heads}
    known = itertools.product(range(num_layers), range(num_heads)) if rises else ()

    def component(layer: int, head: int) -> Component:
        why = reasons.get((layer, head), "decision.why.not_evaluated")
        loss = of_record(rises.get((layer, head)), source, why)
        name = f"{layer}.{head}"
        return Component(name, "head", loss, saved, recommended(loss, saved, limits.accuracy * share), source)

    return [component(*place) for place in sorted({*rises, *known})]


def _reasons(reading: Reading) -> dict[tuple[int, int], str]:
    """Why a head has no true rise."""
    found = (r for r in reading.records if r.kind == "importance" and r.metric == "rise" and "kv_head" in r.subject)
    return {(r.subject["layer"], r.subject["kv_head"]): r.reason or "" for r in found if r.value is None and r.reason}
