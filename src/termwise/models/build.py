"""From a name to a model: catalogue names, short names and spec files with random weights; folders with their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from termwise.attention.catalogue import catalogue
from termwise.attention.refusals import nearest
from termwise.models.causal_lm import TermwiseForCausalLM
from termwise.models.config import FIELDS, TermwiseConfig
from termwise.models.gguf import gguf_file, read_gguf, read_gguf_config
from termwise.models.presets import preset as find_preset

ALIGNMENT = 64  # bytes; that of torch's own allocations
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


def build(name: str, *, preset: str = "tiny", vocab_size: int, seed: int = 0, **overrides: Any) -> TermwiseForCausalLM:
    """A new model of a catalogue name, a short name or a spec file, in the size of a preset.

    With one seed, every parameter that two variants share by name and shape starts from the same values, and torch's global
    random state is left as it was. `overrides` are fields of TermwiseConfig. Errors: ValueError for an unknown name, preset
    or field.

    >>> model = build("taylor:0..2", preset="recall", vocab_size=64)
    >>> model.config.specs[0].short_name
    'taylor:0..2'
    """
    for field in overrides:
        if field not in FIELDS:
            raise ValueError(
                f"build: unknown field {field!r}{nearest(field, FIELDS)}; allowed are fields of TermwiseConfig: {', '.join(sorted(FIELDS))}"
            )
    variant = catalogue.variant(name)
    fields = (
        find_preset(preset).fields()
        | {"vocab_size": vocab_size, "attention": variant.spec, "layer_options": variant.layer}
        | overrides
    )
    config = TermwiseConfig(**fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return TermwiseForCausalLM(config)


def load(path: str | Path) -> tuple[TermwiseForCausalLM, Any | None]:
    """The model of a folder or a GGUF file and its tokenizer, or None where there is none.

    Reads safetensors and GGUF only and runs no code from the folder. Errors: ValueError for a folder without a model, an unsupported
    architecture, pickles, and weights that do not fit the configuration exactly.
    """
    folder = Path(path)
    if (file := gguf_file(folder)) is not None:
        return _from_gguf(file)
    _check_folder(folder)
    model, info = TermwiseForCausalLM.from_pretrained(
        folder, output_loading_info=True, local_files_only=True, ignore_mismatched_sizes=True
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if names := sorted(map(str, info[kind])):
            some = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
            raise ValueError(f"{folder}: weights do not fit config.json: {len(names)} {kind.replace('_', ' ')}: {some}")
    _align(model)
    return model, folder_tokenizer(folder)


def _from_gguf(path: Path) -> tuple[TermwiseForCausalLM, Any]:
    """The weights of transformers' own model in ours, shared, not copied."""

    theirs, tokenizer = read_gguf(path, _ours)
    with torch.device("meta"):
        model = TermwiseForCausalLM(_ours(theirs.config.to_dict()))
    model.load_state_dict(theirs.state_dict(), assign=True)
    model.tie_weights()
    return model.eval(), tokenizer


def gguf_config(path: Path) -> TermwiseConfig:
    """The configuration of a GGUF file, without its weights."""
    return _ours(read_gguf_config(path).to_dict())


def _ours(config: dict[str, Any]) -> TermwiseConfig:
    return TermwiseConfig.from_dict({k: v for k, v in config.items() if k != "quantization_config"})


def pickle_refusal(folder: Path, pickle: str, auto: str = "AutoModelForCausalLM") -> str:
    """What is said of a folder whose weights are a pickle alone, with the line that converts them."""
    line = f"from transformers import {auto} as A; A.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
    return (
        f"{folder}: only {pickle}, a pickle, which is never opened here. If you trust it, convert it once: "
        f'python -c "{line}"'
    )


def _align(model: torch.nn.Module) -> None:
    """Copies weights that stand anywhere in the mapped file: products round by the alignment of what they multiply."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.data_ptr() % ALIGNMENT:
            tensor.data = tensor.data.clone()


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise ValueError(
            f"no model folder {str(folder)!r}; a folder with config.json and model.safetensors is expected"
        )
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder}: no config.json, so no model folder")
    try:
        json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'}: not valid JSON ({error})") from None
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLES)
        if pickles:
            raise ValueError(pickle_refusal(folder, pickles[0]))
        raise ValueError(f"{folder}: no weights; model.safetensors is expected (save the model with save_pretrained)")
    for weights in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(weights, "pt"):
                pass
        except SafetensorError as error:
            raise ValueError(f"{weights} is damaged or cut short ({error}); copy or save the model again") from None


def folder_tokenizer(folder: Path) -> Any | None:
    """The tokenizer of a model folder; None where it has none. ValueError for one that cannot be read."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a broken tokenizer.json gives KeyError, TypeError or a bare Exception of the Rust side
        told = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ValueError(
            f"{folder}: its tokenizer cannot be read ({told[:200]}); copy tokenizer.json from where the model was trained"
        ) from error
