"""What a study compares: its configuration, the variants behind the names given, and the runs of the grid."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from termwise.training.configuration import Configuration

BASELINE = "softmax"
DEFAULT_VARIANTS = (BASELINE, "linear_elu", "taylor:0..2", "taylor:0..4")
DEFAULT_BUDGET = 600.0
MAX_STEPS = 10_000_000
NUM_SEEDS = 2**32
# Far from the seeds that people count with, so that no other run has a control's first weights and order of data.
CONTROL_OFFSET = 1_000_000
# What may differ when a folder is taken up again; anything else there is another study.
EXTENDABLE = ("variants", "seeds", "recall")


class StudyConfig(Configuration):
    """Everything a study is asked for; `None` means the preset's value. ValueError names field, value and what is allowed.

    Either `steps` or `budget` (seconds of wall time for the whole grid); without both the budget is ten minutes.

    >>> StudyConfig(variants=("softmax", "taylor:0..2"), steps=100).budget is None
    True
    """

    data: tuple[str, ...] = ()
    column: str | None = None
    document: Literal["auto", "file", "row", "line"] = "auto"
    errors: Literal["strict", "replace"] = "strict"
    tokenizer: str | None = None
    variants: tuple[str, ...] = Field(DEFAULT_VARIANTS, min_length=1)
    baseline: bool = True
    control: bool = False
    preset: str = "tiny"
    seeds: int = Field(3, ge=1)
    first_seed: int = Field(0, ge=0)
    steps: int | None = Field(None, ge=1, le=MAX_STEPS)
    budget: float | None = Field(None, gt=0)
    tokens_per_step: int | None = Field(None, ge=1)
    context: int | None = Field(None, ge=2)
    evaluation_tokens: int | None = Field(None, ge=1)
    lr: float | None = Field(None, gt=0)
    recall: bool | None = None
    device: str = Field("cpu", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")
    dtype: Literal["auto", "float32", "bfloat16"] | None = None
    demonstration: bool = False

    @model_validator(mode="after")
    def _check_pairs(self) -> StudyConfig:
        if self.steps is not None and self.budget is not None:
            raise ValueError(f"steps={self.steps} and budget={self.budget:g} s given; give one of --steps and --budget")
        self._check_seeds()
        if self.steps is None and self.budget is None:
            object.__setattr__(self, "budget", DEFAULT_BUDGET)
        return self

    def _check_seeds(self) -> None:
        last, most = self.first_seed + self.seeds - 1, NUM_SEEDS - 1 - CONTROL_OFFSET * self.control
        if last > most:
            room = f" with --control, whose seeds are those + {CONTROL_OFFSET:,}" if self.control else ""
            raise ValueError(
                f"--seed {self.first_seed} and --seeds {self.seeds} end at {last}; allowed is {most} at most{room}"
            )

    @property
    def seed_list(self) -> list[int]:
        """The seeds asked for: first_seed, first_seed + 1, ..."""
        return list(range(self.first_seed, self.first_seed + self.seeds))


@dataclass(frozen=True)
class Entry:
    """One row of the grid: a value of the algebra with its layer options, and every name given that means it.

    A control is the value of another row (`control_of`) trained under other seeds: those of the grid plus `seed_offset`.
    """

    name: str
    spec: dict[str, Any]
    layer: dict[str, Any]
    formula: str
    short_name: str
    parts_that_cancel: tuple[str, ...] = ()
    equal_names: tuple[str, ...] = ()
    note: str | None = None
    control_of: str | None = None
    seed_offset: int = 0

    @property
    def key(self) -> str:
        """Equal for entries that compute the same function with the same layers around it, under the same seeds."""
        from termwise.attention.spec import AttentionSpec

        value = AttentionSpec.from_dict(self.spec).canonical().to_dict()
        return json.dumps([value, self.layer, self.seed_offset], sort_keys=True)

    def to_dict(self) -> dict[str, Any]:
        control = {"control_of": self.control_of, "seed_offset": self.seed_offset} if self.control_of else {}
        return control | {
            "name": self.name, "formula": self.formula, "short_name": self.short_name, "note": self.note,
            "parts_that_cancel": list(self.parts_that_cancel), "equal_names": list(self.equal_names),
            "spec": self.spec, "layer": self.layer,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Entry:
        lists = {name: tuple(data[name]) for name in ("parts_that_cancel", "equal_names")}
        return cls(**{**data, **lists})


def split_names(texts: Iterable[str]) -> tuple[str, ...]:
    """The names in comma-separated lists, leaving the commas inside a short name alone.

    >>> split_names(["softmax,taylor:0,2@mean,elu1", "polynomial:0..2(1,1,0.5)"])
    ('softmax', 'taylor:0,2@mean', 'elu1', 'polynomial:0..2(1,1,0.5)')
    """
    names: list[str] = []
    for text in texts:
        start = len(names)
        for piece in re.split(r",(?![^(]*\))", text):
            piece = piece.strip()
            if re.match(r"\d", piece) and len(names) > start and re.search(r":\d[\d,.]*$", names[-1]):
                names[-1] += f",{piece}"
            elif piece:
                names.append(piece)
    return tuple(dict.fromkeys(names))


def resolve(names: Sequence[str], *, baseline: bool = True) -> list[Entry]:
    """The rows of the grid: groups expanded, equal values merged (the first name given leads), the baseline first.

    ValueError with the near name for a name that is neither group, catalogue name, short name nor spec file.

    >>> [entry.name for entry in resolve(["taylor:0..2", "exp"])]
    ['softmax', 'taylor:0..2']
    """
    from termwise.attention.catalogue import catalogue

    groups = catalogue.groups()
    wanted = [BASELINE] * baseline
    for name in names:
        wanted += groups.get(name, [name])
    return merge(_entry(name, groups) for name in dict.fromkeys(wanted))


def merge(entries: Iterable[Entry]) -> list[Entry]:
    """Entries with equal values made one, which then carries the names of all."""
    merged: dict[str, Entry] = {}
    for entry in entries:
        known = merged.setdefault(entry.key, entry)
        others = dict.fromkeys((*known.equal_names, entry.name, *entry.equal_names))
        others.pop(known.name, None)
        merged[entry.key] = Entry(**{**vars(known), "equal_names": tuple(others)})
    return list(merged.values())


def control_of(entries: Iterable[Entry]) -> Entry:
    """The baseline a second time, under other seeds: what the same method finds where there is nothing to find.

    ValueError without the baseline.
    """
    baseline = next((entry for entry in entries if entry.name == BASELINE), None)
    if baseline is None:
        raise ValueError(f"--control trains {BASELINE} a second time, and there is none here; leave out --no-baseline")
    return replace(
        baseline, name=f"{BASELINE} (again)", equal_names=(), control_of=BASELINE, seed_offset=CONTROL_OFFSET,
        note=f"a control: {BASELINE} a second time, under other seeds",
    )  # fmt: skip


def _entry(name: str, groups: dict[str, list[str]]) -> Entry:
    from termwise.attention.catalogue import catalogue
    from termwise.attention.refusals import nearest

    try:
        variant = catalogue.variant(name)
    except ValueError as error:
        if not name.isidentifier():
            raise  # a short name or a file, no misspelt group
        if hint := nearest(name, groups):
            raise ValueError(f"no variant or group {name!r}{hint}; groups are {', '.join(groups)}") from None
        raise ValueError(f"{error}; groups are {', '.join(groups)}") from None
    return Entry(
        name=variant.name,
        spec=variant.spec.to_dict(),
        layer=variant.layer.to_dict(),
        formula=variant.spec.formula,
        short_name=variant.spec.short_name,
        parts_that_cancel=tuple(variant.spec.explain()),
        note=variant.note or None,
    )


class RunConfig(Configuration):
    """One run of the grid, complete: what `run_one` needs besides its folder. Kept there as job.json.

    kind "train": a language model on the text; "recall": a small model on the recall task; "speed": a few timed steps.
    """

    kind: Literal["train", "recall", "speed"]
    variant: str
    seed: int
    spec: dict[str, Any]
    layer: dict[str, Any]
    preset: str
    text: dict[str, Any]
    steps: int
    tokens_per_step: int
    context: int
    evaluation_tokens: int | None = None
    state_lengths: tuple[int, ...] = ()
    lr: float | None = None
    device: str = "cpu"
    dtype: str | None = None

    @classmethod
    def load(cls, folder: Path) -> RunConfig:
        return cls(**json.loads((folder / "job.json").read_text(encoding="utf-8")))
