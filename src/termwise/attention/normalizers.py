"""Normalizers: functions of the weighted sum U, the mass Z and the count c alone, so one state gives each of them every form.

The forms hand over `Sums`: U and Z are divided by exp(log_scale), which keeps them finite; a normalizer that is not
scale-free multiplies it back.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from termwise.attention.safe import unit

VANISHING = 1e-6  # of the decayed count: a row sum nearer to zero than this is moved there, and counted


@dataclass(frozen=True)
class Sums:
    """What one query row has summed up; last axis kept: U (..., e), all others (..., 1). True U = U exp(log_scale)."""

    weighted: Tensor  # U, after the output gate "before"
    mass: Tensor  # Z, never gated, safe to divide by (the vanishing rule is applied before)
    count: Tensor  # c, real keys visible
    log_scale: Tensor | None  # None: zero
    is_mass_positive: bool  # exp kernels: norms act on U/Z; polynomials: on U/c
    running_gate: Tensor | None = None  # log of the running sum of exp(score) over visible keys

    @property
    def unscaled(self) -> Tensor:
        return self.weighted if self.log_scale is None else self.weighted * self.log_scale.exp()

    @property
    def averaged(self) -> Tensor:
        """What scale-free norms act on: the softmax output for exp, U/c for polynomials."""
        return self.weighted / (self.mass if self.is_mass_positive else self.count)


class Normalizer(abc.ABC):
    """From (U, Z, c) to the output of one head."""

    is_scale_free = False  # a positive factor on U alone changes nothing (up to eps)
    is_mass_free = False  # a positive factor on U and Z alike changes nothing
    divides_by_mass = False

    def parameters(self, value_width: int) -> dict[str, tuple[str | int, ...]]:
        """Names and shapes of the learned tensors it needs; "heads" stands for the number of query heads."""
        return {}

    @abc.abstractmethod
    def __call__(self, sums: Sums, parameters: Mapping[str, Tensor]) -> Tensor: ...

    @property
    @abc.abstractmethod
    def formula(self) -> str: ...


@dataclass(frozen=True)
class RowSum(Normalizer):
    """o = U / (max(Z, floor) + eps); `detach` stops the gradient through the denominator.

    Without floor and eps this is softmax's own denominator: weights that sum to one.
    Source: Vaswani et al. 2017, eq. 1.
    """

    floor: float | None = None
    eps: float = 0.0
    detach: bool = False
    divides_by_mass = True

    def __post_init__(self) -> None:
        if self.floor is not None and not self.floor > 0:
            raise ValueError(f"RowSum: floor={self.floor!r}; allowed is None or a positive number")
        if not self.eps >= 0:
            raise ValueError(f"RowSum: eps={self.eps!r}; allowed is a number from 0 up")

    @property
    def is_pure(self) -> bool:
        """Whether a common factor on U and Z cancels exactly."""
        return self.floor is None and self.eps == 0

    @property
    def is_mass_free(self) -> bool:  # type: ignore[override]
        return self.is_pure

    def __call__(self, sums: Sums, parameters: Mapping[str, Tensor]) -> Tensor:
        mass = sums.mass
        unit = torch.ones_like(mass) if sums.log_scale is None else (-sums.log_scale).exp()
        if self.floor is not None:
            mass = torch.maximum(mass, self.floor * unit)
        if self.eps:
            mass = mass + self.eps * unit
        return sums.weighted / (mass.detach() if self.detach else mass)

    @property
    def formula(self) -> str:
        z = "Z" if self.floor is None else f"max(Z, {self.floor:g})"
        z = f"({z} + {self.eps:g})" if self.eps else z
        return f"U / {z}" + (" (no gradient through it)" if self.detach else "")


@dataclass(frozen=True)
class Count(Normalizer):
    """o = U / c, c the number of visible real keys."""

    def __call__(self, sums: Sums, parameters: Mapping[str, Tensor]) -> Tensor:
        return sums.unscaled / sums.count

    @property
    def formula(self) -> str:
        return "U / c"


@dataclass(frozen=True)
class Identity(Normalizer):
    """o = U."""

    def __call__(self, sums: Sums, parameters: Mapping[str, Tensor]) -> Tensor:
        return sums.unscaled

    @property
    def formula(self) -> str:
        return "U"


@dataclass(frozen=True)
class L2(Normalizer):
    """o = y / |y|, y = U/Z for exp and U/c for polynomials; `times_width` multiplies by the value width.

    A positive factor per query cancels. A zero row stays zero. Source: Mongaras and Larson 2025, section 3.2.
    """

    times_width: bool = False
    is_scale_free = True
    is_mass_free = True

    def __call__(self, sums: Sums, parameters: Mapping[str, Tensor]) -> Tensor:
        out = unit(sums.averaged)
        return out * out.shape[-1] if self.times_width else out

    @property
    def formula(self) -> str:
        return ("e " if self.times_width else "") + "U / |U|"


@dataclass(frozen=True)
class RMS(Normalizer):
    """o = w * y / sqrt(mean(y^2) + eps) over the width of one head, w learned if `weight`; y as in `L2`.

    Source: Zhang and Sennrich 2019, eq. 4.
    """

    weight: bool = True
    eps: float = 1e-6
    is_scale_free = True
    is_mass_free = True

    def __post_init__(self) -> None:
        if not self.eps > 0:
            raise ValueError(f"RMS: eps={self.eps!r}; allowed is a positive number (a zero row has no direction)")

    def parameters(self, value_width: int) -> dict[str, tuple[str | int, ...]]:
        return {"norm_weight": ("heads", value_width)} if self.weight else {}

    def __call__(self, sums: Sums, parameters: Mapping[str, Tensor]) -> Tensor:
        y = sums.averaged
        out = y * (y.square().mean(dim=-1, keepdim=True) + self.eps).rsqrt()
        return out * parameters["norm_weight"] if self.weight else out

    @property
    def formula(self) -> str:
        return ("w " if self.weight else "") + "U / rms(U)"


@dataclass(frozen=True)
class Layer(Normalizer):
    """o = w * (y - mean(y)) / sqrt(var(y) + eps) + b over the width of one head; y as in `L2`.

    Source: Ba et al. 2016, eq. 4.
    """

    weight: bool = True
    bias: bool = True
    eps: float = 1e-5
    is_scale_free = True
    is_mass_free = True

    def __post_init__(self) -> None:
        if not self.eps > 0:
            raise ValueError(f"Layer: eps={self.eps!r}; allowed is a positive number (a constant row has no direction)")

    def parameters(self, value_width: int) -> dict[str, tuple[str | int, ...]]:
        shape: tuple[str | int, ...] = ("heads", value_width)
        return {name: shape for name, on in (("norm_weight", self.weight), ("norm_bias", self.bias)) if on}

    def __call__(self, sums: Sums, parameters: Mapping[str, Tensor]) -> Tensor:
        y = sums.averaged
        y = y - y.mean(dim=-1, keepdim=True)
        out = y * (y.square().mean(dim=-1, keepdim=True) + self.eps).rsqrt()
        out = out * parameters["norm_weight"] if self.weight else out
        return out + parameters["norm_bias"] if self.bias else out

    @property
    def formula(self) -> str:
        return ("w " if self.weight else "") + "layernorm(U)" + (" + b" if self.bias else "")


@dataclass(frozen=True)
class RunningGateSum(Normalizer):
    """o = U / max(floor, R), R_t = sum over visible s of exp(r_s): a learned denominator of keys only.

    `times_count` multiplies the denominator by c. r is the parameter `running_gate_score` (batch, length, kv heads). The
    state carries log R. Source: the published code of Mongaras and Larson 2025 ("cumgate").
    """

    floor: float | None = None
    times_count: bool = False

    def __post_init__(self) -> None:
        if self.floor is not None and not self.floor > 0:
            raise ValueError(f"RunningGateSum: floor={self.floor!r}; allowed is None or a positive number")

    def __call__(self, sums: Sums, parameters: Mapping[str, Tensor]) -> Tensor:
        assert sums.running_gate is not None
        log_sum = sums.running_gate
        if self.floor is not None:
            log_sum = log_sum.clamp(min=torch.tensor(self.floor).log().item())
        # In logs, so that neither factor overflows alone.
        log_factor = -log_sum if sums.log_scale is None else sums.log_scale - log_sum
        out = sums.weighted * log_factor.exp()
        return out / sums.count if self.times_count else out

    @property
    def formula(self) -> str:
        total = "R" if self.floor is None else f"max(R, {self.floor:g})"
        return f"U / ({'c ' if self.times_count else ''}{total}), R = running sum of exp(r)"
