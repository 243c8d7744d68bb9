"""What the subject of a record must hold for the pages to read it. A record without it is foreign, however it came there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from termwise.results import Record

Check = Callable[[Any], bool]
TEXTS = ("metric", "unit", "run_id")
OPTIONAL = ("method", "baseline", "reason", "started", "form", "config_hash")


def fits(command: Any, record: Record) -> bool:
    """Whether a record of this command has plain fields of the right types and the subject its metric asks for."""
    plain = [(_is_text, name) for name in TEXTS] + [(_or_none(_is_text), name) for name in OPTIONAL]
    if not isinstance(record.subject, dict) or not _or_none(_is_whole)(record.n):
        return False
    if not all(check(getattr(record, name)) for check, name in plain):
        return False
    return all(check(record.subject.get(name)) for name, check in _wanted(command, record).items())


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _is_size(value: Any) -> bool:
    return _is_number(value) and value > 0


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


_PLACE: dict[str, Check] = {"layer": _is_whole, "kv_head": _or_none(_is_whole)}
_RUNG: dict[str, Check] = {"order": _or_none(_is_whole), "center": _or_none(_is_text), "slots": _or_none(_is_text)}
_POINT: dict[str, Check] = {"method": _is_text, "share": _is_number}
_HEAD: dict[str, Check] = {"layer": _is_whole, "kv_head": _is_whole, "variant": _is_text}
_PLAN: dict[str, dict[str, Check]] = {
    "loss_rise": _POINT, "state_share": _POINT, "planning_rise": _POINT, "proxy_rise": _POINT, "gain": _POINT,
    "kept_bytes": _HEAD | {"keeps": _is_text, "whole": _is_size}, "anchor_rise": _HEAD, "chosen_share": {"cache_dtype": _is_text},
}  # fmt: skip


def _wanted(command: Any, record: Record) -> dict[str, Check]:
    """The fields of the subject that readers take for granted, with what each must be."""
    if command == "plan":
        return _PLAN.get(record.metric, {})
    if command == "convert":
        return {"length": _is_size} if record.kind == "memory" else {}
    if command == "bench" and record.metric == record.subject.get("measure"):
        return {"variant": _is_text, "length": _is_whole}
    if command == "inspect":
        return _of_inspection(record)
    return {}


def _of_inspection(record: Record) -> dict[str, Check]:
    if record.metric == "kept_bytes":
        return {"variant": _is_text, "length": _is_whole, "whole": _is_size}
    if record.kind == "term":
        return _PLACE | _RUNG | {"order": _is_whole, "center": _is_text}
    if record.metric == "distance_weight":
        return _PLACE | {"distance_low": _is_number}
    if record.kind in ("importance", "score"):
        return _PLACE
    if record.kind == "loss" and record.metric == "rise":
        return _RUNG
    return {}
