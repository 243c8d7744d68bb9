"""`termwise evaluate`: held-out loss and recall of any model folder or catalogue name, as records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pydantic

from termwise.data.sources import check_text
from termwise.results import Record, RunFolder, config_hash, now
from termwise.study import recall
from termwise.study.grid import NUM_SEEDS, RunConfig
from termwise.study.measures import NATS, Recorder, few_scored, read_result
from termwise.study.scored_text import scored_tokens
from termwise.training.configuration import Configuration

if TYPE_CHECKING:
    from rich.console import Console

    from termwise.models.naming import Named

Say = Callable[[str], None]


class EvaluateConfig(Configuration):
    """What is evaluated on what. `text` empty: the held-out text of the study a model comes from, else of the standard library."""

    models: tuple[str, ...] = pydantic.Field(min_length=1)
    tasks: tuple[Literal["perplexity", "recall"], ...] = ("perplexity", "recall")
    text: tuple[str, ...] = ()
    column: str | None = None
    errors: Literal["strict", "replace"] = "strict"
    preset: str = "tiny"
    context: int | None = pydantic.Field(None, ge=2)
    max_tokens: int = pydantic.Field(131_072, ge=1)
    seed: int = pydantic.Field(0, ge=0, lt=NUM_SEEDS)
    device: str = pydantic.Field("cpu", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")
    dtype: Literal["auto", "float32", "bfloat16"] | None = None

    @pydantic.model_validator(mode="after")
    def _check_pairs(self) -> EvaluateConfig:
        if self.column is not None and not self.text:
            raise ValueError(f"--column {self.column!r} is of a text; give --text FILE as well, or leave it out")
        return self


@dataclass(frozen=True)
class Subject:
    """One model to be scored: a folder with its tokenizer, or an untrained variant."""

    named: Named
    model: Any
    tokenizer: str
    spec: dict[str, Any]
    layer: dict[str, Any]


def default_folder(config: EvaluateConfig) -> Path:
    """termwise-runs/evaluate-HASH of what was asked for."""
    return Path("termwise-runs") / f"evaluate-{config_hash(config.model_dump(mode='json'))}"


def describe(config: EvaluateConfig, out: Path) -> dict[str, Any]:
    """What would be done in `out`: which models, which tasks, how much text. Finds every model first, so bad names are told here too."""
    RunFolder.check(out, "evaluate", config.model_dump(mode="json"))
    check_text(config.text or None, config.column)
    from termwise.models.devices import usable_device
    from termwise.models.naming import find_model
    from termwise.models.presets import preset

    preset(config.preset)
    usable_device(config.device)
    models = {}
    for name in config.models:
        named = find_model(name)
        models[name] = f"folder {named.folder}" if named.folder else f"built untrained in the size {config.preset}"
    return {
        "models": models,
        "tasks": list(config.tasks),
        "text": list(config.text) or "held out",
        "tokens_about": config.max_tokens,
    }


def evaluate_models(config: EvaluateConfig, out: Path, *, arguments: Mapping[str, Any], console: Console) -> RunFolder:
    """Score every model on every task; each figure a record in `out`. The caller holds the lock of `out`.

    ValueError for a name that is neither folder nor variant, a text that cannot be read, a model that sees the future.
    """
    check_text(config.text or None, config.column)
    from termwise.models.devices import usable_device
    from termwise.models.naming import find_model
    from termwise.models.presets import preset

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    preset(config.preset)
    found = [find_model(name) for name in config.models]
    for named in found:
        if named.note:
            say(named.note)
        if named.folder and "preset" in arguments:
            say(f"{named.name}: a folder's model has its own size, --preset is for catalogue names")
    usable_device(config.device)
    RunFolder.check_weights(out, [{"name": named.name} | _weights(named) for named in found])
    folder = RunFolder.create(out, "evaluate", dict(arguments), config.model_dump(mode="json"))
    with folder.learning_first("data"):
        _evaluate(found, config, folder, say)
    return folder


def _evaluate(found: Sequence[Named], config: EvaluateConfig, folder: RunFolder, say: Say) -> None:
    recorder = Recorder(folder)
    described = []
    for named in found:
        subject = _open(named, config)
        described.append(_described(subject))
        folder.update(variants=described)
        for task in config.tasks:
            measure = {"perplexity": _perplexity, "recall": _recall}[task]
            recorder.add(measure(subject, config, folder, say))


def _open(named: Named, config: EvaluateConfig) -> Subject:
    from termwise.attention.catalogue import catalogue
    from termwise.models.build import build, load

    if named.folder is None:
        variant = catalogue.variant(named.name)
        model = build(named.name, preset=config.preset, vocab_size=257, seed=config.seed)
        return Subject(named, model, "bytes", variant.spec.to_dict(), variant.layer.to_dict())
    model, tokenizer = load(named.folder)
    if tokenizer is None and model.config.vocab_size not in (257, recall_vocabulary()):
        raise ValueError(f"{named.folder} holds no tokenizer, so no text can be scored; copy a tokenizer.json into it")
    spec, layer = model.config.groups[0][0].spec, model.config.options[0]
    return Subject(
        named, model, str(named.folder) if tokenizer is not None else "bytes", spec.to_dict(), layer.to_dict()
    )


def recall_vocabulary() -> int:
    """Symbols of the recall task."""
    from termwise.data.synthetic import RECALL_VOCAB

    return RECALL_VOCAB


def _described(subject: Subject) -> dict[str, Any]:
    specs = {group.spec for layer in subject.model.config.groups for group in layer}
    shown = {"formula": f"{len(specs)} kinds of heads", "short_name": "", "parts_that_cancel": []}
    if len(specs) == 1:
        (spec,) = specs
        shown = {"formula": spec.formula, "short_name": spec.short_name, "parts_that_cancel": list(spec.explain())}
    return {"name": subject.named.name, "equal_names": [], **shown, **_weights(subject.named)}


def _weights(named: Named) -> dict[str, str]:
    """The fingerprint of a model folder; a variant has none."""
    from termwise.models.naming import fingerprint

    return {} if named.folder is None else {"weights": fingerprint(named.folder)}


def _perplexity(subject: Subject, config: EvaluateConfig, folder: RunFolder, say: Say) -> Iterator[Record]:
    """Held-out loss in nats a token and bits a byte."""
    from termwise.evaluation import held_out_loss

    model, name = subject.model, subject.named.name
    if subject.named.folder is None:
        say(f"{name} is a name, not a folder: its loss is that of untrained weights")
    context = config.context or min(model.config.max_position_embeddings, 1024)
    if model.config.vocab_size == recall_vocabulary() and subject.tokenizer == "bytes":
        yield _record(
            folder, config, name, "loss", "held_out_nats", NATS, reason="a model of the recall task reads no text"
        )
        return
    if context > model.config.max_position_embeddings:
        say(
            f"{name}: --context {context:,} is beyond the model's own {model.config.max_position_embeddings:,}: "
            "its loss counts places it was not made for"
        )
    tokens = scored_tokens(subject.named.name, subject.tokenizer, config, folder, say)
    started = now()
    loss = held_out_loss(placed(model, config), tokens, context=context)
    say(
        f"{name}: {loss.nats_per_token:.4f} nats/token, {loss.bits_per_byte:.3f} bits/byte on {loss.num_tokens:,} tokens"
    )
    if note := few_scored(loss.num_tokens):
        say(f"{name}: {note}")
    common = {"n": loss.num_tokens, "started": started}
    yield _record(folder, config, name, "loss", "held_out_nats", NATS, loss.nats_per_token, **common)
    if loss.num_bytes:
        yield _record(folder, config, name, "loss", "held_out_bits", "bits/byte", loss.bits_per_byte, **common)


def placed(model: Any, config: EvaluateConfig) -> Any:
    """The model on its device in the precision asked for."""
    import torch

    from termwise.models.devices import named_dtype, usable_device

    return model.to(usable_device(config.device), dtype=named_dtype(config.dtype) or torch.float32)


def _recall(subject: Subject, config: EvaluateConfig, folder: RunFolder, say: Say) -> Iterator[Record]:
    """A folder's model is asked for pairs of its own tokens; a name is trained on the recall task first."""
    from termwise.evaluation import in_context_recall, recall_accuracy

    name = subject.named.name
    if subject.named.folder is None:
        yield from _trained_recall(subject, config, folder, say)
        return
    model = placed(subject.model, config)
    if model.config.vocab_size == recall_vocabulary() and subject.tokenizer == "bytes":
        accuracy, method, n = recall_accuracy(model), "recall task", None
    else:
        result = in_context_recall(model, seed=config.seed)
        accuracy, method, n = result.accuracy, "in-context pairs of its own tokens, untrained", result.num_queries
    say(f"{name}: recall {accuracy:.2f} ({method})")
    yield _record(folder, config, name, "recall", "accuracy", "share", accuracy, method=method, n=n)


