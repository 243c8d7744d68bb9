"""Names for values: the paper's and ours. A name is only a spec and layer options; nothing inside ever asks for a name.

The paper's names are those of the code published with arXiv 2507.23632. Where that code does something other than its name
says, the value here is the correct meaning and the note says so.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from termwise.attention.names import parse
from termwise.attention.refusals import check_fields, nearest
from termwise.attention.spec import AttentionSpec

PAPER = "Mongaras and Larson 2025 (arXiv 2507.23632), published code"
FOLLOW_UP = "arXiv 2602.17363"


@dataclass(frozen=True)
class LayerOptions:
    """What a layer adds around the algebra.

    `conv_size`: causal depthwise convolution over q, k, v (0: none), then `conv_activation`. `value_step`: values times
    softplus(w.x). `output_norm`: RMS over all heads together. `blank_tokens`: learned tokens in front of every document.
    """

    rotary: bool = True
    conv_size: int = 0
    conv_activation: str | None = None
    qk_norm: bool = False
    value_step: bool = False
    output_norm: bool = False
    blank_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("conv_size", "blank_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"LayerOptions: {name}={value!r}; allowed are whole numbers from 0")
        if self.conv_activation not in (None, "silu"):
            raise ValueError(f"LayerOptions: conv_activation={self.conv_activation!r}; allowed are None and 'silu'")
        if self.conv_activation and not self.conv_size:
            raise ValueError("LayerOptions: conv_activation without a convolution; give conv_size, e.g. 4")

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LayerOptions:
        check_fields("LayerOptions", data, [f.name for f in dataclasses.fields(cls)])
        return cls(**data)


@dataclass(frozen=True)
class Variant:
    """A spec, its layer options, and what a reader must know."""

    name: str
    spec: AttentionSpec
    layer: LayerOptions = LayerOptions()
    note: str = ""
    source: str = ""

    @property
    def value(self) -> tuple[AttentionSpec, LayerOptions]:
        """What it computes: variants of equal value compute the same."""
        return self.spec.canonical(), self.layer


_SAME_VALUE = "equal to {}"
# name: (short name, note). Published as separate branches; several are one value.
_PUBLISHED: dict[str, tuple[str, str]] = {
    "softmax": ("exp", "the baseline"),
    "softmax_clamp_denom": ("exp<5|rowsum>=1", "differs from softmax where the sum is below 1 or a score above 5"),
    "softmax_detach_denom": ("exp<5|rowsum>=1~", "no gradient through the denominator"),
    "softmax_detach_denom_gate": ("exp<5|rowsum+0.0001~+ga", ""),
    "softmax_divs": ("exp<5|count", ""),
    "gated_softmax_no_gate_no_norm": ("exp<5|count", _SAME_VALUE.format("softmax_divs")),
    "softmax_gate": ("exp<5|identity+ga", "a learned gate in place of the denominator"),
    "softmax_divS_gate": ("exp<5|count+ga", ""),
    "softmax_divS_gatev2": ("exp<5|count+ga", _SAME_VALUE.format("softmax_divS_gate")),
    "gated_softmax_no_in_gate_no_norm": (
        "exp<5|count+ga",
        _SAME_VALUE.format("softmax_divS_gate")
        + "; the paper's notes call it equal to softmax_gate: it is not (that one has no count)",
    ),
    "softmax_divS_norm": (
        "exp<5|rms",
        "published with a division by the count in front, which the norm cancels up to its eps",
    ),
    "gated_softmax_no_gate_rmsnorm": ("exp<5|rms", _SAME_VALUE.format("softmax_divS_norm")),
    "gated_softmax_no_gate_rmsnorm_nodivS": (
        "exp<5|rms",
        _SAME_VALUE.format("softmax_divS_norm") + ": the count cancels up to eps",
    ),
    "softmax_taylor_80terms": (
        "taylor:0..79!",
        "published code forgets the division; the series itself turns negative below a score of -23; parallel form only",
    ),
    "gated_softmax": ("exp<5|layer+gi+gb", "the output gate cancels in the norm"),
    "gated_softmax_no_in_gate": ("exp<5|layer+gb", "the output gate cancels in the norm"),
    "gated_softmax_no_norm": ("exp<5|count+gi+ga", ""),
    "gated_softmax_no_out_gate": ("exp<5|layer+gi", ""),
    "gated_softmax_no_out_gate_no_norm": ("exp<5|count+gi", ""),
    "gated_softmax_no_gate": ("exp<5|layer", ""),
    "gated_softmax_no_gate_L2norm_nodivS": ("exp<5|l2", ""),
    "gated_softmax_no_gate_L2norm_nodivS_noclamp": (
        "exp|l2",
        "the paper's replacement of the denominator; runs as stable softmax, then L2",
    ),
    "gated_softmax_out_gate_L2norm_nodivS_noclamp": ("exp|l2+gb", "the gate cancels exactly"),
    "gated_softmax_post_out_gate_L2norm_nodivS_noclamp": ("exp|l2+ga", "the only gate with a norm that tests a gate"),
    "gated_softmax_no_gate_customnorm": ("exp<5|l2e", "e times L2, e the value width (RMS would be its root)"),
    "gated_relu_no_in_gate_no_norm": (
        "relu/sqrtd<5|count+ga",
        "the clamp leaves no finite features: no linear attention",
    ),
    "gated_ReLU_no_gate_L2norm_nodivS_noclamp": ("relu/sqrtd|l2", ""),
    "gated_softmax_cumgate": ("exp<5|runninggate>=1", "a learned denominator of keys only"),
    "cumulative_gated_softmax": (
        "exp<5|runninggate*count",
        "published code sums over an axis of size 1; here over time",
    ),
    "gated_softmax_decay": (
        "exp<5|layer+gi+gb+decay",
        "published decay may grow and overflows; here it is -softplus; the output gate cancels in the norm",
    ),
    "gated_softmax_plusplus": ("exp<5|layer+gi+gb", "the output gate cancels in the norm"),
    "gated_softmax_plusplus_extratoks": (
        "exp<5|layer+gi+gb",
        "three blank tokens in front; the output gate cancels in the norm",
    ),
    "linear_elu": ("elu1", "linear attention of Katharopoulos et al. 2020"),
    "linear_relu": ("relu|rowsum+1e-08", ""),
    "linear_cosine": (
        "unit|identity+gc",
        "published code takes unit vectors across heads; here over the key width (Cottention)",
    ),
}
_PUBLISHED_LAYERS: dict[str, LayerOptions] = {
    "gated_softmax_decay": LayerOptions(rotary=False),
    "gated_softmax_plusplus": LayerOptions(conv_size=4, conv_activation="silu"),
    "gated_softmax_plusplus_extratoks": LayerOptions(conv_size=4, conv_activation="silu", blank_tokens=3),
}
_OURS: dict[str, tuple[str, LayerOptions, str, str]] = {
    "exp_l2": ("exp|l2", LayerOptions(), "equal to gated_softmax_no_gate_L2norm_nodivS_noclamp", PAPER),
    "exp_gate": ("exp<5|identity+ga", LayerOptions(), "equal to softmax_gate", PAPER),
    "2mamba": ("power:2+decay", LayerOptions(rotary=False, conv_size=2), "squared scores, row sum, decay", FOLLOW_UP),
    "2mamba_e": (
        "exp+decay",
        LayerOptions(rotary=False, conv_size=2),
        "2Mamba with exp in place of the square",
        FOLLOW_UP,
    ),
    "mamba_2s": (
        "power:1|identity+decay",
        LayerOptions(rotary=False, conv_size=2, value_step=True, output_norm=True),
        "q.k, RMS over all heads, decay, values scaled by softplus(w.x)",
        FOLLOW_UP,
    ),
    "retnet": (
        "power:1|identity+decay",
        LayerOptions(output_norm=True),
        "q.k, decay, RMS over all heads; the decay is learned per token",
        "Sun et al. 2023",
    ),
    "forgetting_transformer": ("exp+decay", LayerOptions(rotary=False), "softmax with decay", "Lin et al. 2025"),
    "based": ("taylor:0..2", LayerOptions(), "orders 0..2; its windows are separate layers", "Arora et al. 2024"),
    "sliding_window": (
        "drop+w64s4",
        LayerOptions(),
        "the last 64 keys and the first 4 exact, the rest dropped",
        "Xiao et al. 2023",
    ),
    "heavy_hitters": (
        "drop+w64s4h64",
        LayerOptions(),
        "as sliding_window, with the 64 keys that most weight was given to; keys leave every 64 tokens (the paper: every token)",
        "Zhang et al. 2023",
    ),
}
_GROUPS: dict[str, list[str]] = {
    "ladder": [
        "softmax", "linear_elu", "taylor:0..1!", "taylor:0..2", "taylor:0..4", "taylor:0..1@mean", "taylor:0..2@mean", "taylor:0..4@mean",
    ],
    "denominators": [
        "softmax", "softmax_clamp_denom", "softmax_detach_denom", "softmax_divs", "exp_l2", "softmax_divS_norm", "gated_softmax_no_gate",
        "gated_softmax_no_gate_customnorm", "gated_softmax_cumgate", "cumulative_gated_softmax", "taylor:0..2", "taylor:0..2|l2", "taylor:0..2|layer",
    ],
    "gates": [
        "softmax", "softmax_gate", "softmax_divS_gate", "softmax_detach_denom_gate", "gated_softmax_post_out_gate_L2norm_nodivS_noclamp",
        "gated_softmax_no_norm", "gated_softmax_no_out_gate", "gated_softmax_decay", "forgetting_transformer",
    ],
}  # fmt: skip


class Catalogue:
    """All names. `catalogue[name]` is a spec, `catalogue.variant(name)` also its layer options and notes.

    A name may also be a short name (see names.py) or the path of a JSON file with a spec.

    >>> catalogue["softmax"].formula
    'w = exp(x);  U = sum w v;  o = U / Z'
    """

    def __init__(self) -> None:
        published = {
            name: Variant(name, parse(short), _PUBLISHED_LAYERS.get(name, LayerOptions()), note, PAPER)
            for name, (short, note) in _PUBLISHED.items()
        }
        ours = {
            name: Variant(name, parse(short), layer, note, source)
            for name, (short, layer, note, source) in _OURS.items()
        }
        self._variants = {**published, **ours}

    def names(self) -> list[str]:
        return list(self._variants)

    def groups(self) -> dict[str, list[str]]:
        """Named lists of variants; in `paper` and `all` equal values stand once for every name they have."""
        return {
            **{name: list(members) for name, members in _GROUPS.items()},
            "paper": list(_PUBLISHED),
            "all": self._all(),
        }

    def _all(self) -> list[str]:
        return list(dict.fromkeys([*_PUBLISHED, *_OURS, *(name for members in _GROUPS.values() for name in members)]))

    def variant(self, name: str) -> Variant:
        if name in self._variants:
            return self._variants[name]
        if name.endswith(".json"):
            return _read_variant(Path(name))
        try:
            return Variant(name, parse(name))
        except ValueError as error:
            if close := nearest(name, self._variants):
                raise ValueError(f"no variant {name!r}{close}; `termwise variants` lists all names") from None
            raise ValueError(f"no variant {name!r}: {error}") from None

    def equal_names(self, name: str) -> list[str]:
        """Other catalogue names that compute the same."""
        value = self.variant(name).value
        return [other for other, variant in self._variants.items() if other != name and variant.value == value]

    def __getitem__(self, name: str) -> AttentionSpec:
        return self.variant(name).spec

    def __contains__(self, name: object) -> bool:
        return name in self._variants

    def __iter__(self):
        return iter(self._variants)

    def __len__(self) -> int:
        return len(self._variants)


def _read_variant(path: Path) -> Variant:
    """A JSON file with a spec's fields, and optionally `name`, `layer` (LayerOptions), `note`, `source`."""
    if not path.is_file():
        raise ValueError(f"no such spec file: {path}")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not JSON ({error}); write one with AttentionSpec(...).to_dict()") from None
    if not isinstance(data, dict):
        raise ValueError(
            f"{path}: a spec file is a JSON object with the fields of AttentionSpec, not {type(data).__name__}"
        )
    about = {key: data.pop(key) for key in ("name", "layer", "note", "source") if key in data}
    try:
        spec, layer = AttentionSpec.from_dict(data), LayerOptions.from_dict(about.get("layer", {}))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return Variant(
        str(about.get("name", path.stem)), spec, layer, str(about.get("note", "")), str(about.get("source", ""))
    )


catalogue = Catalogue()
