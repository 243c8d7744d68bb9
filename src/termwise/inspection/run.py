"""`termwise inspect`: what is still to be measured, in which order, within the budget; every figure a record."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from termwise.inspection.config import ENCODER_REDUCED, EXTENDABLE, REDUCED, InspectConfig
from termwise.results import RunFolder, atomic_write_text, format_duration

if TYPE_CHECKING:
    from rich.console import Console

    from termwise.analysis.pretrained import Pretrained
    from termwise.attention.spec import AttentionSpec, Local
    from termwise.inspection.planning import Cost, Place, Rung
    from termwise.inspection.texts import Passages

Say = Callable[[str], None]
EVERY = 20.0  # seconds between two lines of progress
UNUSUAL = 1.0  # nats a token between the loss and the loss the model expects


@dataclass
class Inspection:
    """Everything a run of the command works with. `recordings`, `figures` and `exact` grow text by text."""

    config: InspectConfig
    folder: RunFolder
    say: Say
    pretrained: Pretrained
    passages: Passages
    spec: AttentionSpec
    local: Local | None
    started: float
    recordings: list[Any] = field(default_factory=list)
    figures: list[Any] = field(default_factory=list)
    spoken: float = 0.0

    @property
    def has_loss(self) -> bool:
        """Whether the model is a language model; an encoder's measure is the change of its final hidden state."""
        return self.pretrained.head is not None

    @property
    def exact(self) -> list[float]:
        """The model's own loss on each text."""
        return [figure.loss for figure in self.figures]

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self.config.budget - (time.monotonic() - self.started)


