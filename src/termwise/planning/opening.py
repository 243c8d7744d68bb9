"""What a plan is made from: the model, its texts, and what is refused before any work starts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from termwise.data.sizes import counted
from termwise.planning.config import PlanConfig
from termwise.results import RunFolder

if TYPE_CHECKING:
    import torch

    from termwise.analysis.passages import Passages
    from termwise.analysis.pretrained import Pretrained


@dataclass(frozen=True, eq=False)
class Opened:
    """The model, all passages, and which of them choose (`planning`, the first for the centers) and which report."""

    pretrained: Pretrained
    passages: Passages
    planning: tuple[int, ...]
    reporting: tuple[int, ...]
    longer: torch.Tensor | None  # (1, T) tokens of one longer text

    def ids(self, number: int) -> torch.Tensor:
        """(1, T) tokens of a passage."""
        return self.passages.ids[number : number + 1]


def inspected(config: PlanConfig) -> PlanConfig:
    """The settings with the model, and where none was given the text, of an inspection. ValueError for another command's folder."""
    path = Path(config.source).expanduser()
    if not (path / "run.json").is_file() or (path / "config.json").is_file() or (path / "model").is_dir():
        return config
    run = RunFolder.open(path).run
    if run["command"] != "inspect":
        raise ValueError(f"{path} was made by 'termwise {run['command']}'; give an inspection or a model")
    if config.column is not None and not config.text:
        raise ValueError(
            f"--column {config.column!r} is of a text, and {path} has its own; give --text too, or leave it out"
        )
    taken = {"source": run["resolved"]["model"]}
    if not config.text:
        taken |= {name: run["resolved"][name] for name in ("text", "column", "errors")}
    return PlanConfig(**(config.model_dump() | taken))


def inspected_rises(path: Path, pretrained: Pretrained) -> dict[tuple[int, int], float]:
    """True rises of single kv heads by (layer, kv head), as an inspection measured them.

    ValueError for heads the model has not, and for an inspection of other weights; one made before they were kept does not say.
    """
    from termwise.models.naming import fingerprint

    then, now = RunFolder.open(path).run["resolved"].get("weights"), fingerprint(pretrained.folder)
    if then not in (None, now):
        raise ValueError(
            f"{path} is of other weights of {pretrained.folder} (were {then}, now {now}): inspect this model again"
        )
    rises = {
        (record.subject["layer"], record.subject["kv_head"]): record.value
        for record in RunFolder.open(path).records()
        if record.metric == "rise" and "kv_head" in record.subject and record.value is not None
    }
    unknown = [place for place in rises if place[0] >= pretrained.num_layers or place[1] >= pretrained.num_kv_heads]
    if unknown:
        raise ValueError(
            f"{path} has figures of layer {unknown[0][0]} kv head {unknown[0][1]}; {pretrained.name} has "
            f"{counted(pretrained.num_layers, 'layer')} of {pretrained.num_kv_heads}: inspect this model again"
        )
    return rises


def opened(config: PlanConfig) -> Opened:
    """Model and texts. ValueError for what cannot be planned: families without a causal cache, contexts beyond the model's."""
    from termwise.data.sources import check_text

    check_text(list(config.text) or None, config.column)
    from termwise.analysis.passages import take_passages
    from termwise.analysis.pretrained import open_pretrained
    from termwise.models.devices import usable_device

    device = usable_device(config.device)
    pretrained = open_pretrained(config.source)
    check_model(pretrained, config)
    given: dict[str, Any] = {"seed": config.seed, "column": config.column, "errors": config.errors}
    number = config.planning_texts + config.texts
    passages = take_passages(config.text, pretrained.tokenizer, texts=number, length=config.text_length, **given)
    check_disjoint(passages.spans)
    planning = sorted(random.Random(config.seed).sample(range(number), config.planning_texts))
    reporting = tuple(n for n in range(number) if n not in planning)
    longer = None
    if config.longer:
        passage = take_passages(config.text, pretrained.tokenizer, texts=1, length=config.longer, **given)
        check_disjoint([passages.spans[n] for n in planning] + list(passage.spans))
        longer = passage.ids.to(device)
    pretrained.model.to(device).requires_grad_(False)
    return Opened(pretrained, passages, tuple(planning), reporting, longer)


def check_model(pretrained: Pretrained, config: PlanConfig) -> None:
    """ValueError for a model that no plan can be made for, or a context beyond its own."""
    if not pretrained.is_causal or pretrained.family == "gpt2":
        raise ValueError(
            f"{pretrained.name}: a plan is for causal models that `termwise convert` can write, and {pretrained.family} is none; "
            "`termwise inspect` looks into it"
        )
    if pretrained.tokenizer is None:
        raise ValueError(f"{pretrained.folder} holds no tokenizer, so it reads no text; copy a tokenizer.json into it")
    for name, length in (("context", config.context), ("longer", config.longer or 0)):
        if length > pretrained.context:
            raise ValueError(
                f"--{name} {length}: {pretrained.name} was made for {pretrained.context} tokens; give at most that"
            )


def check_disjoint(spans: Sequence[tuple[int, int, int]]) -> None:
    """ValueError where two passages overlap: what chooses must not report."""
    for (document, _, end), (other, begin, _) in zip(sorted(spans), sorted(spans)[1:], strict=False):
        if document == other and begin < end:
            raise ValueError(
                f"{len(spans)} passages overlap in document {document + 1}: give more text, fewer --texts, or a smaller --length"
            )
