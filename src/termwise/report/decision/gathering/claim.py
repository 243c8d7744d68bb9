"""What one run says about one candidate; claims about the same candidate are merged into its evidence."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from termwise.report.decision.evidence import Checks
from termwise.report.decision.figures import MISSING, Figure, Pair
from termwise.report.flaws import Flaw, flaws
from termwise.report.read import Reading

NATS = "nats/token"
Keys = frozenset[str]
WEIGHTS = "weights:"


@dataclass(frozen=True)
class Claim:
    """What a run knows. `names` are all that the candidate is called in records, its own name first.

    `keys` is what other runs know it by, `today_keys` the same of what is used today. `identity`: claims that share one are
    about the same candidate, though each was made to put one up. `context` is the one its bytes and seconds stand at. `dtype`
    is the precision of its bytes and seconds. `kernels` are the compiled functions it runs through; None where that is not known.
    `flaws` are the run's. `lacks_weights`: it is about a model's folder, and was recorded before runs said which weights were in it.
    """

    names: tuple[str, ...]
    source: str
    command: str
    keys: Keys = frozenset()
    today: str = ""
    today_keys: Keys = frozenset()
    identity: Keys = frozenset()
    is_chosen: bool = False
    context: int | None = None
    accuracy_context: int | None = None
    accuracy: Pair = field(default_factory=Pair)
    memory: Pair = field(default_factory=Pair)
    latency: Pair = field(default_factory=Pair)
    crossing: Figure = MISSING
    slots: Figure = MISSING
    needs_slots: bool = False
    checks: Checks | None = None
    kernels: frozenset[str] | None = None
    tuning_hours: float | None = None
    dtype: str = ""
    machine: str = ""
    platform: str = ""
    created: str = ""
    is_demonstration: bool = False
    flaws: tuple[Flaw, ...] = ()
    lacks_weights: bool = False

    @property
    def name(self) -> str:
        """What it is called."""
        return self.names[0]


def about(reading: Reading) -> dict[str, Any]:
    """What every claim of a run says of the run itself."""
    return {
        "source": str(reading.folder.path), "command": str(reading.run["command"]), "platform": platform_of(reading),
        "created": str(reading.run.get("created") or ""), "is_demonstration": bool(reading.setting("demonstration")),
        "flaws": flaws(reading),
    }  # fmt: skip


def variant_keys(names: Iterable[Any]) -> Keys:
    """What a variant is known by."""
    return frozenset(f"variant:{name}" for name in names if name)


def weights_key(fingerprint: Any) -> Keys:
    """What a model is known by wherever it lies: the fingerprint of its files."""
    return frozenset({f"{WEIGHTS}{fingerprint}"}) if isinstance(fingerprint, str) and fingerprint else frozenset()


def weights_of(keys: Keys) -> Keys:
    """The fingerprints among the keys of a model."""
    return frozenset(key for key in keys if key.startswith(WEIGHTS))


def is_same(one: Keys, other: Keys) -> bool:
    """Whether both are keys of the same thing: by its weights where both know them, else by its place or name."""
    mine, theirs = weights_of(one), weights_of(other)
    return not mine.isdisjoint(theirs) if mine and theirs else not one.isdisjoint(other)


def model_keys(*places: Any) -> Keys:
    """What a model's folder is known by: the path as it was typed, and where it is on this machine. A run stands for its model."""
    found: set[str] = set()
    for place in places:
        if isinstance(place, str | Path) and str(place):
            path = Path(place).expanduser()
            path = path.parent if path.name == "model" else path
            found |= {f"model:{path.as_posix()}", f"model:{Path(os.path.abspath(path)).as_posix()}"}
    return frozenset(found)


def folder_places(reading: Reading) -> tuple[Any, ...]:
    """The folder of a run as it is now, and as its command named it."""
    arguments = reading.run.get("arguments")
    return (reading.folder.path, arguments.get("out") if isinstance(arguments, dict) else None)


def whole(value: Any) -> int | None:
    """A count from run.json; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def number(value: Any) -> float | None:
    """A number from run.json; None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value == value
    return float(value) if is_number else None


def platform_of(reading: Reading) -> str:
    """System and processor family of a run, e.g. "Linux x86_64"; empty where run.json does not say."""
    machine = reading.run.get("machine")
    told = str(machine.get("platform") or "") if isinstance(machine, dict) else ""
    system = told.split("-")[0]
    families = ("x86_64", "amd64", "aarch64", "arm64")
    family = next((one for one in families if one in told.lower()), "")
    return f"{system} {family}".strip()
