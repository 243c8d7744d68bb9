"""A study's run folder with planted records: what the study command writes, without training anything."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from termwise.results import Record, RunFolder

NAMES = {
    "softmax": "exp(q.k/√d) / sum",
    "taylor:0..4": "(1 + x + x²/2 + x³/6 + x⁴/24) / sum",
    "taylor:0..4@mean": "taylor 0..4 around the mean / sum",
    "taylor:0..2": "(1 + x + x²/2) / sum",
    "taylor:0..2@mean": "taylor 0..2 around the mean / sum",
    "taylor:0..1@mean": "max(1 + x, 0) around the mean / sum",
    "linear_elu": "(elu(q)+1).(elu(k)+1) / sum",
}
LOSS = dict(zip(NAMES, (1.721, 1.755, 1.774, 1.925, 1.962, 2.156, 2.311), strict=True))
STATE = dict(zip(NAMES, (524288, 1212416, 1228800, 104448, 106496, 12672, 8448), strict=True))
CONTEXT = 256


class Planted:
    """A run folder being filled; every method appends the records of one situation."""

    def __init__(self, path: Path, names: list[str] | None = None, seeds: tuple[int, ...] = (0, 1, 2), **resolved: Any):
        self.names, self.seeds = names or list(NAMES), seeds
        self.random = random.Random(7)
        settings = {
            "preset": "tiny",
            "tokenizer": "bytes",
            "lr": 0.001,
            "variants": [self.describe(name) for name in self.names],
            "seeds": list(seeds),
            "steps": 300,
            "tokens_per_step": 2048,
            "context": CONTEXT,
            "data": {
                "name": "King James Bible and Shakespeare",
                "sizes": {"train_tokens": 9_003_112, "held_out_tokens": 473_848},
                "notes": ["2 files, fewer than 20 documents: contiguous blocks, the last 5 % held out"],
                "fingerprint": "0f3a9c4e77d1",
            },
            "demonstration": False,
        }
        self.folder = RunFolder.create(
            path,
            "study",
            {"data": ["kjv.txt", "shakespeare.txt"], "seeds": len(seeds), "steps": 300},
            settings | resolved,
        )
        self.lines: list[str] = []

    @staticmethod
    def describe(name: str) -> dict[str, Any]:
        cancels = (
            ["a coefficient on a single order is a common factor on all weights and cancels"]
            if name == "taylor:0..1@mean"
            else []
        )
        return {
            "name": name,
            "formula": NAMES.get(name, f"w({name}) / sum"),
            "short_name": "exp" if name == "softmax" else name,
            "note": f"a note on {name}",
            "parts_that_cancel": cancels,
            "equal_names": ["elu1"] if name == "linear_elu" else [],
        }

    def record(self, kind: str, metric: str, unit: str, value: float | None, subject: dict, **more: Any) -> None:
        more = {"started": "2026-03-01T10:00:00+00:00", "form": "parallel", "config_hash": "a1b2c3d4e5f6"} | more
        if value is None:
            more = {"status": "not_measured", "reason": "left out by --no-recall"} | more
        record = Record(run_id="study-1", kind=kind, subject=subject, metric=metric, value=value, unit=unit, **more)
        self.lines.append(record.to_json())

    def loss(self, name: str, seed: int) -> float:
        return LOSS.get(name, 1.9 + 0.01 * self.names.index(name)) + 0.015 * math.sin(5 * seed + len(name))

    def run(self, name: str, seed: int) -> None:
        """Everything one finished run reports."""
        one, loss = {"variant": name, "seed": seed}, self.loss(name, seed)
        self.record("train", "train_loss", "nats/token", round(loss - 0.05, 4), one, seconds=41.0)
        self.record("loss", "held_out_nats", "nats/token", round(loss, 6), one, n=65_536)
        self.record("loss", "held_out_bits", "bits/byte", round(loss / math.log(2), 6), one, n=65_536)
        for low, high in ((0, 1), (1, 2), (2, 4), (4, 8), (8, 16), (16, 32), (32, 64), (64, 128), (128, 256)):
            value = loss + 1.4 / (1 + low) ** 0.7 - 0.06
            self.record(
                "loss", "held_out_by_position", "nats/token", value, one | {"position_low": low, "position_high": high}
            )
        for document in range(19):
            value = loss + 0.2 * math.sin(document)
            self.record("loss", "held_out_document", "nats/token", value, one | {"document": document}, n=3449)
        self.record("speed", "training_tokens", "tokens/s", 15_000 + 100 * seed + 10 * len(name), one)
        for layer in range(2):
            share = 0.0004 if name == "taylor:0..1@mean" and layer else 0.0
            self.record("check", "vanishing_rows", "share", share, one | {"layer": layer, "head": 1})
            self.record("check", "negative_rows", "share", 0.0, one | {"layer": layer, "head": 1})
        self.log(name, seed)

    def log(self, name: str, seed: int, steps: int = 300, gaps: tuple[int, ...] = ()) -> None:
        path = self.folder.run_path(name, seed)
        path.mkdir(parents=True, exist_ok=True)
        end = self.loss(name, seed) - 0.05
        with open(path / "log.jsonl", "w") as file:
            for step in range(1, steps + 1):
                value = end + 3.4 * math.exp(-step / 30) + 0.6 / (1 + step / 40) - 0.07 + self.random.gauss(0, 0.03)
                entry = {"step": step, "tokens": step * 2048, "loss": None if step in gaps else value, "lr": 1e-3}
                file.write(json.dumps(entry) + "\n")

    def recall(self, name: str, seed: int) -> None:
        is_good = name == "softmax" or "0..4" in name
        one = {"variant": name, "seed": seed}
        self.record("recall", "accuracy", "share", 1.0 if is_good else 0.38 + 0.02 * seed, one)
        reason = {} if is_good else {"reason": "not reached within 1200 steps"}
        self.record("recall", "steps_to_recall", "steps", 400 + 10 * seed if is_good else None, one, **reason)
        for low, high in ((1, 8), (8, 16), (16, 24)):
            at = one | {"distance_low": low, "distance_high": high}
            self.record("recall", "accuracy_by_distance", "share", 1.0 if is_good else 0.9 - low / 32, at)

    def costs(self, name: str) -> None:
        self.record("memory", "parameters", "1", 812_416 + (256 if "mean" in name else 0), {"variant": name})
        size = STATE.get(name, 20_000 + 3_000 * self.names.index(name))
        for metric in ("state", "state_formula"):
            self.record("memory", metric, "B", size, {"variant": name, "length": CONTEXT})

    def verdict(self, name: str, answer: str, value: float, half_seeds: float | None, half_documents: float) -> None:
        subject = {"variant": name}
        more = {"baseline": "softmax", "level": 1 - 0.05 / 6}
        halves = {"t over seeds": (half_seeds, len(self.seeds)), "bootstrap over documents": (half_documents, 19)}
        for method, (half, n) in halves.items():
            if half is not None:
                ends = {"low": value - half, "high": value + half}
                self.record(
                    "score", "paired_difference", "nats/token", value, subject, n=n, method=method, **ends, **more
                )
        wider = None if half_seeds is None else max(half_seeds, half_documents)
        ends = {} if wider is None else {"low": value - wider, "high": value + wider}
        self.record(
            "score",
            "verdict",
            "nats/token",
            value,
            subject,
            n=max(2, len(self.seeds)) if ends else len(self.seeds),
            reason=answer,
            **ends,
            **more,
        )

    def write(self) -> Path:
        """Append the planted lines; the folder is what a killed or finished study leaves."""
        with open(self.folder.path / "records.jsonl", "a", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in self.lines)
        self.lines = []
        return self.folder.path


def complete(
    path: Path, names: list[str] | None = None, seeds: tuple[int, ...] = (0, 1, 2), **resolved: Any
) -> Planted:
    """A finished study: everything measured, softmax best, orders 0..4 indistinguishable from it."""
    planted = Planted(path, names, seeds, **resolved)
    for name in planted.names:
        planted.costs(name)
        for seed in seeds:
            planted.run(name, seed)
            planted.recall(name, seed)
    base = sum(planted.loss("softmax", seed) for seed in seeds) / len(seeds)
    for name in planted.names:
        if name != "softmax":
            value = sum(planted.loss(name, seed) for seed in seeds) / len(seeds) - base
            is_far = abs(value) > 0.1
            answer = ("higher" if value > 0 else "lower") if is_far else "no difference found"
            if len(seeds) < 2:
                answer = "too few seeds"
            planted.verdict(name, answer, value, 0.082 if len(seeds) > 1 else None, 0.013 + 0.02 * abs(value))
    return planted