def describe(config: InspectConfig) -> dict[str, Any]:
    """What would be done. Opens the model and the text, so that what is wrong with them is told here too."""
    pretrained, passages, spec, local = _open(config)
    from termwise.inspection.planning import ladder

    first, later = ladder(local)
    return {
        "model": f"{pretrained.name}: {pretrained.family}, {pretrained.num_layers} layers, {pretrained.num_kv_heads} kv heads",
        "text": list(passages.notes),
        "tokens": passages.ids.numel(),
        "reduced": spec.short_name,
        "ladder": f"{len(first)} models, {len(later)} more if time is left",
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

    pretrained, passages, spec, local = _open(config)
    for note in passages.notes:
        say(note)
    folder = RunFolder.create(
        out, "inspect", dict(arguments), _resolved(config, pretrained, passages, spec), extendable=EXTENDABLE
    )
    one = Inspection(config, folder, say, pretrained, passages, spec, local, started)
    first, later = ladder(local)
    cost = _begin(one, first)
    _texts(one, cost)
    _rungs(one, cost, first, is_optional=False)
    _places(one, cost)
    _rungs(one, cost, later, is_optional=True)
    return folder


def _open(config: InspectConfig) -> tuple[Pretrained, Passages, AttentionSpec, Local | None]:
    from termwise.data.sources import find_roots

    find_roots(list(config.text) or None)
    from termwise.analysis.pretrained import open_pretrained
    from termwise.analysis.replaying import check_length
    from termwise.attention.names import parse
    from termwise.attention.spec import Local
    from termwise.inspection.texts import take_passages
    from termwise.models.devices import usable_device

    device = usable_device(config.device)
    pretrained = open_pretrained(config.model)
    check_length(pretrained, config.length)
    if pretrained.tokenizer is None:
        raise ValueError(f"{pretrained.folder} holds no tokenizer, so it reads no text; copy a tokenizer.json into it")
    usual = REDUCED.format(window=config.window, sinks=config.sinks) if pretrained.is_causal else ENCODER_REDUCED
    spec = parse(config.reduced or usual)
    _check_reduced(spec, pretrained)
    passages = take_passages(
        config.text, pretrained.tokenizer, texts=config.texts, length=config.length, seed=config.seed, column=config.column,
        errors=config.errors,
    )  # fmt: skip
    pretrained.model.to(device).requires_grad_(False)
    local = Local(config.window, config.sinks) if pretrained.is_causal else None
    return pretrained, passages, spec, local


def _check_reduced(spec: AttentionSpec, pretrained: Pretrained) -> None:
    """ValueError for a spec that this model's queries, keys and values do not suffice for."""
    import torch

    from termwise.analysis.reducing import reduced_attention

    if (
        spec.parameters(pretrained.head_dim)
        or spec.input_gate
        or spec.output_gate
        or spec.log_decay
        or spec.needs_running_gate
    ):
        raise ValueError(
            f"--reduced {spec.short_name}: gates, decays and learned parameters are not there in a trained model; name orders "
            f"with or without slots, e.g. {ENCODER_REDUCED}"
        )
    few = torch.zeros(1, 4, 1, pretrained.head_dim)
    reduced_attention(few, few, few, 1.0, spec, is_causal=pretrained.is_causal)


def _resolved(config: InspectConfig, pretrained: Pretrained, passages: Passages, spec: AttentionSpec) -> dict[str, Any]:
    about = {
        "name": pretrained.name, "family": pretrained.family, "num_layers": pretrained.num_layers,
        "num_heads": pretrained.num_heads, "num_kv_heads": pretrained.num_kv_heads, "head_dim": pretrained.head_dim,
        "context": pretrained.context, "has_loss": pretrained.head is not None,
    }  # fmt: skip
    data = {"places": list(passages.places), "notes": list(passages.notes), "digest": passages.digest}
    return config.model_dump(mode="json") | {"reduced": spec.short_name, "about": about, "data": data}


def _begin(one: Inspection, first: list[Rung]) -> Cost:
    """Time the parts of the work, and say what the budget buys."""
    from termwise.inspection.measuring import first_costs
    from termwise.inspection.planning import affordable, ranked
    from termwise.inspection.recording import done_places, done_rungs
    from termwise.inspection.sentence import sentence_scores

    pretrained, config = one.pretrained, one.config
    ids = one.passages.ids.to(pretrained.model.device)
    cost, recording = first_costs(pretrained, ids[:1], one.spec, one.local, config.texts)
    one.recordings.append(recording)
    shown = sentence_scores(pretrained, pretrained.tokenizer, ids[:1])
    atomic_write_text(one.folder.path / "sentence.json", json.dumps(shown, ensure_ascii=False) + "\n")
    records = one.folder.records()
    rungs = len({rung.spec.short_name for rung in first} - done_rungs(records))
    texts = sum(not _part(one, n).exists() for n in range(config.texts))
    always = texts * cost.text() + rungs * cost.rung()
    heads = [place for place in ranked([[0.0] * pretrained.num_kv_heads] * pretrained.num_layers)]
    places = [place for place in [*heads, *_layers(one)] if place not in done_places(records)]
    bought = affordable(places, cost, one.left - always)
    unit = "losses" if one.has_loss else "relative changes of the final hidden state (an encoder has no loss)"
    one.say(
        f"{pretrained.name}: {pretrained.family}, {pretrained.num_layers} layers of {pretrained.num_kv_heads} kv heads; {unit}"
    )
    one.say(
        f"budget {format_duration(config.budget)}: terms of {texts} texts and {rungs} models of the ladder take about "
        f"{format_duration(always)}; what is left buys true evaluations of about {bought} of {len(places)} heads and layers, those "
        "of the largest proxy first (--budget changes it)"
    )
    return cost


def _layers(one: Inspection) -> list[Place]:
    from termwise.inspection.planning import Place

    return [Place(layer, None) for layer in range(one.pretrained.num_layers)]


def _part(one: Inspection, number: int) -> Path:
    return one.folder.path / "parts" / f"text-{number}.safetensors"


def _texts(one: Inspection, cost: Cost) -> None:
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
            one.say(
                f"text {number + 1} of {one.config.texts}: {said} ({format_duration(max(0.0, one.left))} of the budget left)"
            )
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


def _rungs(one: Inspection, cost: Cost, rungs: list[Rung], *, is_optional: bool) -> None:
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
        after = (len(waiting) - number - 1) * cost.rung()
        one.say(
            f"{rung.spec.short_name}: {sum(losses) / len(losses):.3f} {make.unit} ({_left(one, after, is_optional)})"
        )


def _left(one: Inspection, always: float, is_optional: bool) -> str:
    """Time left: what must still be done, and where places follow all that the budget has left."""
    seconds = min(always, max(0.0, one.left)) if is_optional else max(always, one.left)
    return f"at most {format_duration(seconds)} left"


def _places(one: Inspection, cost: Cost) -> None:
    """True rises of heads by rank, then of layers, as far as the budget goes."""
    from termwise.inspection.measuring import place_losses
    from termwise.inspection.planning import ranked
    from termwise.inspection.recording import Recording, done_places

    make = Recording(one.folder, one.config, has_loss=one.has_loss)
    done = done_places(one.folder.records())
    proxies = _mean_fisher(one) if one.has_loss else sum(figure.output_error for figure in one.figures)
    waiting = [place for place in [*ranked(proxies.tolist()), *_layers(one)] if place not in done]
    ids = one.passages.ids.to(one.pretrained.model.device)
    for number, place in enumerate(waiting):
        if one.left < cost.rise(place):
            reason = f"the budget of {format_duration(one.config.budget)} was spent; the same command with more goes on"
            one.folder.append(*(make.unmeasured(other, reason) for other in waiting[number:]))
            one.say(f"the budget is spent: {len(waiting) - number} heads and layers are left without a true evaluation")
            return
        started, foreseen = time.monotonic(), cost.plain("rise", place)
        losses = place_losses(one.pretrained, one.recordings, ids, one.spec, place)
        seconds = time.monotonic() - started
        cost.learn("rise", foreseen, seconds)
        one.folder.append(*make.rise(place, losses, one.exact, one.spec.short_name, seconds))
        if time.monotonic() - one.spoken > EVERY:
            one.spoken = time.monotonic()
            after = sum(cost.rise(other) for other in waiting[number + 1 :])
            one.say(f"{number + 1} of {len(waiting)} heads and layers ({_left(one, after, True)})")
