"""Cases as `gather` makes them, from planted evidence, and the run folders that stand behind them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planted_study import complete

from termwise.report.decision.case import Case, Component, Refused, Verdict
from termwise.report.decision.evidence import Checks, Complexity, Evidence
from termwise.report.decision.figures import MISSING, Figure, Pair, exactly
from termwise.report.decision.limits import Limits
from termwise.report.decision.rules import decide
from termwise.report.read import Reading, read
from termwise.results import Record, RunFolder

BEFORE = "2026-02-01T09:00:00+00:00"
MODEL = "tiny"
NAMES = ("softmax", "taylor:0..2", "linear_elu")

rise = Figure(0.021, 0.011, 0.034, 0.95, 12, "nats/token", "runs/plan")
memory = Pair(exactly(4 * 2**20, "B"), exactly(2**20, "B"), exactly(0.25, "1"))
latency = Pair(
    Figure(0.0123, 0.0121, 0.0126, unit="s/token"),
    Figure(0.0082, 0.008, 0.0085, unit="s/token"),
    Figure(0.667, 0.64, 0.7),
)
whole = Complexity(("torch", "numba"), 3, ("transformers",), ("Linux, AMD EPYC",), 1.5, 4.0)

GOOD = {
    "candidate": "tiny, 25 % plan", "today": "tiny", "context": 4096, "accuracy_context": 4096,
    "accuracy": Pair(Figure(3.0, unit="nats/token"), Figure(3.021, unit="nats/token"), rise),
    "memory": memory, "latency": latency, "slots": Figure(-0.04, -0.06, -0.02, 0.95, 12, "nats/token"), "needs_slots": True,
    "checks": Checks(137, 0, 8, has_soak=True), "complexity": whole, "machine": "AMD EPYC 9654",
    "sources": ("runs/inspect",),
}  # fmt: skip
LIMITS = {
    "accuracy": 0.05, "memory": 0.5, "latency": 1.0, "machine": "EPYC", "engines": ["transformers"], "written": BEFORE,
    "price_per_hour": 2.5, "requests_per_day": 200_000, "currency": "USD",
}  # fmt: skip
# What turns the good evidence into each of the other answers.
ANSWERS: dict[str, dict[str, Any]] = {
    "adopt": {},
    "conditions": {"checks": Checks()},
    "open": {"accuracy": Pair(GOOD["accuracy"].today, GOOD["accuracy"].candidate, Figure(0.04, 0.01, 0.07, 0.95, 12))},
    "reject": {"accuracy": Pair(GOOD["accuracy"].today, GOOD["accuracy"].candidate, Figure(0.2, 0.15, 0.25, 0.95, 12))},
}
ORDERS = (
    Component(str(n), "order", Figure(0.3 / (n + 1), 0.2 / (n + 1), 0.4 / (n + 1), unit="nats/token"), exactly(0.1 * n, "1"),
              "keep" if n < 3 else "cut", "runs/inspect")
    for n in range(6)
)  # fmt: skip
COMPONENTS = (*ORDERS, Component("1.0", "head", MISSING, MISSING, "not_measured", "runs/inspect"))


def evidence(**changes: Any) -> Evidence:
    """Evidence that holds in every respect, but for the changes."""
    return Evidence(**GOOD | changes)


def case(
    *found: Evidence, readings: tuple[Reading, ...] = (), refused: tuple[Refused, ...] = (), **limits: Any
) -> Case:
    """A case whose verdicts follow from the evidence; a limit of None is not set."""
    given = {name: value for name, value in (LIMITS | limits).items() if value is not None}
    bounds = Limits(**given)
    verdicts = tuple(Verdict(one, decide(one, bounds)) for one in found or (evidence(),))
    return Case(readings, refused, bounds, "limits.yaml", verdicts, COMPONENTS)


def runs(path: Path) -> tuple[Reading, ...]:
    """A study, an inspection and a plan of one model of two layers with two kv heads."""
    made = (complete(path / "study", list(NAMES), (0, 1)).write(), inspection(path / "inspect"), plan(path / "plan"))
    return tuple(read(folder) for folder in made)


def inspection(out: Path) -> Path:
    """Every head measured but the last."""
    about = {"name": MODEL, "family": "llama"}
    folder = RunFolder.create(
        out, "inspect", {"model": MODEL}, {"about": about, "window": 64, "texts": 4, "length": 512, "reduced": "w64s4"}
    )
    records = [_loss("loss", 3.0, variant="exact"), *_ladder()]
    for layer, head in ((0, 0), (0, 1), (1, 0), (1, 1)):
        place = {"layer": layer, "kv_head": head}
        records += [
            _record("score", "score_mean", -2.5 + layer + 0.25 * head, "1", place),
            _record("score", "score_spread", 1.25 + head, "1", place),
            _record("score", "first_token_weight", 0.3, "share", place),
            _record(
                "score",
                "distance_weight",
                0.2 + 0.1 * head,
                "share",
                place | {"distance_low": 64, "distance_high": 128},
            ),
            _record("importance", "fisher", 0.01 * (1 + layer), "nats/token", place),
        ]
        if (layer, head) == (1, 1):
            missing = {"status": "not_measured", "reason": "the budget was spent"}
            records.append(_record("importance", "rise", None, "nats/token", place, **missing))
        else:
            value = 0.5 - 0.2 * layer - 0.1 * head
            records.append(_record("importance", "rise", value, "nats/token", place, low=value - 0.1, high=value + 0.1))
        for order in (0, 1, 2):
            records.append(
                _record("term", "magnitude", 1 / (order + 1), "1", place | {"order": order, "center": "mean"})
            )
    folder.append(*records)
    return out


def plan(out: Path) -> Path:
    """What the plan keeps of each head."""
    folder = RunFolder.create(
        out, "plan", {"source": MODEL}, {"about": {"name": MODEL}, "context": 4096, "texts": 12, "planning_texts": 4}
    )
    point = {"method": "termwise", "share": 0.25, "is_chosen": True}
    ends = {"low": 0.011, "high": 0.034, "level": 0.95, "n": 12}
    records = [_record("plan", "loss_rise", 0.021, "nats/token", point, **ends)]
    for (layer, head), keeps in {(0, 0): "exact", (0, 1): "slots", (1, 0): "mean", (1, 1): "mean"}.items():
        kept = {"layer": layer, "kv_head": head, "keeps": keeps, "variant": f"{keeps}+w64s4", "whole": 1000}
        records.append(_record("plan", "kept_bytes", 1000 if keeps == "exact" else 250, "B", kept))
    folder.append(*records)
    return out


def _ladder() -> list[Record]:
    rungs = {0: 4.0, 2: 2.5, 4: 1.5}
    return [
        _loss("rise", value, order=order, center=center, slots=None, variant=f"{center}{order}")
        for center in ("mean", "zero")
        for order, value in rungs.items()
    ]


def _loss(metric: str, value: float, **subject: Any) -> Record:
    return _record("loss", metric, value, "nats/token", subject, n=4)


def _record(kind: str, metric: str, value: float | None, unit: str, subject: dict[str, Any], **more: Any) -> Record:
    more = {"run_id": "r", "started": "2026-03-01T10:00:00+00:00"} | more
    return Record(kind=kind, subject=subject, metric=metric, value=value, unit=unit, **more)
