"""Other families' config.json as fields of ours: which are supported, and what of them cannot be represented."""

from __future__ import annotations

from typing import Any

from termwise.attention.refusals import nearest

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3", "smollm3")

# Same name and meaning in every supported family.
_SHARED = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "hidden_act", "max_position_embeddings", "initializer_range", "rms_norm_eps", "use_cache", "tie_word_embeddings",
    "rope_parameters", "pad_token_id", "bos_token_id", "eos_token_id", "dtype", "architectures",
)  # fmt: skip


def to_termwise_fields(found: dict[str, Any]) -> dict[str, Any]:
    """The dict of a config.json as fields of TermwiseConfig: unchanged if it is ours, translated if its family is supported.

    Errors: ValueError for another family, or for a part that the model does not have, by name.
    """
    family = found.get("model_type", "termwise")
    if family in ("termwise", ""):
        return found
    if family not in SUPPORTED:
        raise ValueError(
            f"architecture {family!r}{nearest(family, SUPPORTED)} is not supported; supported are {', '.join(('termwise', *SUPPORTED))}"
        )
    if "auto_map" in found:
        raise ValueError(
            f"this {family} folder asks for code of its own ({found['auto_map']}), which is never run; "
            "remove auto_map from config.json if the plain architecture is meant"
        )
    from transformers import AutoConfig

    config = AutoConfig.for_model(family, **{k: v for k, v in found.items() if k != "model_type"})
    _refuse_unrepresentable(family, config)
    fields = {name: getattr(config, name) for name in _SHARED}
    fields["head_dim"] = getattr(config, "head_dim", None)
    fields["attention_bias"] = getattr(config, "attention_bias", False)
    fields["qkv_bias"] = family == "qwen2"
    fields["mlp_bias"] = getattr(config, "mlp_bias", False)
    fields["layer_options"] = _layer_options(family, config)
    return {"model_type": "termwise", **fields}


def _layer_options(family: str, config: Any) -> dict | list[dict] | None:
    if family == "qwen3":
        return {"qk_norm": True}
    if family == "smollm3":
        return [{"rotary": bool(has_rotary)} for has_rotary in config.no_rope_layers[: config.num_hidden_layers]]
    return None


def _refuse_unrepresentable(family: str, config: Any) -> None:
    window = getattr(config, "sliding_window", None)
    is_sliding = getattr(config, "use_sliding_window", True) or "sliding_attention" in (
        getattr(config, "layer_types", None) or ()
    )
    if window is not None and is_sliding and window < config.max_position_embeddings:
        raise ValueError(
            f"{family} with sliding_window={window} is not supported: its layers see only the last {window} tokens; use a model "
            f"without a window, or set sliding_window to null in config.json if its text stays below {window} tokens"
        )
    if getattr(config, "attention_dropout", 0.0):
        raise ValueError(f"attention_dropout={config.attention_dropout} is not supported; set it to 0.0 in config.json")
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(f"{family} with quantization_config is not supported; save the model dequantized first")
