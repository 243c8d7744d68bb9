"""A conversion: the model it wrote, tuned or as it is, against the original and a window of equal bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from termwise.report.convert_page import ORIGINAL, TUNED, ConvertView, convert_view
from termwise.report.decision.figures import Figure, Pair, exactly, missing
from termwise.report.decision.gathering.claim import (
    NATS,
    Claim,
    Keys,
    about,
    folder_places,
    model_keys,
    number,
    weights_key,
    whole,
)
from termwise.report.decision.gathering.complexity import kernels_of
from termwise.report.decision.gathering.pairing import difference_of_documents
from termwise.report.decision.gathering.plan import of_record
from termwise.report.decision.limits import Limits
from termwise.report.read import Reading

CONVERTED, WINDOW = "converted", "window of equal bytes"
# What a conversion scores at most where no context is given; records of older versions do not say.
DEFAULT_CONTEXT = 512
HOUR = 3600


def from_convert(reading: Reading, limits: Limits) -> list[Claim]:
    """One claim, about the model in OUT/model."""
    shown = convert_view(reading)
    source, is_tuned = str(reading.folder.path), bool(reading.setting("tune") or reading.setting("steps"))
    final = TUNED if is_tuned else CONVERTED
    sized = whole(shown.bytes["state"].subject.get("length")) if "state" in shown.bytes else None
    context = limits.context or sized
    original = str(reading.setting("model", ""))
    return [
        Claim(
            **about(reading),
            names=(reading.folder.path.name,),
            keys=model_keys(*folder_places(reading)) | weights_key(reading.run.get("written")),
            today=Path(original).name,
            today_keys=model_keys(original) | weights_key(reading.setting("weights")),
            lacks_weights=not weights_key(reading.setting("weights")),
            identity=frozenset() if is_tuned else _identity(reading),
            is_chosen=True,
            context=context,
            accuracy_context=_scored_context(reading, sized),
            accuracy=Pair(_loss(ORIGINAL, shown), _loss(final, shown), _change(final, shown)),
            memory=_memory(shown, context, sized),
            slots=_slots(final, shown, source),
            needs_slots=True,
            kernels=kernels_of(list(shown.heads)) if shown.heads else None,
            tuning_hours=_hours(reading) if is_tuned else 0.0,
            dtype="float32",
        )
    ]


def _identity(reading: Reading) -> Keys:
    """The plan it follows, by what its heads keep and by the place it was read from."""
    plan, digest = reading.setting("plan"), reading.setting("plan_hash")
    place = Path(str(plan)).parent if str(plan).endswith("plan.json") else plan
    places = frozenset(key.replace("model:", "plan-at:", 1) for key in model_keys(place))
    return places | ({f"plan:{digest}"} if digest else set())


def _scored_context(reading: Reading, sized: int | None) -> int:
    """Tokens of the texts that were scored."""
    told = whole(reading.run.get("text_context")) or whole(reading.setting("context"))
    return told or min(DEFAULT_CONTEXT, sized or DEFAULT_CONTEXT)


def _loss(name: str, shown: ConvertView) -> Figure:
    source, record = str(shown.reading.folder.path), shown.losses.get(name)
    if record is None or record.value is None:
        return missing((record.reason if record else None) or "decision.why.not_scored", source)
    return Figure(record.value, n=record.n, unit=NATS, source=source)


def _change(final: str, shown: ConvertView) -> Figure:
    return of_record(
        shown.differences.get((final, ORIGINAL)), str(shown.reading.folder.path), "decision.why.not_scored"
    )


def _memory(shown: ConvertView, context: int | None, sized: int | None) -> Pair:
    """States as they are kept, over the original's cache in its smaller precision."""
    source, (state, cache) = str(shown.reading.folder.path), (shown.bytes.get(name) for name in ("state", "cache_half"))
    if state is None or cache is None or state.value is None or not cache.value:
        return Pair(change=missing("decision.why.not_sized", source))
    if cache.subject.get("length") != state.subject.get("length"):
        return Pair(change=missing("decision.why.not_sized", source))
    if context != sized:
        return Pair(change=missing("decision.why.other_context", source, measured=sized, context=context))
    return Pair(
        exactly(cache.value, "B", source),
        exactly(state.value, "B", source),
        Figure(*(state.value / cache.value,) * 3, unit="1", source=source, why="decision.why.half_cache"),
    )


def _slots(final: str, shown: ConvertView, source: str) -> Figure:
    """The model less a plain window of equal bytes on the same documents."""
    window = shown.losses.get(WINDOW)
    if window is None or window.value is None:
        return missing((window.reason if window else None) or "decision.why.not_scored", source)
    return difference_of_documents(shown.reading, final, WINDOW)


def _hours(reading: Reading) -> float | None:
    """What the logs of both stages say, else the time that was asked for."""
    logs = sorted(reading.folder.path.glob("runs/converted/*/*/log.jsonl"))
    spent = [seconds for seconds in map(_seconds, logs) if seconds is not None]
    asked = number(reading.setting("tune"))
    total = sum(spent) if spent else asked
    return None if total is None else total / HOUR


def _seconds(log: Path) -> float | None:
    """Seconds after the last whole line of a training log."""
    found: Any = None
    for line in log.read_bytes().split(b"\n"):
        try:
            found = number(json.loads(line)["seconds"]) or found
        except (ValueError, TypeError, KeyError):
            continue
    return found
