"""`termwise plan`: centers, proxies, anchors, plans, true evaluations; every figure a record, and the plan a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from termwise.planning.config import EXTENDABLE, PlanConfig
from termwise.results import RunFolder, config_hash

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from termwise.analysis.proxy import Proxies
    from termwise.attention.spec import AttentionSpec
    from termwise.planning.choosing import Candidate, Menu
    from termwise.planning.evaluating import Evaluator
    from termwise.planning.measuring import Centers
    from termwise.planning.opening import Opened

Say = Callable[[str], None]
ROUNDS = 3  # corrections of a plan for --max-loss, at most
SAME_SHARE = 1e-3  # of the cache: a correction smaller than this is none
LEAST = 1e-9  # nats: below it a rise is none


@dataclass
class Planning:
    """Everything a run of the command works with."""

    config: PlanConfig
    folder: RunFolder
    say: Say
    opened: Opened
    options: tuple[AttentionSpec, ...]
    shares: tuple[float, ...]
    started: float

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self.config.budget - (time.monotonic() - self.started)

    def part(self, name: str) -> Path:
        """Where a measured part is kept."""
        return self.folder.path / "parts" / f"{name}.safetensors"


def describe(config: PlanConfig) -> dict[str, Any]:
    """What would be done. Opens the model and the text, so that what is wrong with them is told here too."""
    from termwise.planning.opening import inspected, opened

    config = inspected(config)
    found = opened(config)
    options = _options(config, found)
    smallest = _smallest(config, options, found)
    pretrained = found.pretrained
    return {
        "model": f"{pretrained.name}: {pretrained.family}, {pretrained.num_layers} layers, {pretrained.num_kv_heads} kv heads",
        "text": list(found.passages.notes),
        "tokens_of_each_text": config.text_length,
        "texts": f"{config.planning_texts} to plan with, {config.texts} to report on",
        "options_of_each_kv_head": len(options),
        "smallest_share_of_the_cache": smallest,
        "passes": _num_passes(config, len(options)),
        "seconds": config.budget,
    }


def run_plan(config: PlanConfig, out: Path, *, arguments: Mapping[str, Any], console: Console) -> RunFolder:
    """Make a plan; each figure a record in `out`, whose lock the caller holds. What is measured already is not measured again.

    ValueError for a model, text, context or target that no plan can be made for.
    """
    import torch

    from termwise.planning.opening import inspected, opened

    started = time.monotonic()

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    resolved = inspected(config)
    found = opened(resolved)
    options = _options(resolved, found)
    smallest = _smallest(resolved, options, found)
    for note in found.passages.notes:
        say(note)
    shares = _possible(resolved, smallest, say)
    folder = RunFolder.create(out, "plan", dict(arguments), _resolved(resolved, found, options), extendable=EXTENDABLE)
    one = Planning(resolved, folder, say, found, options, shares, started)
    _say_cost(one)
    centers = _centers(one)
    menu, change = _menu(one, centers)
    evaluator = _evaluator(one, centers)
    _anchors(one, evaluator, menu, change)
    # proxies and single heads are too small for half precision; whole plans are not
    one.opened.pretrained.model.to(getattr(torch, one.config.dtype))
    _finish(one, evaluator, *_choose(one, evaluator, menu))
    return folder


def _options(config: PlanConfig, found: Opened) -> tuple[AttentionSpec, ...]:
    from termwise.analysis.options import options

    width = found.pretrained.head_dim
    return options(config.context, width, width, config.cache_dtype)


def _smallest(config: PlanConfig, options: tuple[AttentionSpec, ...], found: Opened) -> float:
    """The smallest share of the cache that a plan takes. ValueError for a target below it."""
    from termwise.planning.choosing import check_share, smallest_share

    smallest = smallest_share(options, config.context, found.pretrained.head_dim, config.cache_dtype)
    if config.max_state is not None:
        check_share(smallest, config.max_state)
    return smallest


def _possible(config: PlanConfig, smallest: float, say: Say) -> tuple[float, ...]:
    """The shares of the front that some plan fits into; the others are left out aloud."""
    left_out = [f"{share:.1%}" for share in config.every_share if share < smallest]
    if left_out:
        say(f"left out of the front: {', '.join(left_out)} of the cache; the smallest plan takes {smallest:.1%}")
    return tuple(share for share in config.every_share if share >= smallest)


def _resolved(config: PlanConfig, found: Opened, options: tuple[AttentionSpec, ...]) -> dict[str, Any]:
    pretrained = found.pretrained
    about = {
        "name": pretrained.name, "family": pretrained.family, "num_layers": pretrained.num_layers,
        "num_heads": pretrained.num_heads, "num_kv_heads": pretrained.num_kv_heads, "head_dim": pretrained.head_dim,
        "context": pretrained.context,
    }  # fmt: skip
    data = {
        "places": list(found.passages.places), "notes": list(found.passages.notes), "digest": found.passages.digest,
        "planning": list(found.planning), "reporting": list(found.reporting),
    }  # fmt: skip
    return config.model_dump(mode="json") | {"about": about, "data": data, "options": [s.short_name for s in options]}


def _num_passes(config: PlanConfig, num_options: int) -> float:
    """The work in forward passes of one text: a backward pass is about four, all options of every head about a sixth each."""
    choosing = config.planning_texts - 1
    planning = 1 + choosing * (5 + num_options / 6)
    evaluated = (choosing * 4 + config.texts * 3) * len(config.every_share) + choosing + config.texts
    return planning + config.anchors / 2 + evaluated


def _say_cost(one: Planning) -> None:
    """The cost, from one timed exact pass over a part of a text."""
    from termwise.analysis.replanned import scored
    from termwise.results import format_duration

    ids = one.opened.ids(one.opened.planning[0])
    few = ids[:, : max(16, ids.shape[1] // 8)]
    scored(one.opened.pretrained, few[:, :16])
    began = time.monotonic()
    scored(one.opened.pretrained, few)
    # attention grows with the square of the length: a tenth more than in proportion at these sizes
    each = (time.monotonic() - began) * ids.shape[1] / few.shape[1] * 1.1
    passes = _num_passes(one.config, len(one.options))
    one.say(
        f"{one.opened.pretrained.name}: {len(one.options)} options for each of "
        f"{one.opened.pretrained.num_layers * one.opened.pretrained.num_kv_heads} kv heads; about {passes:.0f} forward passes of "
        f"{format_duration(each)}, {format_duration(passes * each)} in all without what is there already; the budget is "
        f"{format_duration(one.config.budget)} (--budget, --texts, --planning-texts and --shares change it)"
    )


def _centers(one: Planning) -> Centers:
    from termwise.planning.measuring import measured_centers

    number = one.opened.planning[0]
    one.say(f"centers from the keys of text {number}")
    found = measured_centers(
        one.opened.pretrained, one.opened.ids(number), one.options, one.part("centers"), one.config.seed, lambda _: None
    )
    return found


def _menu(one: Planning, centers: Centers) -> tuple[Menu, Tensor]:
    """Every option with its mean proxy over the texts that choose; the mean change of the output beside it."""
    import torch

    from termwise.planning.choosing import Menu

    found = [_proxies(one, centers, number) for number in one.opened.planning[1:]]
    rise = torch.stack([proxies.rise for proxies in found]).mean(dim=0)
    change = torch.stack([proxies.change for proxies in found]).mean(dim=0)
    return Menu.of(
        one.options, rise, one.config.context, one.opened.pretrained.head_dim, one.config.cache_dtype
    ), change


def _proxies(one: Planning, centers: Centers, number: int) -> Proxies:
    """Proxies on one text, with progress every few layers."""
    from termwise.planning.measuring import measured_proxies
    from termwise.results import format_duration

    pretrained, began = one.opened.pretrained, time.monotonic()

    def said(layer: int) -> None:
        if layer and layer % 5 == 0:
            left = (time.monotonic() - began) / (pretrained.num_layers - layer) * layer
            done = f"layers {layer} to {pretrained.num_layers - 1} done"
            one.say(f"proxies on text {number}: {done}, {format_duration(left)} left for it")

    path, seed = one.part(f"proxies-{number}"), one.config.seed + number
    return measured_proxies(pretrained, one.opened.ids(number), one.options, centers, path, seed, said)


def _evaluator(one: Planning, centers: Centers) -> Evaluator:
    from termwise.planning.evaluating import Evaluator

    return Evaluator(one.opened, centers, one.folder, one.say, config_hash(one.config.model_dump(mode="json")))


def _anchors(one: Planning, evaluator: Evaluator, menu: Menu, change: Tensor) -> None:
    """True rises of single heads, to judge the proxies by."""
    from termwise.planning.evaluating import measured_anchors
    from termwise.planning.recording import Recorder

    if not one.config.anchors or any(r.metric == "anchor_rise" for r in one.folder.records()):
        return
    found = measured_anchors(evaluator, menu, change.tolist(), one.config.anchors, one.opened.planning[1])
    records = Recorder(one.folder, one.config).anchors(found)
    one.folder.append(*records)
    for record in records[-2:]:
        told = record.reason if record.value is None else f"{record.value:.2f}"
        one.say(f"{record.metric.replace('_', ' ')} over {len(found)} single heads: {told}")


def _choose(one: Planning, evaluator: Evaluator, menu: Menu) -> tuple[list[Candidate], Candidate, dict[str, Any]]:
    """Plans of the front, the chosen one, and what was predicted of it."""
    from termwise.planning.choosing import SLOTS, TERMWISE, baseline

    sizes = one.opened.pretrained.num_layers, one.opened.pretrained.num_kv_heads
    plans: list[Candidate] = []
    for share in reversed(one.shares):
        for method in (TERMWISE, SLOTS):
            plans.append(_best(one, evaluator, menu, method, share))
        plans.append(baseline(one.config.context, share, *sizes))
    if one.config.max_state is not None:
        chosen = next(plan for plan in plans if plan.method == TERMWISE and plan.share == one.config.max_state)
    else:
        chosen = _for_loss(one, evaluator, menu, [plan for plan in plans if plan.method == TERMWISE])
        plans += [chosen, _best(one, evaluator, menu, SLOTS, chosen.share)]
        plans.append(baseline(one.config.context, chosen.share, *sizes))
    texts = one.opened.planning[1:]
    planned = evaluator.rise(chosen, evaluator.exact, texts).value
    return plans, chosen, {"proxy": chosen.predicted, "rise_on_planning_texts": planned}


def _best(one: Planning, evaluator: Evaluator, menu: Menu, method: str, share: float) -> Candidate:
    """Of the candidates of a method the one that truly loses least on the planning texts."""
    from termwise.planning.choosing import candidates

    texts = one.opened.planning[1:]
    found = candidates(menu, method, share)
    return min(found, key=lambda plan: sum(evaluator.loss(plan, text) for text in texts))


def _for_loss(one: Planning, evaluator: Evaluator, menu: Menu, front: list[Candidate]) -> Candidate:
    """The smallest plan whose true rise on the planning texts is within the target: the proxies' scale is fitted, and fitted again."""
    from termwise.planning.choosing import TERMWISE, share_for_loss

    target = one.config.max_loss
    assert target is not None

    def rise(plan: Candidate) -> float:
        return evaluator.rise(plan, evaluator.exact, one.opened.planning[1:]).value

    tried = list(front)
    for _ in range(ROUNDS):
        near = min(tried, key=lambda plan: abs(rise(plan) - target))
        scale = max(rise(near), LEAST) / max(near.predicted or 0.0, LEAST)
        share = max(share_for_loss(menu, target, scale), float(menu.sizes.min() / menu.sizes[0]))
        if any(abs(share - plan.share) < SAME_SHARE for plan in tried):
            break
        tried.append(_best(one, evaluator, menu, TERMWISE, share))
    within = [plan for plan in tried if rise(plan) <= target]
    return min(within, key=lambda plan: plan.share) if within else min(tried, key=rise)


