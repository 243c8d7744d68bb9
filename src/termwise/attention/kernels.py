"""The kernels: exponential, polynomials (polynomials.py), powers, feature maps, and the one that drops every key."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from termwise.attention.kernel import MAX_ORDER, Kernel
from termwise.attention.polynomials import (
    GROUP_ORDERS,
    Minimax,
    Polynomial,
    minimax_coefficients,
    polynomial,
    polynomial_minimum,
)

__all__ = [
    "GROUP_ORDERS", "MAPS", "MAX_ORDER", "Drop", "Exp", "FeatureMap", "Kernel", "Minimax", "Polynomial", "Power",
    "minimax_coefficients", "polynomial", "polynomial_minimum",
]  # fmt: skip

MAPS = ("identity", "elu1", "relu", "unit")


@dataclass(frozen=True)
class Exp(Kernel):
    """w = exp(x), or exp(min(x, clamp)).

    All orders of the Taylor series at once; no finite state, so the state is the growing key/value cache.
    Source: Vaswani et al. 2017, eq. 1; the clamp at 5 is the published code of Mongaras and Larson 2025.

    >>> Exp().weights(torch.tensor([0.0]))
    tensor([1.])
    """

    clamp: float | None = None

    def __post_init__(self) -> None:
        if self.clamp is not None and not math.isfinite(self.clamp):
            raise ValueError(f"Exp: clamp={self.clamp!r}; allowed is None or a finite score, e.g. Exp(clamp=5.0)")

    def default_scale(self, key_width: int) -> float:
        return key_width**-0.5

    def log_weights(self, scores: Tensor) -> Tensor:
        return scores if self.clamp is None else scores.clamp(max=self.clamp)

    def weights(self, product: Tensor) -> Tensor:
        return self.log_weights(product).exp()

    @property
    def formula(self) -> str:
        return "exp(x)" if self.clamp is None else f"exp(min(x, {self.clamp:g}))"


@dataclass(frozen=True)
class Power(Kernel):
    """w = (scale * q.k)^degree, scale 1 by default.

    Even degrees are never negative. Source: Buckman et al. 2024 (symmetric power); 2Mamba (arXiv 2602.17363) at degree 2.
    """

    degree: int
    allow_negative: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.degree, bool) or not isinstance(self.degree, int) or not 1 <= self.degree <= MAX_ORDER:
            raise ValueError(f"Power: degree={self.degree!r}; allowed are whole numbers from 1 to {MAX_ORDER}")

    @property
    def dense(self) -> tuple[float, ...]:
        return (0.0,) * self.degree + (1.0,)

    def default_scale(self, key_width: int) -> float:
        return 1.0

    def weights(self, product: Tensor) -> Tensor:
        return product if self.degree == 1 else product**self.degree

    @property
    def minimum(self) -> float:
        return -math.inf if self.degree % 2 else 0.0

    @property
    def formula(self) -> str:
        return "q.k" if self.degree == 1 else f"(q.k)^{self.degree}"


@dataclass(frozen=True)
class FeatureMap(Kernel):
    """w = min(scale * phi(q).phi(k), clamp) with phi one of identity, elu1 (elu + 1), relu, unit (x / |x|).

    `power` n with `power_of="features"` uses phi(x)^n elementwise; with `power_of="product"` it is (phi(q).phi(k))^n: two
    different kernels. The scale multiplies the product, never the input; its default is 1, or 1/sqrt(d) with `by_root_width`.
    A clamp leaves no finite state.
    Source: Katharopoulos et al. 2020, eq. 7 (elu1); Mongaras et al. 2024, Cottention (unit).
    """

    name: str
    power: int = 1
    power_of: str = "features"
    clamp: float | None = None
    by_root_width: bool = False
    allow_negative: bool = False

    def __post_init__(self) -> None:
        if self.name not in MAPS:
            raise ValueError(f"FeatureMap: name={self.name!r}; allowed are {', '.join(MAPS)}")
        if isinstance(self.power, bool) or not isinstance(self.power, int) or not 1 <= self.power <= MAX_ORDER:
            raise ValueError(f"FeatureMap: power={self.power!r}; allowed are whole numbers from 1 to {MAX_ORDER}")
        if self.power_of not in ("features", "product"):
            raise ValueError(f"FeatureMap: power_of={self.power_of!r}; allowed are 'features' and 'product'")
        if self.clamp is not None and not math.isfinite(self.clamp):
            raise ValueError(f"FeatureMap: clamp={self.clamp!r}; allowed is None or a finite number")
        if self.power == 1:
            # Both first powers are one value, and have one name.
            object.__setattr__(self, "power_of", "features")

    @property
    def dense(self) -> tuple[float, ...] | None:
        if self.clamp is not None:
            return None
        return (0.0,) * self._degree + (1.0,)

    @property
    def _degree(self) -> int:
        return self.power if self.power_of == "product" else 1

    def default_scale(self, key_width: int) -> float:
        return key_width**-0.5 if self.by_root_width else 1.0

    def map(self, x: Tensor) -> Tensor:
        if self.name == "elu1":
            x = torch.nn.functional.elu(x) + 1
        elif self.name == "relu":
            x = torch.relu(x)
        elif self.name == "unit":
            from termwise.attention.safe import unit

            x = unit(x)
        return x**self.power if self.power_of == "features" and self.power > 1 else x

    def weights(self, product: Tensor) -> Tensor:
        product = product if self._degree == 1 else product**self._degree
        return product if self.clamp is None else product.clamp(max=self.clamp)

    @property
    def minimum(self) -> float:
        positive_features = self.name in ("elu1", "relu") or (self.power_of == "features" and self.power % 2 == 0)
        if positive_features or self._degree % 2 == 0:
            return 0.0
        return -1.0 if self.name == "unit" else -math.inf

    @property
    def formula(self) -> str:
        phi = {"identity": "{}", "elu1": "(elu({})+1)", "relu": "relu({})", "unit": "unit({})"}[self.name]
        power = f"^{self.power}" if self.power > 1 else ""
        inner = power if self.power_of == "features" else ""
        product = f"{phi.format('q')}{inner}.{phi.format('k')}{inner}"
        product += " / sqrt(d)" if self.by_root_width else ""
        out = f"({product}){power}" if self.power_of == "product" and power else product
        return out if self.clamp is None else f"min({out}, {self.clamp:g})"


@dataclass(frozen=True)
class Drop(Kernel):
    """w = 0: keys outside the exact slots are dropped. Needs `local`.

    Source: Xiao et al. 2023 (window and attention sinks).
    """

    def default_scale(self, key_width: int) -> float:
        return key_width**-0.5

    @property
    def dense(self) -> tuple[float, ...]:
        return ()

    def weights(self, product: Tensor) -> Tensor:
        return torch.zeros_like(product)

    @property
    def formula(self) -> str:
        return "0"
