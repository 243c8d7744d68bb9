"""Other people's models as they are: transformers' own classes in fp32, their attention laid open by family."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from termwise.attention.refusals import nearest
from termwise.data.sizes import counted
from termwise.models.build import PICKLES, folder_tokenizer, pickle_refusal
from termwise.models.folders import check_finite, read_config, reading_config
from termwise.models.gguf import gguf_file, quiet, read_gguf
from termwise.models.naming import trained_folder


@dataclass(frozen=True)
class _Parts:
    """Where a family keeps its parts, as attribute paths: from the model, and from one of its layers."""

    layers: str
    attention: str
    output: str
    norm: str | None
    head: str | None


_LLAMA = _Parts("model.layers", "self_attn", "self_attn.o_proj", "model.norm", "lm_head")
_FAMILIES = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "smollm3": _LLAMA,
    "gpt2": _Parts("transformer.h", "attn", "attn.c_proj", "transformer.ln_f", "lm_head"),
    "bert": _Parts("encoder.layer", "attention.self", "attention.output.dense", None, None),
}
FAMILIES = tuple(_FAMILIES)


@dataclass(frozen=True, eq=False)
class Pretrained:
    """A model of a supported family, in evaluation mode and fp32, with what its attention needs to be looked into.

    `context` is the longest sequence on which every layer sees all that its mask allows: the model's own positions, or its
    sliding window where that is shorter (`window`). `layers` are the blocks in order, `attentions` the modules in them that
    call the attention function, `outputs` the projections that follow it. An encoder has no `head`: its result is the
    final hidden state.
    """

    model: Any
    tokenizer: Any | None
    folder: Path
    family: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context: int
    window: int | None
    is_causal: bool
    layers: tuple[Any, ...]
    attentions: tuple[Any, ...]
    outputs: tuple[Any, ...]
    norm: Any | None
    head: Any | None

    @property
    def name(self) -> str:
        """What people call it: the name of its folder or file."""
        return self.folder.name

    @property
    def described(self) -> str:
        """Its name, family and size in a line."""
        sizes = f"{counted(self.num_layers, 'layer')}, {counted(self.num_kv_heads, 'kv head')}"
        return f"{self.name}: {self.family}, {sizes}"


def open_pretrained(name: str | Path) -> Pretrained:
    """The model of a folder, a folder that holds one GGUF file, or a GGUF file.

    Only safetensors and GGUF weights are read, and no code of the folder runs. Errors: ValueError for a name without a
    folder, an architecture that is not supported, remote code, old .bin weights, and weights that are not finite or do not fit.
    """
    if (path := gguf_file(Path(name).expanduser())) is not None:
        model, tokenizer = read_gguf(path, lambda config: checked_family(config, str(path)))
        check_finite(model, path)
        return described(model, tokenizer, path)
    folder = trained_folder(str(name))
    found = read_config(folder)
    family = checked_family(found, str(folder))
    _check_weights(folder, family)
    model = _load(folder, family)
    check_finite(model, folder)
    return described(model, folder_tokenizer(folder), folder)


def described(model: Any, tokenizer: Any | None, folder: Path) -> Pretrained:
    """The parts of a model of transformers by its family. ValueError for a family or a shape that is not supported."""
    config = model.config
    family = checked_family(config.to_dict(), str(folder))
    parts = _FAMILIES[family]
    layers = tuple(attrgetter(parts.layers)(model))
    window = _window(config)
    heads = config.num_attention_heads
    positions = config.max_position_embeddings
    return Pretrained(
        model=model.eval(),
        tokenizer=tokenizer,
        folder=folder,
        family=family,
        num_layers=len(layers),
        num_heads=heads,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        context=positions if window is None else min(positions, window),
        window=window,
        is_causal=family != "bert",
        layers=layers,
        attentions=tuple(attrgetter(parts.attention)(layer) for layer in layers),
        outputs=tuple(attrgetter(parts.output)(layer) for layer in layers),
        norm=parts.norm and attrgetter(parts.norm)(model),
        head=parts.head and attrgetter(parts.head)(model),
    )


def checked_family(config: dict[str, Any], where: str) -> str:
    """The family of a config.json. ValueError for one that is not supported, and for parts of it that cannot be looked into."""
    family = config.get("model_type", "")
    if family not in FAMILIES:
        raise ValueError(
            f"{where}: architecture {family!r}{nearest(family, FAMILIES)} is not supported; supported are {', '.join(FAMILIES)}"
        )
    if "auto_map" in config:
        raise ValueError(
            f"{where} asks for code of its own ({config['auto_map']}), which is never run; remove auto_map from config.json "
            f"if the plain {family} is meant"
        )
    quantization = config.get("quantization_config")
    if quantization and not isinstance(quantization, dict):
        raise ValueError(f"{where}: quantization_config {quantization!r}; allowed is none, or that of a GGUF file")
    if quantization and quantization.get("quant_method") != "gguf":
        raise ValueError(
            f"{where} is quantized ({quantization.get('quant_method')}); save it dequantized first, or as GGUF"
        )
    if config.get("is_decoder") or config.get("add_cross_attention"):
        raise ValueError(
            f"{where}: a {family} with cross attention or as a decoder is not supported; plain {family} is"
        )
    if config.get("position_embedding_type") not in (None, "absolute"):
        raise ValueError(
            f"{where}: position_embedding_type {config['position_embedding_type']!r} adds terms to the scores that are not "
            "looked into; supported is 'absolute'"
        )
    return family


def _window(config: Any) -> int | None:
    """The sliding window of the layers that have one; None where no layer does."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    is_used = "sliding_attention" in kinds if kinds else getattr(config, "use_sliding_window", True)
    return window if is_used else None


def _check_weights(folder: Path, family: str) -> None:
    """ValueError unless the folder has safetensors; old pickles are refused with the line that converts them."""
    if any(folder.glob("*.safetensors")):
        return
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    if not pickles:
        raise ValueError(f"{folder}: no weights; model.safetensors is expected")
    raise ValueError(pickle_refusal(folder, pickles[0], "AutoModel" if family == "bert" else "AutoModelForCausalLM"))


def _load(folder: Path, family: str) -> Any:
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    auto: Any
    auto, own = (AutoModel, {"add_pooling_layer": False}) if family == "bert" else (AutoModelForCausalLM, {})
    with reading_config(folder), quiet(), torch.device("meta"):
        auto.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
    try:
        with quiet():
            model, info = auto.from_pretrained(
                folder, output_loading_info=True, local_files_only=True, use_safetensors=True, dtype="float32",
                attn_implementation="sdpa", ignore_mismatched_sizes=True, **own,
            )  # fmt: skip
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{folder}: its weights cannot be read ({error}); copy or save the model again") from error
    # an encoder's folder may hold heads of other tasks, which are left out
    kinds = ("missing_keys", "mismatched_keys") + (() if family == "bert" else ("unexpected_keys",))
    for kind in kinds:
        if names := sorted(map(str, info[kind])):
            some = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
            raise ValueError(f"{folder}: weights do not fit config.json: {len(names)} {kind.replace('_', ' ')}: {some}")
    return model
