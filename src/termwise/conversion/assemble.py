"""The converted model: all weights of the original under the specs of a plan, and the plan's centers."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from termwise.attention.refusals import nearest
from termwise.attention.spec import AttentionSpec
from termwise.conversion.plan import Plan, num_centers
from termwise.models.build import folder_config, folder_tokenizer, gguf_config, load
from termwise.models.causal_lm import TermwiseForCausalLM
from termwise.models.config import TermwiseConfig
from termwise.models.families import SUPPORTED
from termwise.models.folders import read_config
from termwise.models.gguf import gguf_file, read_gguf_config
from termwise.models.groups import plain_layer
from termwise.models.naming import trained_folder

INSPECTED_ONLY = ("gpt2", "bert")


@dataclass(frozen=True)
class Source:
    """The original, exact in every head, in the number type of its files. `family` is its model_type."""

    model: TermwiseForCausalLM
    tokenizer: Any
    place: Path
    family: str


def open_source(name: str) -> Source:
    """The model to convert. Errors: ValueError for a family that cannot be converted, by name, and for no tokenizer."""
    place = trained_folder(name)
    family = _family(place)
    model, tokenizer = load(place)
    if any(group.spec != AttentionSpec() for layer in model.config.groups for group in layer):
        raise ValueError(
            f"{place} is converted or trained with other attention: its heads are not exact; give the original"
        )
    return Source(model.eval(), tokenizer, place, family)


def source_config(name: str) -> tuple[TermwiseConfig, str, Path]:
    """The configuration, family and place of a model, without its weights. ValueError as for `open_source`."""
    place = trained_folder(name)
    family = _family(place)
    if (file := gguf_file(place)) is not None:
        return gguf_config(file), family, place
    return folder_config(place), family, place


def has_tokenizer(place: Path) -> bool:
    """Whether a model can read text; a GGUF file holds its tokenizer. ValueError for one that is damaged."""
    return gguf_file(place) is not None or folder_tokenizer(place) is not None


def _family(place: Path) -> str:
    """The family of a folder or file. ValueError for one that cannot be converted."""
    if (file := gguf_file(place)) is not None:
        return str(read_gguf_config(file).model_type)
    family = str(read_config(place).get("model_type", ""))
    if family in INSPECTED_ONLY:
        raise ValueError(
            f"{place}: {family} can be inspected but not converted, its blocks are of another shape; "
            f"supported are {', '.join(SUPPORTED)}"
        )
    if family not in (*SUPPORTED, "termwise"):
        raise ValueError(
            f"{place}: architecture {family!r}{nearest(family, SUPPORTED)} is not supported; supported are {', '.join(SUPPORTED)}"
        )
    return family


def converted(source: TermwiseForCausalLM, plan: Plan) -> TermwiseForCausalLM:
    """A model of its own with the weights of `source` (copied) and the plan's specs and centers."""
    fields = source.config.to_dict() | {"attention": [plain_layer(layer) for layer in plan.layers]}
    config = TermwiseConfig.from_dict(copy.deepcopy(fields))
    state = {name: tensor.clone() for name, tensor in source.state_dict().items()}
    state |= {name: tensor.to(source.dtype) for name, tensor in _centers(plan).items()}
    with torch.device("meta"):
        model = TermwiseForCausalLM(config)
    model.load_state_dict(state, assign=True)
    model.tie_weights()
    model.generation_config = copy.deepcopy(source.generation_config)
    return model.eval()


def _centers(plan: Plan) -> dict[str, Tensor]:
    """The centers by the names of the model: (kv heads of the group, m, d)."""
    found = {}
    for number, layer in enumerate(plan.layers):
        for place, group in enumerate(layer):
            if num_centers(group) > 1:
                inner = "" if len(layer) == 1 else f"groups.{place}."
                stacked = torch.stack([plan.centers[number, head] for head in group.kv_heads])
                found[f"model.layers.{number}.self_attn.{inner}centers"] = stacked
    return found
