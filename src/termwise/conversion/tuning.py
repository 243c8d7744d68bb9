"""Tuning a converted model: attention outputs matched layer by layer, then the whole against the original's distribution."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from termwise.attention.spec import CALIBRATED
from termwise.conversion.config import MATCHING_SHARE, ConvertConfig
from termwise.conversion.objectives import Distilling, Matching, attentions, inner, mean_over
from termwise.conversion.texts import Texts
from termwise.conversion.watching import Watch
from termwise.results import format_duration
from termwise.training.configuration import TrainingConfig
from termwise.training.loop import train
from termwise.training.update import Objective

Say = Callable[[str], None]
NUM_WATCHED = 12  # measures of the held-out figure in a run
WATCHING_SHARE = 0.2  # of the time of a stage
LINE_SECONDS = 10.0
LORA_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True)
class Steps:
    """Updates of both stages, and how many batches of held-out text are watched."""

    matching: int
    distilling: int
    watched: int

    @property
    def total(self) -> int:
        """Both together."""
        return self.matching + self.distilling


@dataclass(frozen=True)
class Stage:
    """One run of training: what it is called, towards what, for how long, where."""

    name: str
    objective: Objective
    steps: int
    folder: Path


def steps_of(config: ConvertConfig, student: nn.Module, original: nn.Module, texts: Texts, say: Say) -> Steps:
    """As asked, else as many as take the time, from a few updates measured on a copy; watching takes a fifth at most.

    Outputs that are the original's to the last bit (an identity plan) leave nothing to match: all steps are end to end.
    """
    share = MATCHING_SHARE if _differs(student, original, texts) else 0.0
    if config.steps:
        matching = max(1, round(config.steps * share)) if share else 0
        return Steps(matching, config.steps - matching, len(texts.watched))
    assert config.tune is not None
    speeds = [
        _speed(objective, copy.deepcopy(student), config, texts)
        for objective in (Matching(original), Distilling(original, config.labels))
    ]
    looks = NUM_WATCHED * max(look for _, look in speeds)
    watched = max(1, min(len(texts.watched), int(WATCHING_SHARE * config.tune * MATCHING_SHARE / looks)))
    matching, distilling = (
        max(2, int((config.tune * part - NUM_WATCHED * watched * look) / step)) if part else 0
        for part, (step, look) in zip((share, 1 - share), speeds, strict=True)
    )
    say(
        f"{format_duration(config.tune)} are about {matching:,} steps of matching and {distilling:,} end to end "
        f"({speeds[0][0]:.2f} s and {speeds[1][0]:.2f} s each)"
    )
    return Steps(matching, distilling, watched)


def _differs(student: nn.Module, original: nn.Module, texts: Texts) -> bool:
    """Whether attention outputs of a held-out batch are not those of the original."""
    device = next(student.parameters()).device
    return mean_over(Matching(original), student, texts.watched[:1], device) != 0.0


def _speed(objective: Objective, student: nn.Module, config: ConvertConfig, texts: Texts) -> tuple[float, float]:
    """Seconds of an update, and of one look at one batch of the watched text."""
    device, optimizer = next(student.parameters()).device, torch.optim.AdamW(student.parameters(), lr=0.0)
    step = 0.0
    for number in range(3):
        batch = texts.text.train.batch(config.seed, number, config.rows, texts.context)
        started = time.perf_counter()
        ids, labels, bounds = (
            torch.from_numpy(a).to(device) for a in (batch.input_ids, batch.labels, batch.cu_seqlens)
        )
        optimizer.zero_grad()
        (objective(student, ids, labels, bounds) / ids.numel()).backward()
        optimizer.step()
        step = time.perf_counter() - started
    started = time.perf_counter()
    mean_over(objective, student, texts.watched[:1], device)
    return step, time.perf_counter() - started


def tune(
    student: nn.Module, original: nn.Module, config: ConvertConfig, texts: Texts, steps: Steps, folder: Path, say: Say
) -> nn.Module:
    """The student after both stages, merged with its adapters; each keeps its best weights by the watched text."""
    learning = with_adapters(student, config.lora, config.seed) if config.lora else student
    stages = [
        Stage("matching", Matching(original), steps.matching, folder / "matching"),
        Stage("end to end", Distilling(original, config.labels), steps.distilling, folder / "distilling"),
    ]
    parts: list[list[Any]] = [attentions(learning), [learning]]
    for stage, part in zip(stages, parts, strict=True):
        if stage.steps:
            _freeze_all_but(learning, part)
            _run(stage, learning, config, texts, steps.watched, say)
    return learning.merge_and_unload() if config.lora else learning  # type: ignore[operator]


def tune_original(
    model: nn.Module, original: nn.Module, config: ConvertConfig, texts: Texts, steps: Steps, folder: Path, say: Say
) -> nn.Module:
    """The original after as many steps on the same text, end to end towards the same."""
    learning = with_adapters(model, config.lora, config.seed) if config.lora else model
    distilling = Distilling(original, config.labels)
    _run(Stage("original", distilling, steps.total, folder / "distilling"), learning, config, texts, steps.watched, say)
    return learning.merge_and_unload() if config.lora else learning  # type: ignore[operator]


def with_adapters(model: nn.Module, rank: int, seed: int) -> nn.Module:
    """The model with low-rank adapters on every projection, the same for one seed; only they learn. ValueError without peft."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ValueError("--lora needs one more package: pip install 'termwise[tune]'") from None
    settings = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=LORA_TARGETS, lora_dropout=0.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(model, settings)


