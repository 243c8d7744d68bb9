"""What an inspection works on: the model, the passages, the spec; all that can be wrong is told here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from termwise.inspection.config import ENCODER_REDUCED, REDUCED, InspectConfig, fitted

if TYPE_CHECKING:
    from termwise.analysis.passages import Passages
    from termwise.analysis.pretrained import Pretrained
    from termwise.attention.spec import AttentionSpec, Local


def opened(config: InspectConfig) -> tuple[InspectConfig, Pretrained, Passages, AttentionSpec, Local | None]:
    """The settings fitted to the model, the model on its device, its passages, what importance is measured with, and the slots
    (None for an encoder).

    ValueError for whatever of them cannot be used; the text's paths are looked at before torch is loaded.
    """
    from termwise.data.sources import check_text

    check_text(list(config.text) or None, config.column)
    from termwise.analysis.passages import take_passages
    from termwise.analysis.pretrained import open_pretrained
    from termwise.analysis.replaying import check_length
    from termwise.attention.names import parse
    from termwise.attention.spec import Local
    from termwise.models.devices import usable_device

    device = usable_device(config.device)
    pretrained = open_pretrained(config.model)
    config, asked = fitted(config, pretrained.context), config
    check_length(pretrained, config.text_length)
    _check_slots(config, pretrained, is_asked=asked.length is not None)
    if pretrained.tokenizer is None:
        raise ValueError(f"{pretrained.folder} holds no tokenizer, so it reads no text; copy a tokenizer.json into it")
    usual = REDUCED.format(window=config.window, sinks=config.sinks) if pretrained.is_causal else ENCODER_REDUCED
    spec = parse(config.reduced or usual)
    _check_reduced(spec, pretrained)
    passages = take_passages(
        config.text, pretrained.tokenizer, texts=config.texts, length=config.text_length, seed=config.seed, column=config.column,
        errors=config.errors,
    )  # fmt: skip
    pretrained.model.to(device).requires_grad_(False)
    local = Local(config.window, config.sinks) if pretrained.is_causal else None
    return config, pretrained, passages, spec, local


def _check_slots(config: InspectConfig, pretrained: Pretrained, *, is_asked: bool) -> None:
    if not pretrained.is_causal or config.window + config.sinks < config.text_length:
        return
    slots, length = f"--window {config.window} and --sinks {config.sinks}", config.text_length
    if is_asked:
        raise ValueError(
            f"{slots} cover a text of --length {length}: nothing would be reduced; give longer texts or smaller slots"
        )
    raise ValueError(
        f"{slots} cover the {length} tokens that {pretrained.name} takes: nothing would be reduced; give smaller slots, "
        f"e.g. --window {max(1, length // 4)} --sinks {min(4, length // 4)}"
    )


def _check_reduced(spec: AttentionSpec, pretrained: Pretrained) -> None:
    """ValueError for a spec that this model's queries, keys and values do not suffice for."""
    import torch

    from termwise.analysis.reducing import reduced_attention
    from termwise.attention.spec import AttentionSpec

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
    if spec.canonical() == AttentionSpec().canonical():
        raise ValueError(
            f"--reduced {spec.short_name} is softmax itself, so nothing would be reduced; name orders with or without slots, "
            f"e.g. {ENCODER_REDUCED}"
        )
    few = torch.zeros(1, 4, 1, pretrained.head_dim)
    reduced_attention(few, few, few, 1.0, spec, is_causal=pretrained.is_causal)


def resolved(config: InspectConfig, pretrained: Pretrained, passages: Passages, spec: AttentionSpec) -> dict[str, Any]:
    """What run.json keeps: the settings, the model with its weights, and the text."""
    from termwise.models.naming import fingerprint

    about = {
        "name": pretrained.name, "family": pretrained.family, "num_layers": pretrained.num_layers,
        "num_heads": pretrained.num_heads, "num_kv_heads": pretrained.num_kv_heads, "head_dim": pretrained.head_dim,
        "context": pretrained.context, "has_loss": pretrained.head is not None,
    }  # fmt: skip
    data = {"places": list(passages.places), "notes": list(passages.notes), "digest": passages.digest}
    known = {"reduced": spec.short_name, "about": about, "weights": fingerprint(pretrained.folder), "data": data}
    return config.model_dump(mode="json") | known
