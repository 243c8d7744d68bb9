"""The one training loop: any model of (input_ids, cu_seqlens) -> logits, any batches, resumable bit by bit.

FOLDER/log.jsonl            step, tokens, loss, lr, grad_norm, seconds; one line every log_every steps
FOLDER/checkpoints/STEP/    (checkpoint.py)
FOLDER/model/               the trained model, by its save_pretrained
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from termwise.results import FolderLock, config_hash, sync_folder
from termwise.training import checkpoint, random_state
from termwise.training.batches import BatchLike
from termwise.training.configuration import TrainingConfig
from termwise.training.faults import TrainingDiverged
from termwise.training.log import TrainingLog
from termwise.training.optimizer import load_optimizer_tensors, optimizer_tensors
from termwise.training.placement import Placement, threads
from termwise.training.signals import StopSignals
from termwise.training.update import Objective, Outcome, Updater, next_token

_log = logging.getLogger(__name__)
Evaluate = Callable[[nn.Module], dict[str, Any]]
OnStep = Callable[[dict[str, Any]], None]
MOST_SKIPPED = 10  # steps in a row under on_nan="skip": behind more, the weights stand still and only time passes


@dataclass(frozen=True)
class TrainingResult:
    """Steps done, the last finite loss (nats/token), and seconds of training without checkpoints and evaluation.

    `stopped` is the signal that ended the run early ("SIGINT", "SIGTERM"), None when all steps are done.
    """

    step: int
    loss: float | None
    seconds: float
    stopped: str | None = None


class TrainingInterrupted(SystemExit):
    """A run that saved and stopped on a signal: unless this is caught, the process leaves with 130 or 143."""

    def __init__(self, result: TrainingResult) -> None:
        super().__init__(128 + signal.Signals[str(result.stopped)])
        self.result = result


def train(
    model: nn.Module,
    batches: Callable[[int], BatchLike],
    config: TrainingConfig,
    folder: str | Path,
    *,
    evaluate: Evaluate | None = None,
    on_step: OnStep | None = None,
    objective: Objective = next_token,
    is_enough: Callable[[], bool] = lambda: False,
) -> TrainingResult:
    """Train `model` in place, or go on where `folder` stopped; a finished folder is loaded and returned at once.

        loss of a step = sum over scored tokens of -log p(label) / number of scored tokens,
        however the step is cut into micro batches and processes

    `batches(step)`, step = 0, 1, ..., must be a pure function. `evaluate(model)` runs at every checkpoint step and the
    last; its values go into that line of the log as "evaluation". `on_step` gets every step's line. `objective` takes the
    place of -log p(label); `is_enough`, asked before every step, ends the run early. Same configuration,
    batches and machine (one process on a CPU): the same bits, interrupted or not. Random generators are seeded with
    config.seed.

    Errors: TrainingDiverged (NaN, infinity; under on_nan="skip" ten such steps in a row), TrainingInterrupted (a signal,
    after saving), FolderLocked, ValueError (a folder of another configuration or model, a batch of another size), OSError
    (disk).
    """
    if not hasattr(model, "save_pretrained"):
        raise ValueError(f"{type(model).__name__} has no save_pretrained; give a transformers model or add the method")
    placement, folder = Placement(config), Path(folder)
    lock = FolderLock(folder) if placement.is_main else contextlib.nullcontext()
    with lock, threads(config.threads), StopSignals() as signals:
        updater = Updater(model, batches, config, placement, objective)
        run = _Run(updater, folder, evaluate, on_step, is_enough)
        run.take_up()
        asked = run.train_steps(signals)
        if asked is None:
            run.save_model()
            asked = signals.received
    result = run.result(asked)
    if asked is not None:
        raise TrainingInterrupted(result)
    return result


class _Run:
    """One run between updates: which step, what is written where, the clock."""

    def __init__(
        self,
        updater: Updater,
        folder: Path,
        evaluate: Evaluate | None,
        on_step: OnStep | None,
        is_enough: Callable[[], bool],
    ) -> None:
        self.updater, self.folder, self.evaluate, self.on_step = updater, folder, evaluate, on_step
        self.is_enough = is_enough
        self.model, self.config, self.place = updater.model, updater.config, updater.placement
        self.root = folder / "checkpoints"
        self.step, self.taken_up_at, self.saved_at = 0, 0, 0
        self.skipped_in_a_row = 0
        self.seconds = 0.0
        self.loss: float | None = None

    def take_up(self) -> None:
        """Start at step 0 with seeded generators, or exactly where the newest whole checkpoint stands."""
        random_state.seed_all((self.config.seed + self.place.rank) % 2**32)
        found = checkpoint.latest(self.root, say=self.place.is_main)
        if found is not None:
            self._load(found)
        self.place.wait()
        if self.place.is_main:
            self.root.mkdir(exist_ok=True)
            checkpoint.clean(self.root, last_step=self.step)
            for left in self.folder.glob(".model.*"):
                shutil.rmtree(left)
            self._check_space()
        self.model.train()

    def _load(self, found: checkpoint.Checkpoint) -> None:
        state, config = found.state, self.config
        changed = config.changed_fields(state["config"])
        if changed:
            names = ", ".join(f"{n} (was {state['config'].get(n)!r}, now {getattr(config, n)!r})" for n in changed)
            raise ValueError(f"{self.folder} was trained with other settings: {names}; use them or another folder")
        if len(state["random"]) != self.place.num_processes:
            raise ValueError(
                f"{self.folder} was trained by {len(state['random'])} processes, now there are "
                f"{self.place.num_processes}; start as many or use another folder"
            )
        checkpoint.load_model_tensors(self.model, found)
        load_optimizer_tensors(self.updater.optimizer, self.model, found.optimizer)
        random_state.restore(state["random"][self.place.rank])
        self.step = self.taken_up_at = self.saved_at = found.step
        self.seconds, self.loss = state["seconds"], state["loss"]
        self.skipped_in_a_row = state.get("skipped_in_a_row", 0)

    def _check_space(self) -> None:
        model = checkpoint.num_bytes(checkpoint.model_tensors(self.model)[0].values())
        each = model + 2 * checkpoint.num_bytes(self.updater.parameters)
        num_more = max(1, self.config.keep + 1 - len(checkpoint.steps(self.root)))
        checkpoint.check_space(self.folder, model + (each * num_more if self.step < self.config.steps else 0))

    def train_steps(self, signals: StopSignals) -> int | None:
        """Do the steps that are left. Returns the signal that asked to stop, after saving, or None."""
        path = self.folder / "log.jsonl"
        with TrainingLog(path, last_step=self.step) if self.place.is_main else contextlib.nullcontext() as log:
            while self.step < self.config.steps and not self.is_enough():
                started = time.perf_counter()
                outcome = self.updater.update(self.step, lambda: signals.received)
                self.step += 1
                self.seconds += time.perf_counter() - started
                is_due = self.step % self.config.checkpoint_every == 0 or self.step == self.config.steps
                self._report(outcome, log, is_due=is_due)
                if is_due or outcome.asked is not None:
                    self._save(log)
                if outcome.asked is not None:
                    return outcome.asked
        return None

    def _report(self, outcome: Outcome, log: TrainingLog | None, *, is_due: bool) -> None:
        """Write the step's line (a gap where there is no number) and stop, or go on, after a fault."""
        is_skipped = outcome.fault is not None and self.config.on_nan == "skip"
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if is_skipped else 0
        diverged = self._diverged(outcome)
        is_stopping = diverged is not None and not 0 < self.skipped_in_a_row < MOST_SKIPPED
        if diverged is None:
            self.loss = outcome.loss
        if log is not None:
            line = self._line(outcome)
            if self.evaluate is not None and is_due and not is_stopping:
                line["evaluation"] = self._evaluation(self.evaluate)
            if is_due or diverged is not None or self.step % self.config.log_every == 0:
                log.write(line)
            if self.on_step is not None:
                self.on_step(line)
            if diverged is not None and not is_stopping:
                _log.warning("step %d is left out: %s", self.step, diverged.what)
        if diverged is not None and is_stopping:
            raise diverged

    def _line(self, outcome: Outcome) -> dict[str, Any]:
        return {
            "step": self.step,
            "tokens": self.step * self.config.tokens_per_step,
            "loss": outcome.loss if math.isfinite(outcome.loss) and outcome.fault is None else None,
            "lr": outcome.lr,
            "grad_norm": outcome.grad_norm if math.isfinite(outcome.grad_norm) else None,
            "seconds": self.seconds,
        }

    def _diverged(self, outcome: Outcome) -> TrainingDiverged | None:
        if outcome.fault is None:
            return None
        what = f"loss {outcome.loss}, gradient norm {outcome.grad_norm}"
        last_good = self.root / str(self.saved_at) if self.saved_at else None
        return TrainingDiverged(self.step, self.step - 1, what, outcome.fault, last_good, self.skipped_in_a_row)

    def _evaluation(self, evaluate: Evaluate) -> dict[str, Any]:
        with random_state.undisturbed():
            self.model.eval()
            try:
                return evaluate(self.model)
            finally:
                self.model.train()

    def _save(self, log: TrainingLog | None) -> None:
        states = self.place.gather(random_state.capture())
        if log is not None:
            # The log first: a checkpoint on disk means its lines are too.
            log.sync()
            tensors, tied = checkpoint.model_tensors(self.model)
            config = self.config.model_dump(mode="json")
            state: dict[str, Any] = {"step": self.step, "seconds": self.seconds, "loss": self.loss, "config": config}
            state |= {"config_hash": config_hash(config), "random": states, "tied": tied}
            state["skipped_in_a_row"] = self.skipped_in_a_row
            moments = optimizer_tensors(self.updater.optimizer, self.model)
            checkpoint.save(self.root, checkpoint.Checkpoint(tensors, moments, state), keep=self.config.keep)
        self.saved_at = self.step
        self.place.wait()

    def save_model(self) -> None:
        """FOLDER/model, whole or not there; left alone when this call trained nothing and it exists."""
        target = self.folder / "model"
        if self.place.is_main and not (target.exists() and self.taken_up_at == self.config.steps):
            temporary, old = (self.folder / f".model.{os.getpid()}.{end}" for end in ("tmp", "old"))
            self.model.save_pretrained(temporary)  # type: ignore[operator]
            for path in temporary.rglob("*"):
                checkpoint.sync_file(path) if path.is_file() else sync_folder(path)
            sync_folder(temporary)
            if target.exists():
                os.rename(target, old)
            os.rename(temporary, target)
            sync_folder(self.folder)
            shutil.rmtree(old, ignore_errors=True)
        self.place.wait()

    def result(self, asked: int | None) -> TrainingResult:
        stopped = None if asked is None else signal.Signals(asked).name
        return TrainingResult(self.step, self.loss, self.seconds, stopped)
