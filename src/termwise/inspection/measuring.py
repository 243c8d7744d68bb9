"""The measurements themselves: one text's terms and proxies, one rung, one place. Each leaves nothing behind but its figures.

Axes: T tokens, L layers, G kv heads.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from termwise.analysis.importance import expected_loss, sweep, text_loss, true_loss
from termwise.analysis.pretrained import Pretrained
from termwise.analysis.reducing import everything, reduced_attention
from termwise.analysis.replacing import replaced
from termwise.analysis.replaying import Recording, record, replay, run
from termwise.analysis.terms import LayerTerms, measure_terms
from termwise.attention.spec import AttentionSpec, Local
from termwise.inspection.config import TOP_ORDER
from termwise.inspection.planning import Cost, Place


@dataclass(frozen=True, eq=False)
class TextFigures:
    """What one text says of every layer: terms in order of layers, proxies (L, G), the loss and the loss expected."""

    terms: tuple[LayerTerms, ...]
    output_error: Tensor
    fisher: Tensor | None
    loss: float
    expected: float | None

    def save(self, path: Path) -> None:
        """Write it whole or not at all."""
        tensors = {
            f.name: torch.stack([getattr(layer, f.name) for layer in self.terms]) for f in fields(LayerTerms)
        } | {"output_error": self.output_error}
        if self.fisher is not None:
            tensors["fisher"] = self.fisher
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".part")
        save_file(
            {k: v.contiguous() for k, v in tensors.items()}, beside, {"losses": json.dumps([self.loss, self.expected])}
        )
        beside.replace(path)

    @classmethod
    def load(cls, path: Path) -> TextFigures:
        """Read what `save` wrote."""
        from safetensors import safe_open

        tensors = load_file(path)
        with safe_open(path, "pt") as file:
            loss, expected = json.loads(file.metadata()["losses"])
        names = [f.name for f in fields(LayerTerms)]
        terms = tuple(LayerTerms(*layer) for layer in zip(*(tensors[name] for name in names), strict=True))
        return cls(terms, tensors["output_error"], tensors.get("fisher"), loss, expected)


def record_exact(pretrained: Pretrained, ids: Tensor) -> Recording:
    """The model's own run over one text, (1, T)."""
    with torch.no_grad():
        return record(pretrained, ids)


def light(recording: Recording, *, has_loss: bool) -> Recording:
    """The recording without its logits, which no replay needs; an encoder's result is what changes are measured against."""
    return Recording(recording.inputs, recording.arguments, torch.empty(0)) if has_loss else recording


def measure_text(
    pretrained: Pretrained, recording: Recording, ids: Tensor, spec: AttentionSpec, local: Local | None
) -> TextFigures:
    """Terms and proxies of every layer in one sweep backwards, with the memory of one layer."""
    has_loss = pretrained.head is not None
    loss = text_loss(pretrained, recording.result, ids)
    expected = expected_loss(recording.result) if has_loss else None
    terms, errors = {}, {}
    fishers: dict[int, Tensor] = {}
    for layer in sweep(pretrained, recording, ids, spec):
        with torch.no_grad():
            terms[layer.number] = measure_terms(
                layer.query,
                layer.key,
                layer.value,
                layer.scale,
                is_causal=pretrained.is_causal,
                top_order=TOP_ORDER,
                local=local,
            )
        errors[layer.number] = layer.output_error
        if layer.fisher is not None:
            fishers[layer.number] = layer.fisher
    order = range(pretrained.num_layers)
    fisher = torch.stack([fishers[n] for n in order]).cpu() if has_loss else None
    by_layer = tuple(_on_cpu(terms[n]) for n in order)
    return TextFigures(by_layer, torch.stack([errors[n] for n in order]).cpu(), fisher, loss, expected)


def _on_cpu(terms: LayerTerms) -> LayerTerms:
    return LayerTerms(*(getattr(terms, f.name).cpu() for f in fields(LayerTerms)))


def rung_losses(
    pretrained: Pretrained, recordings: Sequence[Recording], ids: Tensor, spec: AttentionSpec
) -> list[float]:
    """The loss of each text with every head of every layer by a spec."""
    losses = []
    with torch.no_grad(), replaced(pretrained, everything(spec, is_causal=pretrained.is_causal)):
        for recording, text in zip(recordings, ids.split(1), strict=True):
            losses.append(text_loss(pretrained, run(pretrained, text), text, recording.result))
    return losses


def place_losses(
    pretrained: Pretrained, recordings: Sequence[Recording], ids: Tensor, spec: AttentionSpec, place: Place
) -> list[float]:
    """The loss of each text with one kv head or one layer by a spec."""
    return [
        true_loss(pretrained, recording, text, spec, place.layer, place.kv_head)
        for recording, text in zip(recordings, ids.split(1), strict=True)
    ]


def first_costs(
    pretrained: Pretrained, ids: Tensor, spec: AttentionSpec, local: Local | None, num_texts: int
) -> tuple[Cost, Recording]:
    """Seconds of each part of the work, each timed once on the first text; its recording is of use."""
    record_exact(pretrained, ids[:, : min(16, ids.shape[1])])  # what only the first call takes
    started = time.perf_counter()
    recording = record_exact(pretrained, ids)
    forward = time.perf_counter() - started
    last = pretrained.num_layers - 1
    seen: list[tuple[Tensor, Tensor, Tensor, float]] = []
    with torch.no_grad():
        started = time.perf_counter()
        replay(pretrained, recording, pretrained.num_layers, recording.inputs[last])
        head = time.perf_counter() - started
        with replaced(pretrained, lambda _layer, *heads: seen.append(heads)):
            replay(pretrained, recording, last)
        query, key, value, scale = seen[0]
        started = time.perf_counter()
        reduced_attention(query, key, value, scale, spec, is_causal=pretrained.is_causal)
        reduced = time.perf_counter() - started
        started = time.perf_counter()
        measure_terms(
            query[0], key[0], value[0], scale, is_causal=pretrained.is_causal, top_order=TOP_ORDER, local=local
        )
        terms = time.perf_counter() - started
    return Cost(pretrained.num_layers, num_texts, forward, head, reduced, terms), recording
