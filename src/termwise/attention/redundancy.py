"""Which parts of a spec cancel (math: section 4). Allowed, but explained."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from termwise.attention.kernels import Exp, FeatureMap, Polynomial, Power
from termwise.attention.normalizers import Layer, RowSum

if TYPE_CHECKING:
    from termwise.attention.spec import AttentionSpec


def explain(spec: AttentionSpec) -> tuple[str, ...]:
    return tuple(sentence for sentence, _ in _findings(spec))


def canonical(spec: AttentionSpec) -> AttentionSpec:
    while findings := [simpler for _, simpler in _findings(spec) if simpler is not None]:
        spec = findings[0]
    return spec


def _findings(spec: AttentionSpec) -> list[tuple[str, AttentionSpec | None]]:
    """(sentence, simpler equal spec or None when the part cancels only nearly)."""
    found: list[tuple[str, AttentionSpec | None]] = []
    norm, kernel = spec.normalizer, spec.kernel
    if spec.output_gate == "before" and norm.is_scale_free:
        exact = "exactly" if not hasattr(norm, "eps") else "up to the norm's eps"
        simpler = dataclasses.replace(spec, output_gate=None)
        found.append(
            (f"the output gate before {norm.formula} is a positive factor per query and cancels {exact}", simpler)
        )
    if spec.output_gate == "before" and not norm.is_scale_free:
        found.append(
            (
                "before and after are one value under a normalizer without a vector norm",
                dataclasses.replace(spec, output_gate="after"),
            )
        )
    if isinstance(norm, RowSum) and norm.eps and norm.floor is None and isinstance(kernel, Exp):
        found.append((f"eps {norm.eps:g} matters only where the sum of exponentials is that small", None))
    if isinstance(kernel, FeatureMap) and _is_plain_power(kernel):
        power = dataclasses.replace(spec, kernel=Power(kernel.power, kernel.allow_negative))
        found.append(("the identity map is the plain power of q.k", power))
    if isinstance(kernel, Polynomial) and len(kernel.orders) == 1 and norm.is_mass_free and spec.local is None:
        found.append(("a coefficient on a single order is a common factor on all weights and cancels", None))
    local = spec.local
    if local is not None and local.evict_every == 1 and not local.heavy and kernel.centers == 1:
        ordinary = dataclasses.replace(local, evict_every=None)
        found.append(
            ("keys that leave one at a time leave an ordinary window", dataclasses.replace(spec, local=ordinary))
        )
    if isinstance(norm, Layer) and not norm.weight and not norm.bias and not spec.has_tail:
        found.append(("without weight and bias LayerNorm is RMS of the centred output", None))
    return found


def _is_plain_power(kernel: FeatureMap) -> bool:
    """Squared features are another kernel, and Power has neither a clamp nor a scale of 1/sqrt(d)."""
    of_product = kernel.power_of == "product" or kernel.power == 1
    return kernel.name == "identity" and of_product and kernel.clamp is None and not kernel.by_root_width
