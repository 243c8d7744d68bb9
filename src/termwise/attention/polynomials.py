"""Kernels that are polynomials of the score: the Taylor series of exp by its orders, and coefficients that fit better on a range."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from termwise.attention.kernel import MAX_ORDER, Kernel

GROUP_ORDERS = ((0,), (0, 1), (0, 1, 2))  # of a tail around several centers


def polynomial(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """sum_n b_n x^n by Horner's rule, in one buffer; only x is kept for the gradient, itself a polynomial.

    >>> polynomial(torch.tensor([2.0]), (1.0, 1.0, 0.5))
    tensor([5.])
    """
    return _Polynomial.apply(x, coefficients)


class _Polynomial(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.coefficients = coefficients
        if len(coefficients) == 1:
            return torch.full_like(x, coefficients[0])
        out = x * coefficients[-1]
        for b in reversed(coefficients[1:-1]):
            out = (out.add_(b) if b else out).mul_(x)
        return out.add_(coefficients[0]) if coefficients[0] else out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        derivative = tuple(n * b for n, b in enumerate(ctx.coefficients))[1:] or (0.0,)
        return grad * polynomial(x, derivative), None


@dataclass(frozen=True)
class Minimax:
    """Coefficients that minimise the largest |p(x) exp(-x) - 1| on [-radius, radius] (math: section 8).

    A linear program on a Chebyshev grid. Outside the radius the error grows without bound.
    """

    radius: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.radius) and self.radius > 0):
            raise ValueError(f"Minimax: radius={self.radius!r}; allowed is a positive number, e.g. Minimax(3.0)")


@functools.cache
def minimax_coefficients(orders: tuple[int, ...], radius: float) -> tuple[float, ...]:
    """One coefficient for each of `orders`, by linear programming."""
    from scipy.optimize import linprog

    grid = radius * np.cos(np.linspace(0, np.pi, 800))
    # In the variable x / radius the columns stay within [-1, 1].
    columns = np.stack([(grid / radius) ** n for n in orders], axis=1) * np.exp(-grid)[:, None]
    ones = np.ones((len(grid), 1))
    rows = np.concatenate([np.hstack([columns, -ones]), np.hstack([-columns, -ones])])
    bounds = [(None, None)] * len(orders) + [(0, None)]
    cost = np.r_[np.zeros(len(orders)), 1.0]
    found = linprog(cost, A_ub=rows, b_ub=np.r_[ones[:, 0], -ones[:, 0]], bounds=bounds, method="highs")
    if not found.success:
        raise ValueError(f"no minimax coefficients for orders {orders} on radius {radius:g}: {found.message}")
    return tuple(float(c / radius**n) for c, n in zip(found.x, orders, strict=False))


@dataclass(frozen=True)
class Polynomial(Kernel):
    """w = sum_{n in orders} b_n (x - m)^n, with b_n = 1/n! for the Taylor series of exp.

    center="zero": m = 0. center="mean": m is the query's mean score over the keys in the state, so that the weights, like
    softmax's, do not change when one vector is added to all keys (exp(m) cancels under a row sum or a scale-free norm).
    `centers`: that many groups of keys, each around its own mean score, w = exp(m_g) sum_n b_n (x - m_g)^n; a key belongs to
    the nearest of the calibrated `parameters["centers"]`. It needs exact slots with `evict_every`, which say when a key joins.
    `coefficients`: "taylor", `Minimax(radius)`, or one number per order.
    Source: Mongaras and Larson 2025, section 3.

    >>> Polynomial((0, 1, 2)).dense
    (1.0, 1.0, 0.5)
    >>> Polynomial((2,)).dense
    (0.0, 0.0, 0.5)
    """

    orders: tuple[int, ...]
    coefficients: str | Minimax | tuple[float, ...] = "taylor"
    center: str = "zero"
    allow_negative: bool = False
    centers: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.orders, Iterable):
            raise ValueError(f"Polynomial: orders={self.orders!r}; allowed are several whole numbers, e.g. (0, 1, 2)")
        object.__setattr__(self, "orders", tuple(self.orders))
        if not isinstance(self.coefficients, (str, Minimax)):
            object.__setattr__(self, "coefficients", tuple(float(b) for b in self.coefficients))
        self._validate()

    def _validate(self) -> None:
        given = self.orders
        if not given or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 or n > MAX_ORDER for n in given):
            raise ValueError(
                f"Polynomial: orders={given!r}; allowed are whole numbers from 0 to {MAX_ORDER}, e.g. (0, 1, 2)"
            )
        if list(given) != sorted(set(given)):
            raise ValueError(
                f"Polynomial: orders={given!r} must be increasing without repeats: {tuple(sorted(set(given)))}"
            )
        if self.center not in ("zero", "mean"):
            raise ValueError(f"Polynomial: center={self.center!r}; allowed are 'zero' and 'mean'")
        self._validate_centers()
        if isinstance(self.coefficients, str) and self.coefficients != "taylor":
            raise ValueError(
                f"Polynomial: coefficients={self.coefficients!r}; allowed are 'taylor', Minimax(radius) or one number per order"
            )
        if isinstance(self.coefficients, tuple):
            if len(self.coefficients) != len(given):
                raise ValueError(
                    f"Polynomial: {len(self.coefficients)} coefficients for {len(given)} orders; give one number per order"
                )
            if not all(math.isfinite(b) for b in self.coefficients) or self.coefficients[-1] == 0:
                raise ValueError(
                    f"Polynomial: coefficients={self.coefficients!r}; all must be finite and the last one not zero"
                )

    def _validate_centers(self) -> None:
        given = self.centers
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise ValueError(f"Polynomial: centers={given!r}; allowed are whole numbers from 1, e.g. 32")
        if given > 1 and self.center != "mean":
            raise ValueError(
                f"Polynomial: centers={given} with center={self.center!r}; each group is expanded around its own mean score: "
                "use center='mean', or centers=1"
            )
        if given > 1 and self.orders not in GROUP_ORDERS:
            raise ValueError(
                f"Polynomial: centers={given} with orders={self.orders!r}; allowed are {', '.join(map(str, GROUP_ORDERS))}: memory "
                "buys more as further centers than as higher orders. Use one of them, or centers=1"
            )

    @functools.cached_property
    def dense(self) -> tuple[float, ...]:
        if isinstance(self.coefficients, Minimax):
            values: tuple[float, ...] = minimax_coefficients(self.orders, self.coefficients.radius)
        elif isinstance(self.coefficients, tuple):
            values = self.coefficients
        else:
            values = tuple(1 / math.factorial(n) for n in self.orders)
        dense = [0.0] * (self.orders[-1] + 1)
        for n, b in zip(self.orders, values, strict=True):
            dense[n] = b
        return tuple(dense)

    def default_scale(self, key_width: int) -> float:
        return key_width**-0.5

    @property
    def is_long_series(self) -> bool:
        """A full Taylor series too long for Horner's rule in float64 at negative scores (math: section 4.7)."""
        return self.coefficients == "taylor" and self.orders == tuple(range(len(self.orders))) and len(self.orders) > 20

    def weights(self, product: Tensor) -> Tensor:
        if self.is_long_series:
            from termwise.attention.series import truncated_exponential

            return truncated_exponential(product, len(self.orders))
        return polynomial(product, self.dense)

    @property
    def minimum(self) -> float:
        return polynomial_minimum(self.dense)

    @property
    def formula(self) -> str:
        y = "(x - m)" if self.centers > 1 else "(x - mean)" if self.is_centered else "x"
        names = ", ".join(map(str, self.orders)) if len(self.orders) < 6 else f"{self.orders[0]}..{self.orders[-1]}"
        if isinstance(self.coefficients, Minimax):
            text = f"sum over n in {{{names}}} of b_n {y}^n, minimax on +-{self.coefficients.radius:g}"
        else:
            text = f"sum over n in {{{names}}} of " + (f"{y}^n / n!" if self.coefficients == "taylor" else f"b_n {y}^n")
        return text if self.centers == 1 else f"exp(m) {text} in {self.centers} groups of mean m"


@functools.cache
def polynomial_minimum(coefficients: tuple[float, ...]) -> float:
    """The least value of sum_n b_n x^n over the reals; -inf when unbounded below."""
    b = np.trim_zeros(np.asarray(coefficients, dtype=float), "b")
    degree = len(b) - 1
    if degree == 0:
        return float(b[0])
    if degree % 2 or b[-1] < 0:
        return -math.inf
    roots = np.roots((b[1:] * np.arange(1, degree + 1))[::-1])
    real = roots[np.abs(roots.imag) < 1e-7 * (1 + np.abs(roots.real))].real
    values = np.polynomial.polynomial.polyval(real, b)
    # A minimum of exactly zero may show as a tiny negative number: within the rounding of its terms it counts as zero.
    sizes = np.polynomial.polynomial.polyval(np.abs(real), np.abs(b))
    lowest = int(values.argmin())
    rounding = 8 * degree * np.finfo(float).eps * float(sizes[lowest])
    return 0.0 if abs(values[lowest]) < rounding else float(values[lowest])
