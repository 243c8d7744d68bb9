"""From proxies to plans: candidates by the knapsack, among which true evaluations decide.

Losses of single heads do not add, and large ones saturate: beside the proxies themselves a candidate is solved from their
powers, which spreads the loss over more heads.

Axes: L layers, G kv heads, O options.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from termwise.analysis.knapsack import least_bytes, least_loss
from termwise.analysis.options import CacheDtype, kind_of, served_bytes, uniform
from termwise.attention.spec import AttentionSpec

POWERS = (1.0, 0.6)
TERMWISE, SLOTS, UNIFORM, EXACT_MODEL = "termwise", "slots", "uniform", "exact"
Layers = tuple[tuple[AttentionSpec, ...], ...]


@dataclass(frozen=True)
class Candidate:
    """One plan: for which share of the cache, by which method, and what the proxies say it costs."""

    method: str
    share: float
    layers: Layers
    predicted: float | None = None


@dataclass(frozen=True, eq=False)
class Menu:
    """Every option with its bytes (O,), the proxies of each kv head (L, G, O), and the bytes of the full cache."""

    options: tuple[AttentionSpec, ...]
    sizes: np.ndarray
    rise: np.ndarray
    whole: float

    @classmethod
    def of(
        cls, options: Sequence[AttentionSpec], rise: Tensor, context: int, width: int, cache_dtype: CacheDtype
    ) -> Menu:
        """The menu at a context; the first option is the exact one."""
        sizes = np.array([served_bytes(spec, context, width, width, cache_dtype) for spec in options], dtype=np.float64)
        return cls(tuple(options), sizes, rise.double().numpy(), float(sizes[0] * rise.shape[0] * rise.shape[1]))

    def losses(self, method: str) -> np.ndarray:
        """Proxies (L G, O), infinite where the method has no such option."""
        flat = self.rise.reshape(-1, len(self.options))
        allowed = np.array([method == TERMWISE or kind_of(spec) in ("exact", "slots") for spec in self.options])
        return np.where(allowed[None], flat, np.inf)

    def plan(self, method: str, share: float, choice: np.ndarray) -> Candidate:
        """The choice (L G,) as a plan."""
        flat = self.rise.reshape(-1, len(self.options))
        specs = [self.options[option] for option in choice]
        heads = self.rise.shape[1]
        layers = tuple(tuple(specs[start : start + heads]) for start in range(0, len(specs), heads))
        return Candidate(method, share, layers, float(flat[np.arange(len(choice)), choice].sum()))


def smallest_share(options: Sequence[AttentionSpec], context: int, width: int, cache_dtype: CacheDtype) -> float:
    """The least share of the cache that any plan takes."""
    sizes = [served_bytes(spec, context, width, width, cache_dtype) for spec in options]
    return min(sizes) / sizes[0]


def check_share(smallest: float, share: float) -> None:
    """ValueError for a share that no plan fits into, naming the smallest that one does."""
    if share < smallest:
        raise ValueError(
            f"{share:.2%} of the cache is less than the smallest plan takes, {smallest:.2%} at this context; "
            "give at least that, or a longer --context"
        )


def baseline(context: int, share: float, num_layers: int, num_heads: int) -> Candidate:
    """The last keys and 4 sinks in every kv head, in the same share of the cache."""
    return Candidate(UNIFORM, share, ((uniform(context, share),) * num_heads,) * num_layers)


def candidates(menu: Menu, method: str, share: float) -> list[Candidate]:
    """Plans of one method within a share of the cache, one for each power of the proxies, each once."""
    losses = menu.losses(method)
    choices = [least_loss(losses**power, menu.sizes, share * menu.whole) for power in POWERS]
    return list(dict.fromkeys(menu.plan(method, share, choice) for choice in choices))


def share_for_loss(menu: Menu, max_loss: float, scale: float) -> float:
    """The share that the proxies, times `scale`, say a loss of `max_loss` needs."""
    choice = least_bytes(menu.losses(TERMWISE) * scale, menu.sizes, max_loss)
    return float(menu.sizes[choice].sum() / menu.whole)