def _freeze_all_but(model: nn.Module, learning: list[Any]) -> None:
    """Of the weights that may learn at all, those in some modules do; with adapters those are the adapters."""
    has_adapters = model is not inner(model)
    kept = {id(p) for module in learning for p in module.parameters()}
    for name, parameter in model.named_parameters():
        may_learn = "lora_" in name if has_adapters else name.rpartition(".")[2] not in CALIBRATED
        parameter.requires_grad_(may_learn and id(parameter) in kept)


def _run(stage: Stage, model: nn.Module, config: ConvertConfig, texts: Texts, watched: int, say: Say) -> None:
    device = next(model.parameters()).device

    def measure(found: nn.Module) -> float:
        return mean_over(stage.objective, found, texts.watched[:watched], device)

    before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    watch = Watch(stage.folder, measure(model.eval()), measure, earliest=stage.steps // 2)
    say(f"{stage.name}: {stage.steps:,} steps; held out {watch.start:.4f} before")
    settings = TrainingConfig(
        steps=stage.steps, tokens_per_step=config.rows * texts.context, context=texts.context, lr=config.lr,
        weight_decay=0.0, seed=config.seed, device=config.device, dtype=config.dtype or "auto",
        checkpoint_every=max(1, stage.steps // NUM_WATCHED), threads=torch.get_num_threads(),
    )  # fmt: skip
    progress = _Progress(stage, watch, say)
    trained = train(
        model,
        lambda step: texts.text.train.batch(config.seed, step, config.rows, texts.context),
        settings,
        stage.folder,
        evaluate=watch.evaluate,
        on_step=progress.on_step,
        objective=stage.objective,
        is_enough=watch.is_enough,
    )
    is_better = watch.restore(model.eval())
    early = f" (stopped at step {trained.step:,} of {stage.steps:,}: it no longer fell)" if watch.is_enough() else ""
    told = (
        f"held out {watch.start:.4f} -> {watch.best:.4f}"
        if is_better
        else "it did not help, the weights stay as they were"
    )
    say(f"{stage.name}: {told}{early}")
    if not is_better:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in before:
                    parameter.copy_(before[name])


class _Progress:
    """A line now and then, with the time left."""

    def __init__(self, stage: Stage, watch: Watch, say: Say) -> None:
        self.stage, self.watch, self.say = stage, watch, say
        self.started = self.told = time.monotonic()
        self.first: int | None = None

    def on_step(self, line: dict[str, Any]) -> None:
        self.watch.on_step(line)
        self.first = line["step"] - 1 if self.first is None else self.first
        now = time.monotonic()
        if now - self.told < LINE_SECONDS:
            return
        self.told = now
        each = (now - self.started) / (line["step"] - self.first)
        left = format_duration(each * (self.stage.steps - line["step"]))
        loss = "none" if line["loss"] is None else f"{line['loss']:.4f}"
        self.say(
            f"{self.stage.name}: step {line['step']:,} of {self.stage.steps:,}, loss {loss}, held out at best "
            f"{self.watch.best:.4f}, {left} left"
        )
