"""The best weights of a run by a held-out figure, kept on disk, and whether it still falls."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import nn

from termwise.training import checkpoint

PATIENCE = 4
KEPT = "best.safetensors"


class Watch:
    """Measures at every checkpoint, keeps FOLDER/best.safetensors, and says when PATIENCE measures in a row brought nothing.

    Not before step `earliest`: while the learning rate is high, a figure may rise that falls once it decays.

    `start` is the figure before training. What an interrupted run measured is read from its log.jsonl again.
    """

    def __init__(self, folder: Path, start: float, measure: Callable[[nn.Module], float], earliest: int = 0) -> None:
        self.folder, self.start, self.measure, self.earliest = folder, start, measure, earliest
        self.by_step: dict[int, float] = dict(_logged(folder / "log.jsonl"))

    @property
    def best(self) -> float:
        """The lowest figure so far, that before training included."""
        return min([self.start, *self.by_step.values()])

    def evaluate(self, model: nn.Module) -> dict[str, Any]:
        """For the training loop: the figure, after the weights were kept if it is no higher than any other."""
        figure = self.measure(model)
        if figure <= self.best:
            self._keep(model)
        return {"held_out": figure if math.isfinite(figure) else None}

    def on_step(self, line: dict[str, Any]) -> None:
        """For the training loop: remembers the figures of its log."""
        if "evaluation" in line:
            self.by_step[line["step"]] = _figure(line)

    def is_enough(self) -> bool:
        """Whether the last PATIENCE figures are all above the lowest before them, and the latest is not the least of them.

        A learning rate that rose first lifts a figure above its start; as it decays, the figure falls, at last below it.
        """
        figures = [self.start, *(self.by_step[step] for step in sorted(self.by_step))]
        is_late = bool(self.by_step) and max(self.by_step) >= self.earliest
        if not is_late or len(figures) <= PATIENCE:
            return False
        least = min(figures[-PATIENCE:])
        return least > min(figures[:-PATIENCE]) and figures[-1] > least

    def restore(self, model: nn.Module) -> bool:
        """Give the model its best weights. False, and nothing done, where those before training were better."""
        path = self.folder / KEPT
        if not path.is_file() or self.best >= self.start:
            return False
        _, tied = checkpoint.model_tensors(model)
        found = load_file(path)
        model.load_state_dict(found | {name: found[same] for name, same in tied.items()})
        return True

    def _keep(self, model: nn.Module) -> None:
        temporary = self.folder / f".{KEPT}.{os.getpid()}.tmp"
        tensors, _ = checkpoint.model_tensors(model)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary)
        checkpoint.sync_file(temporary)
        os.replace(temporary, self.folder / KEPT)


def _logged(path: Path) -> list[tuple[int, float]]:
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            fields = json.loads(line)
        except ValueError:
            continue
        if "evaluation" in fields:
            found.append((int(fields["step"]), _figure(fields)))
    return found


def _figure(line: dict[str, Any]) -> float:
    """What was measured; what was not finite stands as a gap in the log, and is worse than anything."""
    found = line["evaluation"]["held_out"]
    return math.inf if found is None else float(found)
