"""`termwise convert`: a model and a plan to a folder that runs only what the plan keeps, with what it costs as records."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from termwise.conversion.config import ConvertConfig, resolved
from termwise.conversion.plan import OF_OTHERS, Plan, read_plan
from termwise.results import Record, RunFolder, config_hash, format_duration, machine

if TYPE_CHECKING:
    from rich.console import Console

    from termwise.conversion.assemble import Source
    from termwise.conversion.losses import Losses
    from termwise.conversion.sizes import Sizes
    from termwise.models.config import TermwiseConfig

DEFAULT_CONTEXT = 512


def describe(config: ConvertConfig, out: Path) -> dict[str, Any]:
    """What would be done in `out`, from the configuration of the model and the plan; the model is not opened."""
    from termwise.conversion.assemble import has_tokenizer, source_config
    from termwise.conversion.sizes import sizes
    from termwise.models.naming import fingerprint, model_hash

    _check_before(config)
    shape, family, place = source_config(config.model)
    _check_reading(config, shape, place, bool(config.text) and has_tokenizer(place))
    plan = read_plan(config.plan, shape, family, model_hash(place))
    RunFolder.check(out, "convert", resolved(config, _dicts(plan), fingerprint(place)))
    size = sizes(shape, plan.layers, plan.context or shape.max_position_embeddings)
    told: dict[str, Any] = {
        "model": str(place), "family": family, "plan": config.plan, "heads": _heads(plan), "context": size.context,
        "state_bytes": size.state, "cache_bytes_float32": size.cache, "cache_bytes_bfloat16": size.cache_half,
    }  # fmt: skip
    if config.is_tuned:
        told["tuning"] = f"{config.steps:,} steps" if config.steps else format_duration(config.tune or 0.0)
        told["text"] = list(config.text)
        told["original_tuned_too"] = config.tune_original
    return told


def _check_before(config: ConvertConfig) -> None:
    """ValueError for a text or a device that is not there, before the model is opened."""
    from termwise.data.sources import check_text
    from termwise.models.devices import usable_device

    if config.text:
        check_text(config.text, config.column)
    usable_device(config.device)


def _check_reading(config: ConvertConfig, shape: TermwiseConfig, place: Path, has_tokenizer: bool) -> None:
    """ValueError for a text that the model cannot read, or windows longer than it was made for."""
    if config.text and not has_tokenizer:
        raise ValueError(f"{place} holds no tokenizer, so no text can be read; copy a tokenizer.json into it")
    if config.context and config.context > shape.max_position_embeddings:
        own = shape.max_position_embeddings
        raise ValueError(f"--context {config.context} is beyond the model's own {own}; give a smaller one")


def _dicts(plan: Plan) -> list[Any]:
    return [[group.to_dict() for group in layer] for layer in plan.layers]


def _heads(plan: Plan) -> dict[str, int]:
    found: dict[str, int] = {}
    for layer in plan.layers:
        for group in layer:
            found[group.spec.short_name] = found.get(group.spec.short_name, 0) + len(group.kv_heads)
    return found


def convert(config: ConvertConfig, out: Path, *, arguments: Mapping[str, Any], console: Console) -> RunFolder:
    """Convert, tune and score as asked; the model is OUT/model. The caller holds the lock of `out`.

    The same call goes on where it was stopped. Errors: ValueError for a model or plan that cannot be, before anything is
    written; TrainingInterrupted (a signal, after saving); TrainingDiverged.
    """
    from termwise.conversion.assemble import open_source
    from termwise.models.naming import fingerprint, model_hash

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    _check_before(config)
    source = open_source(config.model)
    shape: Any = source.model.config
    _check_reading(config, shape, source.place, source.tokenizer is not None)
    plan = read_plan(config.plan, shape, source.family, model_hash(source.place))
    weights = fingerprint(source.place)
    folder = RunFolder.create(out, "convert", dict(arguments), resolved(config, _dicts(plan), weights))
    folder.update(heads=_heads(plan))
    if (out / "model" / "config.json").is_file() and folder.run.get("finished"):
        if folder.run.get("written", fingerprint(out / "model")) != fingerprint(out / "model"):
            raise ValueError(
                f"{out / 'model'} is not what this conversion wrote; delete it and run the same command, or give a new --out"
            )
        say("this conversion is finished; nothing is left to do")
        return folder
    if plan.is_of_others(weights):
        say(OF_OTHERS)
    _Conversion(config, source, plan, folder, say).run()
    return folder


class _Conversion:
    """One conversion between its steps."""

    def __init__(self, config: ConvertConfig, source: Source, plan: Plan, folder: RunFolder, say: Any) -> None:
        self.config, self.source, self.plan, self.folder, self.say = config, source, plan, folder, say
        self.common = {"run_id": folder.run["run_id"], "config_hash": config_hash(folder.run["resolved"])}
        self.shape: TermwiseConfig = source.model.config  # type: ignore[assignment]
        self.context = plan.context or self.shape.max_position_embeddings
        self.reasons: dict[str, str] = {}

    def run(self) -> None:
        """All steps, then the folder, then the mark that it is finished."""
        from termwise.conversion.assemble import converted
        from termwise.conversion.sizes import sizes

        dtype = self.source.model.dtype
        model = converted(self.source.model, self.plan)
        size = sizes(self.shape, self.plan.layers, self.context)
        losses = self._losses(model) if self.config.text else None
        if self.config.is_tuned:
            assert losses is not None
            model = self._tuned(model, losses)
        self._write(model, dtype, size, losses)
        self._add_records(size, losses)
        self._tidy()
        self.folder.update(finished=True)

    def _losses(self, model: Any) -> Losses:
        """The original, the converted and what a plain window does, on held-out text."""
        from termwise.conversion.losses import CONVERTED, ORIGINAL, Losses
        from termwise.conversion.texts import open_texts
        from termwise.conversion.writing import write_tokenizer

        config, shape = self.config, self.shape
        context = config.context or min(shape.max_position_embeddings, DEFAULT_CONTEXT)
        with self.folder.learning_first("tokenizer", "data"):
            write_tokenizer(self.source.tokenizer, self.source.place, self.folder.path / "tokenizer")
            texts = open_texts(
                config.text, self.folder.path / "tokenizer", self.folder.path / "data", context, config.max_tokens,
                shape.vocab_size, column=config.column, errors=config.errors,
            )  # fmt: skip
        for note in texts.notes:
            self.say(note)
        self.folder.update(text_context=context)
        losses = Losses(self.folder, texts, self.common)
        self._score(losses, ORIGINAL, self.source.model)
        self._score(losses, CONVERTED, model)
        self._baselines(losses, context)
        return losses

    def _score(self, losses: Losses, name: str, model: Any) -> None:
        self.say(f"{name}: {losses.measure(name, self._in_fp32(model)):.4f} nats/token")

    def _in_fp32(self, model: Any) -> Any:
        """A copy on the device asked for; scores and gradients are computed in fp32."""
        from termwise.models.devices import usable_device

        return copy.deepcopy(model).float().to(usable_device(self.config.device))

    def _baselines(self, losses: Losses, context: int) -> None:
        from termwise.conversion.losses import SLOTS, WINDOW
        from termwise.conversion.sizes import slots_alone, window_of_equal_bytes

        window, why = None, "every head is exact"
        if not self.plan.is_identity:
            window = window_of_equal_bytes(self.plan.layers, self.shape.head_dim, context)
            why = f"the states' bytes hold every key of {context} tokens, so no window is shorter than the context"
        slots = slots_alone(self.plan.layers)
        for name, layers, reason in ((WINDOW, window, why), (SLOTS, slots, "no head sums its far keys beside slots")):
            if layers is None:
                self.reasons[name] = reason
                losses.leave_out(name, reason)
            else:
                self._score(losses, name, self._with(layers))

    def _with(self, layers: Any) -> Any:
        from termwise.conversion.assemble import converted

        return converted(
            self.source.model, Plan("baseline", tuple(tuple(layer) for layer in layers), self.plan.centers)
        )

    def _tuned(self, model: Any, losses: Losses) -> Any:
        """The converted model after tuning, in the type it will be written in; the original too where asked."""
        from termwise.conversion import tuning
        from termwise.conversion.losses import ORIGINAL_TUNED, TUNED

        config, seed, dtype = self.config, self.config.seed, model.dtype
        original, student = self._in_fp32(self.source.model), self._in_fp32(model)
        original.requires_grad_(False)
        steps = self._steps(student, original, losses)
        path = self.folder.run_path("converted", seed)
        student = tuning.tune(student, original, config, losses.texts, steps, path, self.say)
        self._score(losses, TUNED, student.to(dtype))
        if config.tune_original:
            path = self.folder.run_path("original", seed)
            again = self._in_fp32(self.source.model)
            again = tuning.tune_original(again, original, config, losses.texts, steps, path, self.say)
            self._score(losses, ORIGINAL_TUNED, again.to(dtype))
        else:
            reason = "--tune-original was not given"
            if not config.labels:
                reason = (
                    "against its own distribution the original has nothing to learn: its loss is that of the original"
                )
            self.reasons[ORIGINAL_TUNED] = reason
            losses.leave_out(ORIGINAL_TUNED, reason)
        return student

    def _steps(self, student: Any, original: Any, losses: Losses) -> Any:
        """How long both stages are; measured once, then kept in run.json."""
        from termwise.conversion.tuning import Steps, steps_of

        if "tuning" not in self.folder.run:
            found = steps_of(self.config, student, original, losses.texts, self.say)
            self.folder.update(
                tuning={"matching": found.matching, "distilling": found.distilling, "watched": found.watched}
            )
        return Steps(**self.folder.run["tuning"])

    def _write(self, model: Any, dtype: Any, size: Sizes, losses: Losses | None) -> None:
        from termwise.conversion.card import Told, card
        from termwise.conversion.writing import write_model
        from termwise.models.naming import fingerprint

        told = Told(
            place=str(self.source.place), weights=self.folder.run["resolved"]["weights"], family=self.source.family,
            dtype=str(dtype).removeprefix("torch."), sizes=size,
            losses={} if losses is None else losses.known, recovery=None if losses is None else losses.recovery(),
            tuning=self._tuning(), text=self.config.text, reasons=self.reasons,
        )  # fmt: skip
        tokenizer = (self.source.tokenizer, self.source.place)
        write_model(model, dtype, tokenizer, card(self.plan, told), self.folder.path / "model")
        self.folder.update(written=fingerprint(self.folder.path / "model"))
        self.say(f"written: {self.folder.path / 'model'}")

    def _tuning(self) -> dict[str, Any] | None:
        if not self.config.is_tuned:
            return None
        steps, config = self.folder.run["tuning"], self.config
        return {
            "steps of matching": steps["matching"], "steps end to end": steps["distilling"], "rows a step": config.rows,
            "learning rate": config.lr, "weight of the text's own tokens": config.labels,
            "weights": f"LoRA of rank {config.lora}, merged" if config.lora else "all", "on": machine()["cpu"],
        }  # fmt: skip

    def _add_records(self, size: Sizes, losses: Losses | None) -> None:
        subject = {"variant": "converted", "length": size.context}
        records = [
            Record(kind="memory", subject=subject, metric=metric, value=value, unit="B", method=method, **self.common)
            for metric, value, method in (
                ("state", size.state, "arithmetic, fp32"),
                ("cache", size.cache, "of the original, fp32"),
                ("cache_half", size.cache_half, "of the original, bfloat16"),
            )
        ]
        if losses is not None:
            records += losses.differences()
            if (found := losses.recovery()) is not None:
                from termwise.conversion.losses import CONVERTED, LEVEL

                value, low, high = found
                method = "1 - (converted, tuned - original, tuned) / (converted - original), bootstrap over documents"
                subject = {"variant": "converted, tuned"}
                records.append(
                    Record(
                        kind="score",
                        subject=subject,
                        metric="recovery",
                        value=value,
                        low=low,
                        high=high,
                        level=None if low is None else LEVEL,
                        n=len(losses.known[CONVERTED]),
                        unit="share",
                        method=method,
                        **self.common,
                    )
                )
        self.folder.append(*records)

    def _tidy(self) -> None:
        """Checkpoints have served; logs stay."""
        for path in self.folder.path.glob("runs/*/*/*"):
            for left in ("checkpoints", "model"):
                shutil.rmtree(path / left, ignore_errors=True)
            (path / "best.safetensors").unlink(missing_ok=True)
