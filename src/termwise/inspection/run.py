"""`termwise inspect`: what is still to be measured, in which order, within the budget; every figure a record."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from termwise.data.sizes import counted
from termwise.inspection.config import DEFAULT_LENGTH, EXTENDABLE, InspectConfig
from termwise.inspection.job import Inspection
from termwise.inspection.opening import opened, resolved
from termwise.results import RunFolder, atomic_write_text, format_duration

if TYPE_CHECKING:
    from rich.console import Console

    from termwise.inspection.planning import Cost, Place, Remaining, Rung

EVERY = 20.0  # seconds between two lines of progress
UNUSUAL = 1.0  # nats a token between the loss and the loss the model expects


def describe(config: InspectConfig, out: Path) -> dict[str, Any]:
    """What would be done in `out`. Opens the model and the text, so that what is wrong with them is told here too."""
    config, pretrained, passages, spec, local = opened(config)
    RunFolder.check(out, "inspect", resolved(config, pretrained, passages, spec), EXTENDABLE)
    from termwise.inspection.planning import ladder

    first, later = ladder(local)
    return {
        "model": pretrained.described,
        "text": list(passages.notes),
        "tokens_of_each_text": config.text_length,
        "tokens": passages.ids.numel(),
        "reduced": spec.short_name,
        "ladder": f"{counted(len(first), 'model')}, {len(later)} more if time is left",
        "places": pretrained.num_layers * (1 + pretrained.num_kv_heads),
        "seconds": config.budget,
    }


def run_inspect(config: InspectConfig, out: Path, *, arguments: Mapping[str, Any], console: Console) -> RunFolder:
    """Inspect a model within the budget; each figure a record in `out`, whose lock the caller holds.

    What is measured already is not measured again. ValueError for a model or text that cannot be inspected.
    """
    from termwise.inspection.planning import ladder

    started = time.monotonic()

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    asked = config
    config, pretrained, passages, spec, local = opened(asked)
    for note in passages.notes:
        say(note)
    if asked.length is None and config.text_length < DEFAULT_LENGTH:
        taken = counted(config.text_length, "token")
        say(f"texts of {taken}, the most that {pretrained.name} takes (--length gives shorter ones)")
    folder = RunFolder.create(
        out, "inspect", dict(arguments), resolved(config, pretrained, passages, spec), extendable=EXTENDABLE
    )
    one = Inspection(config, folder, say, pretrained, passages, spec, local, started)
    first, later = ladder(local)
    cost, to_do = _begin(one, first, later)
    _texts(one, cost, to_do)
    _rungs(one, cost, to_do, first, is_optional=False)
    _places(one, cost, to_do)
    _rungs(one, cost, to_do, later, is_optional=True)
    return folder


def _begin(one: Inspection, first: list[Rung], later: list[Rung]) -> tuple[Cost, Remaining]:
    """Time the parts of the work, and say what the budget buys."""
    from termwise.inspection.measuring import first_costs
    from termwise.inspection.planning import affordable
    from termwise.inspection.sentence import sentence_scores

    pretrained, config = one.pretrained, one.config
    ids = one.passages.ids.to(pretrained.model.device)
    cost, recording = first_costs(pretrained, ids[:1], one.spec, one.local, config.texts)
    one.recordings.append(recording)
    shown = sentence_scores(pretrained, pretrained.tokenizer, ids[:1])
    atomic_write_text(one.folder.path / "sentence.json", json.dumps(shown, ensure_ascii=False) + "\n")
    _write_sizes(one, [*first, *later])
    to_do = _remaining(one, first, later)
    always, texts, rungs = to_do.always(cost), to_do.texts, to_do.rungs
    bought = affordable(to_do.places, cost, one.left - always)
    unit = "losses" if one.has_loss else "relative changes of the final hidden state (an encoder has no loss)"
    one.say(f"{pretrained.described}; {unit}")
    one.say(
        f"budget {format_duration(config.budget)}: terms of {counted(texts, 'text')} and {counted(rungs, 'model')} of the ladder take about "
        f"{format_duration(always)}; what is left buys true evaluations of about {bought} of {len(to_do.places)} heads and layers, "
        f"those of the largest proxy first; {_left(one, cost, to_do)} (--budget changes it)"
    )
    return cost, to_do


def _write_sizes(one: Inspection, rungs: list[Rung]) -> None:
    """What each attention would keep; an encoder has no cache to compare with."""
    from termwise.inspection.recording import Recording

    pretrained = one.pretrained
    if not pretrained.is_causal or any(record.metric == "kept_bytes" for record in one.folder.records()):
        return
    specs = [one.spec, *(rung.spec for rung in rungs)]
    make = Recording(one.folder, one.config, has_loss=one.has_loss)
    one.folder.append(*make.sizes(specs, pretrained.head_dim, pretrained.context))


def _remaining(one: Inspection, first: list[Rung], later: list[Rung]) -> Remaining:
    """What no record says yet."""
    from termwise.inspection.planning import Remaining, ranked
    from termwise.inspection.recording import done_places, done_rungs

    records = one.folder.records()
    rungs, places = done_rungs(records), done_places(records)
    heads = ranked([[0.0] * one.pretrained.num_kv_heads] * one.pretrained.num_layers)
    return Remaining(
        texts=sum(not _part(one, n).exists() for n in range(one.config.texts)),
        rungs=sum(rung.spec.short_name not in rungs for rung in first),
        places=[place for place in [*heads, *_layers(one)] if place not in places],
        later=sum(rung.spec.short_name not in rungs for rung in later),
    )


def _layers(one: Inspection) -> list[Place]:
    from termwise.inspection.planning import Place

    return [Place(layer, None) for layer in range(one.pretrained.num_layers)]


def _part(one: Inspection, number: int) -> Path:
    return one.folder.path / "parts" / f"text-{number}.safetensors"


def _texts(one: Inspection, cost: Cost, to_do: Remaining) -> None:
    """Terms, proxies and the exact loss, text by text; the recordings stay for the replays."""
    from termwise.inspection import measuring
    from termwise.inspection.measuring import TextFigures

    for number, ids in enumerate(one.passages.ids.to(one.pretrained.model.device).split(1)):
        recording = one.recordings[0] if number == 0 else measuring.record_exact(one.pretrained, ids)
        path = _part(one, number)
        if path.exists():
            one.figures.append(TextFigures.load(path))
        else:
            started, foreseen = time.monotonic(), cost.plain("text")
            found = measuring.measure_text(one.pretrained, recording, ids, one.spec, one.local)
            found.save(path)
            one.figures.append(found)
            cost.learn("text", foreseen, time.monotonic() - started)
            said = f"loss {found.loss:.3f} nats/token" if one.has_loss else "terms"
            to_do.texts -= 1
            one.say(f"text {number + 1} of {one.config.texts}: {said} ({_left(one, cost, to_do)})")
        recording = measuring.light(recording, has_loss=one.has_loss)
        one.recordings[number:] = [recording]
    _write_texts(one)


def _write_texts(one: Inspection) -> None:
    import torch

    from termwise.inspection.recording import EXACT, Recording
    from termwise.results import Record

    if any(r.subject.get("variant") == EXACT for r in one.folder.records()):
        return
    make = Recording(one.folder, one.config, has_loss=one.has_loss)
    heads, num = one.pretrained.num_kv_heads, len(one.figures)
    means = []
    for layers in zip(*(figure.terms for figure in one.figures), strict=True):
        total = layers[0]
        for other in layers[1:]:
            total = total + other
        means.append(total.means(heads))
    expected = [figure.expected for figure in one.figures] if one.has_loss else None
    found: list[Record] = [*make.exact(one.exact, expected), *make.terms(means, num)]
    name = one.spec.short_name
    errors = torch.stack([figure.output_error for figure in one.figures]).mean(dim=0)
    found += make.proxies("projected_error", errors, "relative", name, num)
    if one.has_loss:
        found += make.proxies("fisher", _mean_fisher(one), "nats/token", name, num)
        _warn(one, sum(one.exact) / num, sum(figure.expected for figure in one.figures) / num)
    one.folder.append(*found)


def _mean_fisher(one: Inspection) -> Any:
    import torch

    return torch.stack([figure.fisher for figure in one.figures]).mean(dim=0)


def _warn(one: Inspection, loss: float, expected: float) -> None:
    """An unusual loss: far from the one the model expects of itself, or no better than guessing evenly."""
    even = math.log(one.pretrained.model.config.vocab_size)
    one.say(f"loss {loss:.3f} nats/token on {one.passages.ids.numel():,} tokens; the model expects {expected:.3f}")
    if loss > 0.9 * even:
        what = f"close to guessing every token alike ({even:.2f})"
    elif abs(loss - expected) > UNUSUAL:
        what = f"{'above' if loss > expected else 'below'} what its own predictions expect by {abs(loss - expected):.2f} nats"
    else:
        return
    told = (
        f"warning: the loss of {loss:.2f} is unusual for this model, {what}: is this the kind of text it was made for?"
    )
    one.say(told)
    one.folder.update(warnings=[told])


def _rungs(one: Inspection, cost: Cost, to_do: Remaining, rungs: list[Rung], *, is_optional: bool) -> None:
    """The ladder: the whole model by each spec."""
    from termwise.inspection.measuring import rung_losses
    from termwise.inspection.recording import Recording, done_rungs

    make = Recording(one.folder, one.config, has_loss=one.has_loss)
    done = done_rungs(one.folder.records())
    waiting = [rung for rung in rungs if rung.spec.short_name not in done]
    ids = one.passages.ids.to(one.pretrained.model.device)
    for number, rung in enumerate(waiting):
        if is_optional and one.left < cost.rung():
            reason = f"the budget of {format_duration(one.config.budget)} was spent; the same command with more goes on"
            one.folder.append(*(make.unmeasured_rung(other, reason) for other in waiting[number:]))
            return
        started, foreseen = time.monotonic(), cost.plain("rung")
        losses = rung_losses(one.pretrained, one.recordings, ids, rung.spec)
        seconds = time.monotonic() - started
        cost.learn("rung", foreseen, seconds)
        one.folder.append(*make.rung(rung, losses, one.exact, seconds))
        if is_optional:
            to_do.later -= 1
        else:
            to_do.rungs -= 1
        one.say(f"{rung.spec.short_name}: {sum(losses) / len(losses):.3f} {make.unit} ({_left(one, cost, to_do)})")


def _left(one: Inspection, cost: Cost, to_do: Remaining) -> str:
    return f"about {format_duration(to_do.seconds(cost, one.left))} left"


def _places(one: Inspection, cost: Cost, to_do: Remaining) -> None:
    """True rises of heads by rank, then of layers, as far as the budget goes."""
    from termwise.inspection.measuring import place_losses
    from termwise.inspection.planning import ranked
    from termwise.inspection.recording import Recording, done_places

    make = Recording(one.folder, one.config, has_loss=one.has_loss)
    done = done_places(one.folder.records())
    proxies = _mean_fisher(one) if one.has_loss else sum(figure.output_error for figure in one.figures)
    waiting = [place for place in [*ranked(proxies.tolist()), *_layers(one)] if place not in done]
    to_do.places = list(waiting)
    ids = one.passages.ids.to(one.pretrained.model.device)
    for number, place in enumerate(waiting):
        if one.left < cost.rise(place):
            reason = f"the budget of {format_duration(one.config.budget)} was spent; the same command with more goes on"
            one.folder.append(*(make.unmeasured(other, reason) for other in waiting[number:]))
            left = counted(len(waiting) - number, "head or layer is", "heads and layers are")
            one.say(f"the budget is spent: {left} left without a true evaluation")
            return
        started, foreseen = time.monotonic(), cost.plain("rise", place)
        losses = place_losses(one.pretrained, one.recordings, ids, one.spec, place)
        seconds = time.monotonic() - started
        cost.learn("rise", foreseen, seconds)
        one.folder.append(*make.rise(place, losses, one.exact, one.spec.short_name, seconds))
        to_do.places.remove(place)
        if time.monotonic() - one.spoken > EVERY:
            one.spoken = time.monotonic()
            one.say(f"{number + 1} of {len(waiting)} heads and layers ({_left(one, cost, to_do)})")