def _trained_recall(subject: Subject, config: EvaluateConfig, folder: RunFolder, say: Say) -> Iterator[Record]:
    from termwise.study.run import run_one

    name = subject.named.name
    say(f"{name}: training a small model on the recall task, at most {recall.MAX_STEPS:,} steps (about a minute)")
    run = RunConfig(
        kind="recall", variant=name, seed=config.seed, spec=subject.spec, layer=subject.layer, preset=recall.PRESET, text={},
        steps=recall.MAX_STEPS, tokens_per_step=recall.BATCH * recall.LENGTH, context=recall.LENGTH, device=config.device,
        dtype=config.dtype,
    )  # fmt: skip
    path = folder.run_path(name, config.seed).with_name(f"recall-{config.seed}")
    path.mkdir(parents=True, exist_ok=True)
    result = read_result(path) or run_one(path, run)
    if result["status"] != "ok":
        yield _record(folder, config, name, "recall", "accuracy", "share", status="failed", reason=result["reason"])
        return
    curve = result["curve"]
    steps = recall.steps_to_recall(curve)
    reached = {"value": steps} if steps else {"reason": f"not reached within {recall.MAX_STEPS:,} steps"}
    say(f"{name}: recall {curve[-1][1]:.2f}, " + (f"after {steps:,} steps" if steps else str(reached["reason"])))
    method = "trained on the recall task"
    yield _record(folder, config, name, "recall", "accuracy", "share", curve[-1][1], method=method)
    yield _record(folder, config, name, "recall", "steps_to_recall", "steps", method=method, **reached)


def _record(
    folder: RunFolder,
    config: EvaluateConfig,
    name: str,
    kind: str,
    metric: str,
    unit: str,
    value: float | None = None,
    **rest: Any,
) -> Record:
    if value is None:
        rest = {"status": "not_measured"} | rest
    return Record(
        run_id=folder.run["run_id"], kind=kind, subject={"variant": name, "seed": config.seed}, metric=metric, value=value,
        unit=unit, config_hash=config_hash(config.model_dump(mode="json")), **rest,
    )  # fmt: skip
