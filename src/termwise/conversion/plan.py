"""What every kv head keeps: read from a plan.json with its tensors, or one spec for all heads; checked against the model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from termwise.results import check_schema

if TYPE_CHECKING:
    from torch import Tensor

    from termwise.models.config import TermwiseConfig
    from termwise.models.groups import HeadGroup

IDENTITY = "identity"
OF_OTHERS = "The plan was made for other weights of this shape: what it predicted and measured is not of this model."
SIZES = {
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
}


@dataclass(frozen=True)
class Plan:
    """Groups of heads for every layer, the centers of the heads that have some, and what the planner recorded.

    `centers`: (layer, kv head) -> (m, d), in the units of the raw rotated key. `document` is plan.json, empty for a spec.
    """

    name: str
    layers: tuple[tuple[HeadGroup, ...], ...]
    centers: Mapping[tuple[int, int], Tensor] = field(default_factory=dict)
    document: Mapping[str, Any] = field(default_factory=dict)

    @property
    def context(self) -> int | None:
        """The context the plan was made for."""
        return self.document.get("context")

    def is_of_others(self, weights: str) -> bool:
        """Whether it was made for other weights than those of this fingerprint; plans made before this was kept do not say."""
        return self.document.get("model", {}).get("weights", weights) != weights

    @property
    def is_identity(self) -> bool:
        """Whether every head stays exact."""
        from termwise.attention.spec import AttentionSpec

        return all(group.spec == AttentionSpec() for layer in self.layers for group in layer)


def plan_file(given: str) -> Path | None:
    """The plan.json that an argument means: itself, or that of a run folder. None for a name or the file of a spec.

    ValueError for what can only be a path, and where nothing is.
    """
    path = Path(given).expanduser()
    if not path.exists() and _is_path(given):
        raise ValueError(
            f"no file or folder {given!r}; give the plan.json of termwise plan or its folder, one spec for every head "
            f"(a name or a file), or {IDENTITY}"
        )
    if path.is_dir():
        if not (path / "plan.json").is_file():
            raise ValueError(f"{path} holds no plan.json; give the folder of termwise plan, a spec or {IDENTITY}")
        return path / "plan.json"
    if path.suffix != ".json" or not path.is_file():
        return None
    return path if "layers" in _json(path) else None


def _is_path(given: str) -> bool:
    """Whether it can be no name of a spec, in which the one slash there is belongs to a scale."""
    name = given.replace("/sqrtd", "")
    return "/" in name or os.sep in name or name.endswith(".json")


def read_plan(given: str, config: TermwiseConfig, family: str, config_hash: str | None = None) -> Plan:
    """The plan for a model of this configuration; `config_hash` is `naming.model_hash` of its place.

    Errors: ValueError for a plan of another model or schema, heads that are not covered or covered twice, centers that are
    missing or of the wrong shape, and specs that need weights the original does not have.
    """
    path = plan_file(given)
    plan = _uniform(given, config) if path is None else _from_file(path, config, family, config_hash)
    _check_specs(plan)
    return plan


def _uniform(given: str, config: TermwiseConfig) -> Plan:
    from termwise.attention.catalogue import LayerOptions, catalogue
    from termwise.attention.spec import AttentionSpec
    from termwise.models.groups import HeadGroup

    spec = AttentionSpec()
    if given != IDENTITY:
        variant = catalogue.variant(given)
        if variant.layer != LayerOptions():
            raise ValueError(
                f"{given} changes the layer as well (convolutions, norms, positions), which a pretrained model cannot take on; "
                "name a spec without layer options"
            )
        spec = variant.spec
    group = HeadGroup(tuple(range(config.num_key_value_heads)), spec)
    return Plan(given, ((group,),) * config.num_hidden_layers)


def _from_file(path: Path, config: TermwiseConfig, family: str, config_hash: str | None) -> Plan:
    from termwise.models.groups import layer_groups

    document = _json(path)
    _check_document(document, config, family, config_hash, path)
    layers = []
    for number, entry in enumerate(document["layers"]):
        if not isinstance(entry, list):
            raise ValueError(f"{path}: layers[{number}] is no list of groups of heads")
        try:
            layers.append(layer_groups(entry, config.num_key_value_heads))
        except ValueError as error:
            raise ValueError(f"{path}: layers[{number}]: {error}") from None
    return Plan(str(path), tuple(layers), _read_centers(path, tuple(layers), config.head_dim), document)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: not a JSON object; give a plan.json of termwise plan, or the file of a spec")
    return found


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number")


def _check_document(
    document: dict[str, Any], config: TermwiseConfig, family: str, config_hash: str | None, path: Path
) -> None:
    check_schema(document.get("schema"), str(path))
    model, layers = document.get("model"), document.get("layers")
    if not isinstance(model, dict) or not isinstance(layers, list):
        raise ValueError(f"{path}: a plan holds `model` (an object) and `layers` (a list); make it with termwise plan")
    ours = {"family": family} | {name: getattr(config, own) for name, own in SIZES.items()}
    other = [
        f"{name} {model.get(name)!r} (the model has {own!r})" for name, own in ours.items() if model.get(name) != own
    ]
    if other:
        raise ValueError(
            f"{path} was made for {model.get('folder', 'another model')}: {', '.join(other)}; make a plan of this model"
        )
    planned = model.get("config_hash")
    if config_hash is not None and planned is not None and planned != config_hash:
        raise ValueError(
            f"{path} was made for {model.get('folder', 'another model')}, whose configuration is another one of the same sizes "
            f"({planned}, this model's is {config_hash}); make a plan of this model"
        )
    if len(layers) != config.num_hidden_layers:
        raise ValueError(f"{path}: {len(layers)} layers are planned, the model has {config.num_hidden_layers}")
    context = document.get("context")
    if isinstance(context, bool) or not isinstance(context, int) or context < 1:
        raise ValueError(f"{path}: context={context!r}; allowed are whole numbers from 1")
    if context > config.max_position_embeddings:
        raise ValueError(f"{path}: context={context}; the model was made for {config.max_position_embeddings} tokens")


def _read_centers(path: Path, layers: tuple[tuple[HeadGroup, ...], ...], width: int) -> dict[tuple[int, int], Tensor]:
    wanted = {
        (number, head): num_centers(group)
        for number, layer in enumerate(layers)
        for group in layer
        for head in group.kv_heads
        if num_centers(group) > 1
    }
    if not wanted:
        return {}
    tensors = _tensors(path.with_suffix(".safetensors"))
    expected = {f"layers.{layer}.centers.{head}" for layer, head in wanted}
    if stray := sorted(tensors.keys() - expected):
        raise ValueError(
            f"{path.with_suffix('.safetensors')}: {stray[0]} belongs to no head with centers in {path.name}: the two files are "
            "of different plans; make the plan again"
        )
    found = {}
    for (layer, head), count in wanted.items():
        name = f"layers.{layer}.centers.{head}"
        if name not in tensors:
            raise ValueError(f"{path.with_suffix('.safetensors')}: tensor {name} is missing; make the plan again")
        if tuple(tensors[name].shape) != (count, width):
            raise ValueError(
                f"{path.with_suffix('.safetensors')}: {name} has shape {tuple(tensors[name].shape)}, the spec wants {(count, width)}"
            )
        if not bool(tensors[name].isfinite().all()):
            raise ValueError(f"{path.with_suffix('.safetensors')}: {name} holds numbers that are not finite")
        found[layer, head] = tensors[name].float()
    return found


def _tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise ValueError(f"{path} is missing: the plan has heads with centers, which stand in it")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or cut short ({error}); copy it again or make the plan again") from None


def num_centers(group: HeadGroup) -> int:
    """Centers of each head of a group; 1 where its far keys are one group."""
    return group.spec.kernel.centers


def _check_specs(plan: Plan) -> None:
    """Refuse what a conversion cannot fill: gates, decays and norms with weights of their own."""
    for number, layer in enumerate(plan.layers):
        for group in layer:
            spec = group.spec
            learned = [name for name in spec.parameters(1) if name != "centers"]
            learned += [
                name
                for name, is_there in (
                    ("input gate", spec.input_gate is True),
                    ("output gate", spec.output_gate is not None),
                    ("decay", spec.log_decay),
                    ("running gate", spec.needs_running_gate),
                )
                if is_there
            ]
            if learned:
                raise ValueError(
                    f"layer {number}: {spec.short_name} needs {', '.join(learned)}, which the original has no weights for; "
                    "use a spec without them, e.g. taylor:0..2@mean+w64s4"
                )
            if num_centers(group) > 1 and any((number, head) not in plan.centers for head in group.kv_heads):
                raise ValueError(
                    f"layer {number}: {spec.short_name} needs calibrated centers, which only a plan.json brings; "
                    "run termwise plan"
                )
