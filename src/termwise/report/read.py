"""What a run folder holds, read for people: anything that cannot be used is left out and counted, never a traceback."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from termwise.report.plausible import implausible, without_bounds
from termwise.report.shapes import fits
from termwise.results import SCHEMA, Record, RunFolder


@dataclass(frozen=True)
class LeftOut:
    """Lines of records.jsonl that were not used. `why` is a key of the words: torn, damaged, schema, foreign or implausible.

    `values`: what an implausible line says, one a line.
    """

    why: str
    lines: tuple[int, ...]
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reading:
    """run.json, every usable record in order, and the lines left out."""

    folder: RunFolder
    records: tuple[Record, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def run(self) -> dict[str, Any]:
        """run.json."""
        return self.folder.run

    def setting(self, name: str, default: Any = None) -> Any:
        """A setting as it was resolved; what a command only learned later stands at the top of run.json."""
        resolved = self.run.get("resolved")
        if isinstance(resolved, dict) and resolved.get(name) is not None:
            return resolved[name]
        return default if self.run.get(name) is None else self.run[name]


@dataclass(frozen=True)
class Curve:
    """Training loss of one run, step by step; None where the step had no finite loss."""

    variant: str
    seed: int
    steps: tuple[int, ...]
    losses: tuple[float | None, ...]


def read(folder: str | Path) -> Reading:
    """Read run.json and records.jsonl. ValueError without a run.json that this version reads.

    Unlike `RunFolder.records`, which protects a writer, it goes on after damaged and foreign lines: see `left_out`.
    """
    opened = RunFolder.open(folder)
    path = opened.path / "records.jsonl"
    *lines, torn = (path.read_bytes() if path.exists() else b"").split(b"\n")
    records: list[Record] = []
    left_out: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for number, line in enumerate(lines, start=1):
        found = _record(line, opened.run.get("command"))
        if isinstance(found, Record):
            records.append(found)
        else:
            why, value = found
            left_out[why].append((number, value))
    if torn:
        left_out["torn"].append((len(lines) + 1, ""))
    return Reading(opened, tuple(records), tuple(_left_out(why, found) for why, found in left_out.items()))


def _left_out(why: str, found: list[tuple[int, str]]) -> LeftOut:
    return LeftOut(why, tuple(line for line, _ in found), tuple(value for _, value in found if value))


def _record(line: bytes, command: Any) -> Record | tuple[str, str]:
    """The record of a line; or why it is none, and of a value that cannot be the value."""
    try:
        fields = json.loads(line)
    except ValueError:
        return "damaged", ""
    if not isinstance(fields, dict) or "schema" not in fields:
        return "foreign", ""
    if fields["schema"] != SCHEMA:
        return "schema", ""
    if value := without_bounds(fields):
        return "implausible", value
    try:
        record = Record.from_json(line.decode())
    except (ValueError, TypeError):
        return "foreign", ""
    if not fits(command, record):
        return "foreign", ""
    value = implausible(record)
    return ("implausible", value) if value else record


def read_curve(folder: RunFolder, variant: str, seed: int) -> Curve | None:
    """The training curve in log.jsonl of one run; None where it has not logged a step. Unreadable lines are skipped.

    A step logged twice (a run taken up again) keeps the later line.
    """
    path = folder.run_path(variant, seed) / "log.jsonl"
    losses: dict[int, float | None] = {}
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        try:
            fields = json.loads(line)
            losses[int(fields["step"])] = _finite(fields["loss"])
        except (ValueError, TypeError, KeyError):
            continue
    steps = tuple(sorted(losses))
    return Curve(variant, seed, steps, tuple(losses[step] for step in steps)) if steps else None


def _finite(loss: Any) -> float | None:
    is_number = isinstance(loss, (int, float)) and not isinstance(loss, bool)
    return float(loss) if is_number and math.isfinite(loss) else None