def _finish(
    one: Planning, evaluator: Evaluator, plans: list[Candidate], chosen: Candidate, predicted: dict[str, Any]
) -> None:
    """True losses of the front on the reporting texts, within the budget; records, and the plan's files."""
    from termwise.planning.recording import Recorder

    recorder = Recorder(one.folder, one.config)
    texts = _report(one, evaluator, plans)
    one.folder.append(*recorder.heads(chosen, one.opened.pretrained.head_dim))
    one.folder.append(*recorder.front(plans, chosen, evaluator, texts))
    if one.opened.longer is not None:
        one.folder.append(*recorder.longer(chosen, evaluator, one.opened.longer))
    measured = recorder.measured(chosen, evaluator, texts)
    _write(one, evaluator, chosen, predicted, measured)


def _report(one: Planning, evaluator: Evaluator, plans: list[Candidate]) -> tuple[int, ...]:
    """The reporting texts that all plans were evaluated on: all, or as many (two at least) as the budget allows."""
    from termwise.results import format_duration

    done: list[int] = []
    for text in one.opened.reporting:
        began = time.monotonic()
        for plan in (evaluator.exact, *plans):
            evaluator.loss(plan, text)
        done.append(text)
        spent = time.monotonic() - began
        missing = len(one.opened.reporting) - len(done)
        one.say(f"{len(done)} of {len(one.opened.reporting)} texts reported, {format_duration(spent * missing)} left")
        if missing and len(done) > 1 and one.left < spent:
            one.say(f"the budget is spent: {missing} texts are left; the same command with more --budget goes on")
            break
    return tuple(done)


def _write(
    one: Planning, evaluator: Evaluator, chosen: Candidate, predicted: dict[str, Any], measured: dict[str, Any]
) -> None:
    from termwise.planning.plan_file import Plan, model_hash, write_plan

    pretrained, config = one.opened.pretrained, one.config
    about = {name: getattr(pretrained, name) for name in ("num_layers", "num_heads", "num_kv_heads", "head_dim")}
    model = {
        "folder": str(pretrained.folder),
        "family": pretrained.family,
        "config_hash": model_hash(pretrained.folder),
    }
    target = {name: value for name, value in (("max_state", config.max_state), ("max_loss", config.max_loss)) if value}
    centers = {
        (layer, head): evaluator.centers[layer, head, spec.kernel.centers]
        for layer, specs in enumerate(chosen.layers)
        for head, spec in enumerate(specs)
        if spec.kernel.centers > 1
    }
    plan = Plan(model | about, config.context, target, config.cache_dtype, chosen.layers, centers, predicted, measured)
    one.say(f"the plan: {write_plan(plan, one.folder.path)}")
