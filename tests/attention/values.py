"""The values under contract, and inputs for them: seeded, small, with scores well inside the promised range."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from termwise.attention.catalogue import catalogue
from termwise.attention.kernels import Polynomial
from termwise.attention.spec import AttentionSpec

# Values that no catalogue name covers: every kernel option, with slots, decay, gates and every normalizer somewhere.
EXTRA = (
    "taylor:0", "taylor:2", "taylor:0,2,4", "taylor:1|l2", "taylor:3|rms", "taylor:1,3|layer", "taylor:0..3!", "taylor:0..3|l2+ga",
    "taylor:0@mean", "taylor:0..3!@mean", "taylor:1@mean|l2", "taylor:4@mean|l2", "taylor:1,2@mean|layer", "taylor:0..2@mean|rms+gi+gb",
    "taylor:0..1@mean+decay", "taylor:0..2@mean+decay", "taylor:0..4@mean+gi+ga+decay", "taylor:0..2+gc", "taylor:0..2@mean+gc",
    "taylor:0..2+w8", "taylor:0..2+w8s2", "taylor:0..2@mean+w8", "taylor:0..2@mean+w8s2", "taylor:0..4@mean+w5s1", "taylor:0..1@mean+w3",
    "taylor:0..2@mean+w80s2", "taylor:0..2+w8s2+decay", "taylor:0..2@mean+w8s2+decay", "taylor:0..1@mean+w4s3|l2+gi+ga+decay",
    "taylor:0..2+w6s1|layer+gb", "taylor:0..2|count+gi", "taylor:0..2|identity+ga", "taylor:0..2|rowsum>=1", "taylor:0..2|rowsum+0.01~",
    "taylor:0..2|runninggate>=1", "taylor:0..2|runninggate*count+decay", "taylor:0..2+w7s2|runninggate", "taylor:0..2+w7s2|count",
    "drop+w8s2h4e16", "drop+w8e16", "drop+w5s1h3e7+gi+gb", "drop+w8s2h4", "taylor:0..2+w8s2h4e16", "taylor:0..2+w6e1", "taylor:0..2@mean+w8s2h4e16",
    "taylor:0..2@mean+w8s2e1", "taylor:0..4@mean+w5h3e32+gi+ga", "taylor:0..1@mean+w4s2e64", "taylor:0..3!+w4h2e5", "taylor:0@mean+w3s1h2e9+gc",
    "taylor:0@mean3+w4s1h3e16", "taylor:0..1@mean4+w4h2e7+ga", "taylor:0..2@mean2+w5s2h3e16+gi", "minimax5:0..2@mean+w8s1h2e16",
    "minimax3:0..4", "minimax3:0..4@mean", "minimax5:0..2@mean+w8s1", "polynomial:0..2(1,0.5,0.25)@mean", "polynomial:0,2(2,0.3)",
    "power:2", "power:3!", "power:4|l2+decay", "power:2+w8s2", "power:3|identity+gi+ga+decay", "power:2|layer-",
    "elu1^2", "elu1:2", "elu1^2|l2", "relu^3", "relu:2+decay", "identity^2", "identity:2", "identity|l2", "identity/sqrtd|identity",
    "unit:2", "unit!", "unit^2|rms-", "elu1+w8s2", "elu1:2+w6s1+decay", "relu+w4", "relu/sqrtd<5", "elu1<2|l2+gi+decay", "elu1|runninggate+decay",
    "drop+w8", "drop+w8s2|l2", "drop+w8|rms+gi+ga", "drop+w5s2+decay", "drop+w5s2|count", "drop+w5|layer+gb", "drop+w5s1|runninggate",
    "exp|count", "exp|identity+gi", "exp|layer-b", "exp|layer-w", "exp|rms-", "exp|runninggate", "exp+gi+gb", "exp+gc", "exp|l2+decay", "exp<2+decay",
)  # fmt: skip


def canonical_names() -> list[str]:
    """Every catalogue name and group member whose spec differs from all before it, then the extra values."""
    seen: dict[AttentionSpec, str] = {}
    for name in (*catalogue.groups()["all"], *EXTRA):
        seen.setdefault(catalogue.variant(name).spec, name)
    return list(seen.values())


# What came later stands behind, so that the inputs of the others, which go by their place, stay what they were.
NAMES = sorted(canonical_names(), key=lambda name: catalogue.variant(name).spec.evicts)


@functools.cache
def spec_of(name: str) -> AttentionSpec:
    return catalogue.variant(name).spec


def turn_of(name: str) -> int:
    """A number that differs from value to value: what rotates, rotates by it."""
    return NAMES.index(name) if name in NAMES else sum(map(ord, name))


def is_long_series(spec: AttentionSpec) -> bool:
    """The 80-term series has no state anyone could hold: parallel form only."""
    return isinstance(spec.kernel, Polynomial) and len(spec.kernel.orders) > 20


def forms(name: str) -> list[tuple[str, int | None]]:
    """(form, chunk size) of every form that serves this value, the reference apart."""
    spec = spec_of(name)
    found: list[tuple[str, int | None]] = [("auto", None), ("parallel", None)]
    if is_long_series(spec):
        return found
    found.append(("recurrent", None))
    if spec.is_constant_size:
        found += [("chunked", None), ("chunked", 7), ("chunked", 16), ("chunked", 100)]
    if spec.is_softmax_shaped and not spec.log_decay:
        found.append(("fused", None))
    return found


def inputs(
    spec: AttentionSpec, *, batch: int = 1, length: int = 9, num_keys: int | None = None, heads: int = 2, kv_heads: int = 1, key_width: int = 3,
    value_width: int = 4, seed: int = 0, dtype: torch.dtype = torch.float64, mean: float = 0.3, spread: float = 1.0, requires_grad: bool = False,
) -> dict[str, Tensor | dict[str, Tensor]]:  # fmt: skip
    """Keyword arguments of `attend` for this spec: queries, keys, values and every tensor it declares."""
    make = torch.Generator().manual_seed(seed)
    num_keys = length if num_keys is None else num_keys

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=make, dtype=torch.float64)

    # A key offset gives the scores of a query a common mean, which is what the expansion point is about.
    given: dict[str, Tensor] = {
        "query": spread * normal(batch, length, heads, key_width),
        "key": spread * normal(batch, num_keys, kv_heads, key_width) + mean,
        "value": normal(batch, num_keys, kv_heads, value_width) + 0.2,
    }
    if spec.input_gate is True:
        given["input_gate"] = torch.sigmoid(normal(batch, num_keys, kv_heads))
    if spec.output_gate is not None:
        given["output_gate"] = torch.sigmoid(normal(batch, length, heads))
    if spec.log_decay:
        given["log_decay"] = -torch.nn.functional.softplus(normal(batch, num_keys, kv_heads) - 2)
    learned: dict[str, Tensor] = {}
    sizes = {"heads": heads, "kv_heads": kv_heads, "key_width": key_width}
    for name, shape in spec.parameters(value_width).items():
        learned[name] = normal(*(sizes[s] if isinstance(s, str) else s for s in shape))
    if spec.needs_running_gate:
        learned["running_gate_score"] = normal(batch, num_keys, kv_heads) - 1

    def finish(t: Tensor) -> Tensor:
        return t.to(dtype).requires_grad_(requires_grad)

    out: dict[str, Tensor | dict[str, Tensor]] = {name: finish(t) for name, t in given.items()}
    return {**out, "parameters": {name: finish(t) for name, t in learned.items()}}


def leaves(arguments: dict) -> dict[str, Tensor]:
    """Every tensor that may carry a gradient, by name."""
    found = {name: t for name, t in arguments.items() if isinstance(t, Tensor) and t.is_floating_point()}
    return {**found, **arguments.get("parameters", {})}


def window_of(spec: AttentionSpec) -> int:
    return spec.local.window if spec.local else 1
