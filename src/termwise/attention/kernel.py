"""What every kernel is: from a score to a weight.

Every kernel with a constant-size state is one thing: an elementwise map of query and key, and a polynomial of their product,
    w = sum_n b_n (y - m)^n,      y = scale * <map(query), map(key)>,
with m = 0 or the query's own mean score. `Exp` has no such form; `Drop` gives every key weight zero.
"""

from __future__ import annotations

import abc

from torch import Tensor

MAX_ORDER = 79  # the 80-term series; factorials beyond stay exact in float64 but nobody needs the state


class Kernel(abc.ABC):
    """From a score to a weight."""

    allow_negative = False
    center = "zero"
    centers = 1

    @property
    def dense(self) -> tuple[float, ...] | None:
        """b_0..b_P of the polynomial in the product, or None when no finite polynomial gives this kernel."""
        return None

    @property
    def is_finite(self) -> bool:
        """Whether a state of constant size holds everything (a polynomial of mapped query and key)."""
        return self.dense is not None

    @property
    def is_centered(self) -> bool:
        """Whether the polynomial is expanded around the query's own mean score."""
        return self.center == "mean"

    @property
    def maps_keys(self) -> bool:
        """Whether `map` changes anything."""
        return type(self).map is not Kernel.map

    @abc.abstractmethod
    def default_scale(self, key_width: int) -> float: ...

    def map(self, x: Tensor) -> Tensor:
        """The elementwise map of query and key before their product."""
        return x

    @abc.abstractmethod
    def weights(self, product: Tensor) -> Tensor:
        """Weights from products (scores relative to the center, where there is one)."""

    @property
    def minimum(self) -> float:
        """The least weight over every product this kernel can meet; -inf when unbounded below."""
        return 0.0

    @property
    @abc.abstractmethod
    def formula(self) -> str: ...
