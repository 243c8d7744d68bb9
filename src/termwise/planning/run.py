"""`termwise plan`: centers, proxies, anchors, plans, true evaluations; every figure a record, and the plan a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from termwise.data.sizes import counted
from termwise.planning.config import EXTENDABLE, PlanConfig
from termwise.results import RunFolder, config_hash

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from termwise.analysis.proxy import Proxies
    from termwise.attention.spec import AttentionSpec
    from termwise.planning.choosing import Menu
    from termwise.planning.evaluating import Evaluator
    from termwise.planning.job import Planning
    from termwise.planning.measuring import Centers
    from termwise.planning.opening import Opened

Say = Callable[[str], None]
INSPECTED = "rank_of_inspection"


def describe(config: PlanConfig, out: Path) -> dict[str, Any]:
    """What would be done in `out`. Opens the model and the text, so that what is wrong with them is told here too."""
    from termwise.planning.opening import inspected, opened

    config = inspected(config)
    found = opened(config)
    options = _options(config, found)
    smallest = _smallest(config, options, found)
    RunFolder.check(out, "plan", _resolved(config, found, options), EXTENDABLE)
    pretrained = found.pretrained
    return {
        "model": pretrained.described,
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

    from termwise.planning.closing import finish
    from termwise.planning.deciding import choose
    from termwise.planning.job import Planning
    from termwise.planning.opening import inspected, inspected_rises, opened

    started = time.monotonic()

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    resolved = inspected(config)
    found = opened(resolved)
    inspection = Path(config.source).expanduser()
    rises = inspected_rises(inspection, found.pretrained) if resolved.source != config.source else {}
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
    if resolved.source != config.source:
        _beside_inspection(one, menu, inspection, rises)
    # proxies and single heads are too small for half precision; whole plans are not
    one.opened.pretrained.model.to(getattr(torch, one.config.dtype))
    finish(one, evaluator, *choose(one, evaluator, menu))
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
    """The shares of the front that some plan fits into, one at least; the others are left out aloud."""
    left_out = [f"{share:.1%}" for share in config.every_share if share < smallest]
    if left_out:
        say(f"left out of the front: {', '.join(left_out)} of the cache; the smallest plan takes {smallest:.1%}")
    return tuple(share for share in config.every_share if share >= smallest) or ((1 + smallest) / 2,)


def _resolved(config: PlanConfig, found: Opened, options: tuple[AttentionSpec, ...]) -> dict[str, Any]:
    from termwise.models.naming import fingerprint

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
    known = {"about": about, "weights": fingerprint(pretrained.folder), "data": data}
    return config.model_dump(mode="json") | known | {"options": [s.short_name for s in options]}


def _num_passes(config: PlanConfig, num_options: int) -> float:
    """The work in forward passes of one text, as measured on one model: centers take five, a backward pass four, all heads with
    one option two fifths."""
    choosing = config.planning_texts - 1
    planning = 6 + choosing * (5 + 0.4 * num_options)
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
        f"{one.opened.pretrained.name}: {counted(len(one.options), 'option')} for each of "
        f"{counted(one.opened.pretrained.num_layers * one.opened.pretrained.num_kv_heads, 'kv head')}; about {passes:.0f} forward passes of "
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
        one.say(f"{record.metric.replace('_', ' ')} over {counted(len(found), 'single head')}: {told}")


def _beside_inspection(one: Planning, menu: Menu, path: Path, rises: dict[tuple[int, int], float]) -> None:
    """How alike the proxies and the true rises of an inspection rank the kv heads."""
    from termwise.planning.evaluating import proxies_beside
    from termwise.planning.recording import Recorder

    if any(r.metric == INSPECTED for r in one.folder.records()):
        return
    found = proxies_beside(menu, rises, RunFolder.open(path).run["resolved"]["window"])
    record = Recorder(one.folder, one.config).inspected(*found)
    one.folder.append(record)
    told = record.reason if record.value is None else f"{record.value:.2f}"
    one.say(
        f"rank correlation of the proxies with the true rises of {path}, {counted(record.n or 0, 'kv head')}: {told}"
    )
