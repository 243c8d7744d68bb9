"""The model that is verified, on its device, and its text as one row of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from termwise.evaluation.verify_config import VerifyConfig

if TYPE_CHECKING:
    from torch import Tensor

    from termwise.evaluation.exam import Sizes

MARGIN = 64  # tokens beyond the soak, for steps that are timed


@dataclass(frozen=True)
class Opened:
    """A model that is ready, with its text as one row of tokens."""

    model: Any
    folder: Path | None
    text: Tensor
    sizes: Sizes
    notes: tuple[str, ...]
    described: dict[str, Any]


def open_subject(config: VerifyConfig, cache: Path, needed: int) -> Opened:
    """The model on its device and `needed` tokens of text, at least those of the sequences."""
    import torch

    from termwise.evaluation.exam import Sizes, specs_of
    from termwise.models.build import build, load
    from termwise.models.devices import usable_device
    from termwise.models.naming import find_model

    place, named = usable_device(config.device), find_model(config.model)
    notes = [named.note] if named.note else []
    if named.folder is None:
        model, tokenizer = build(named.name, vocab_size=257, seed=config.seed), "bytes"
        notes.append(f"{config.model!r} is a name, so its weights are random; a folder has its own")
    else:
        model, found = load(named.folder)
        tokenizer = "bytes" if found is None else _tokenizer_folder(named.folder, found, cache.with_name("tokenizer"))
        if found is None and model.config.vocab_size < 257:
            raise ValueError(
                f"{named.folder} holds no tokenizer and {model.config.vocab_size} symbols; copy a tokenizer.json into it"
            )
    model.eval().to(place, torch.float32)
    specs = specs_of(model.config)
    sizes = Sizes.of(model.config.groups)
    if sizes.batch_fold < sizes.first_fold:
        notes.append(_told_of_folds(model.config, sizes))
    text, told = _tokens(config, tokenizer, cache, max(sizes.num_tokens, needed + MARGIN), model.config.vocab_size)
    described = {
        "model": config.model, "layers": model.config.num_hidden_layers, "specs": [spec.short_name for spec in specs],
        "parameters": sum(p.numel() for p in model.parameters()), "tokens": len(text), "text": told[-1],
        "soak": config.soak_length, "lengths": [sizes.main, *(prefix + sizes.more for prefix in sizes.prefixes)],
    }  # fmt: skip
    return Opened(model, named.folder, text.to(place), sizes, tuple([*notes, *told]), described)


def _told_of_folds(config: Any, sizes: Sizes) -> str:
    """Which of the heads that lose keys lose some in batches; in sequences by themselves all of them do."""
    from termwise.evaluation.exam import reach

    groups = [group for layer in config.groups for group in layer if group.spec.is_constant_size]
    heads = [(reach(group.spec), len(group.kv_heads)) for group in groups]
    short = sum(count for slots, count in heads if slots + 127 <= sizes.batch_fold)
    return (
        f"single sequences pass the exact slots of every head ({sizes.main:,} tokens); batches, padded or packed, those of "
        f"{short} of {sum(count for _, count in heads)} kv heads, of every kind at least one ({max(sizes.prefixes) + sizes.more:,} tokens)"
    )


def _tokenizer_folder(model: Path, tokenizer: Any, beside: Path) -> str:
    """A folder with tokenizer.json: the model's own, else one that is written (a GGUF file holds its tokenizer inside)."""
    if (model / "tokenizer.json").is_file():
        return str(model)
    tokenizer.save_pretrained(beside)
    return str(beside)


def _tokens(
    config: VerifyConfig, tokenizer: str, cache: Path, wanted: int, vocab_size: int
) -> tuple[Tensor, list[str]]:
    """The first `wanted` tokens of the text, from its start again where it is shorter; and what must be said of it."""
    import numpy as np
    import torch

    from termwise.data.text import open_text

    how: dict[str, Any] = {"column": config.column, "errors": config.errors, "tokenizer": tokenizer}
    text = open_text(list(config.text) or None, cache=cache, **how)
    if text.vocab_size > vocab_size:
        raise ValueError(
            f"the tokenizer of {config.model} has {text.vocab_size} symbols, the model {vocab_size}; copy its own tokenizer.json"
        )
    found: list[Any] = []
    for part in (text.train, text.held_out):
        for index in range(part.num_documents):
            if sum(map(len, found)) < wanted:
                found.append(part.document(index))
    ids = torch.from_numpy(np.concatenate(found))
    notes = list(text.notes)
    if len(ids) < wanted:
        notes.append(f"the text has {len(ids):,} tokens, {wanted:,} are needed: it is read from its start again")
        ids = ids.repeat(-(-wanted // len(ids)))
    return ids[:wanted].long(), notes
