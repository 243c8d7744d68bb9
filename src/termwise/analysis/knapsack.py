"""One option for each item at least loss within a budget of bytes: the multiple-choice knapsack.

Axes: N items (kv heads), O options.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

GAP = 1e-4  # of the loss: how far from the best an answer may be


@dataclass(frozen=True)
class Front:
    """The lower convex hull of loss against bytes, from the smallest choice to the one without loss.

    `sizes`, `losses` (K,): its corners, each the sum of real choices (N,) in `choices` (K, N), which is what a greedy solver
    reaches, one exchange after the other. Between corners the straight line is a bound that no choice can go below (Lagrange).
    """

    sizes: np.ndarray
    losses: np.ndarray
    choices: np.ndarray

    def bound(self, budget: float) -> float:
        """The loss that no choice within `budget` can go below; infinite where nothing fits."""
        if budget < self.sizes[0]:
            return float("inf")
        return float(np.interp(budget, self.sizes, self.losses))

    def greedy(self, budget: float) -> np.ndarray:
        """The best corner within `budget`. ValueError where nothing fits."""
        if budget < self.sizes[0]:
            raise ValueError(f"{budget:,.0f} B: the smallest choice takes {self.sizes[0]:,.0f} B")
        return self.choices[int(np.searchsorted(self.sizes, budget, side="right")) - 1]


def front(losses: np.ndarray, sizes: np.ndarray) -> Front:
    """The front of `losses` (N, O), infinite where an option is not allowed, at `sizes` (O,): all exchanges by what they gain a byte.

    >>> found = front(np.array([[4.0, 1.0, 0.0]]), np.array([1.0, 2.0, 4.0]))
    >>> found.sizes.tolist(), found.bound(3.0)
    ([1.0, 2.0, 4.0], 0.5)
    """
    hulls = [_hull(row, sizes) for row in losses]
    steps = [
        ((losses[item, now] - losses[item, then]) / (sizes[then] - sizes[now]), item, then)
        for item, hull in enumerate(hulls)
        for now, then in itertools.pairwise(hull)
    ]
    choice = np.array([hull[0] for hull in hulls])
    choices = [choice]
    # stable: the steps of one item stay in order, since a hull gains less with every byte
    for _, item, option in sorted(steps, key=lambda step: -step[0]):
        choice = choice.copy()
        choice[item] = option
        choices.append(choice)
    items = np.arange(len(losses))
    return Front(
        np.array([sizes[one].sum() for one in choices]),
        np.array([losses[items, one].sum() for one in choices]),
        np.stack(choices),
    )


def _hull(losses: np.ndarray, sizes: np.ndarray) -> list[int]:
    """Options on the lower convex hull of one item, the smallest first; each later one is larger and loses less."""
    hull: list[int] = []
    for option in np.lexsort((losses, sizes)):
        if not np.isfinite(losses[option]) or (hull and losses[option] >= losses[hull[-1]]):
            continue
        while len(hull) > 1 and _is_above(losses, sizes, hull[-2], hull[-1], option):
            hull.pop()
        hull.append(int(option))
    return hull


def _is_above(losses: np.ndarray, sizes: np.ndarray, first: int, middle: int, last: int) -> bool:
    """Whether the middle option lies on or above the line from the first to the last."""
    here = (losses[first] - losses[middle]) * (sizes[last] - sizes[first])
    return bool(here <= (losses[first] - losses[last]) * (sizes[middle] - sizes[first]))


def least_loss(losses: np.ndarray, sizes: np.ndarray, budget: float) -> np.ndarray:
    """The choice (N,) of least summed loss with at most `budget` bytes.

    minimise sum_no x_no loss_no,  sum_o x_no = 1 for each n,  sum_no x_no size_o <= budget,  x_no in {0, 1}

    ValueError where even the smallest options do not fit.

    >>> least_loss(np.array([[3.0, 0.0], [2.0, 0.0]]), np.array([1.0, 2.0]), 3.0).tolist()
    [1, 0]
    """
    found = front(losses, sizes)
    greedy = found.greedy(budget)
    return _solved(
        losses, sizes, objective=losses, limited=np.broadcast_to(sizes, losses.shape), limit=budget, start=greedy
    )


def least_bytes(losses: np.ndarray, sizes: np.ndarray, max_loss: float) -> np.ndarray:
    """The choice (N,) of fewest bytes whose summed loss is at most `max_loss`. ValueError where no choice is.

    >>> least_bytes(np.array([[3.0, 0.0], [2.0, 0.0]]), np.array([1.0, 2.0]), 2.5).tolist()
    [1, 0]
    """
    found = front(losses, sizes)
    fitting = np.flatnonzero(found.losses <= max_loss)
    if not len(fitting):
        raise ValueError(f"a loss of {max_loss:.3g}: the least that the options reach is {found.losses[-1]:.3g}")
    start = found.choices[fitting[0]]
    return _solved(
        losses, sizes, objective=np.broadcast_to(sizes, losses.shape), limited=losses, limit=max_loss, start=start
    )


def _solved(
    losses: np.ndarray,
    sizes: np.ndarray,
    *,
    objective: np.ndarray,
    limited: np.ndarray,
    limit: float,
    start: np.ndarray,
) -> np.ndarray:
    """The integer program; `start` is a choice that fits and stands where the solver finds nothing better in time."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    items, options = np.nonzero(_undominated(losses, sizes))
    columns = np.arange(len(items))
    one_each = csr_array((np.ones(len(items)), (items, columns)), shape=(len(losses), len(items)))
    unit = max(abs(limit), float(np.finfo(np.float64).tiny))
    within = csr_array((limited[items, options] / unit)[None])
    cost = objective[items, options]
    scale = float(np.abs(cost).max()) or 1.0
    with _without_output():
        solved = milp(
            cost / scale,
            integrality=np.ones(len(items)),
            bounds=Bounds(0, 1),
            constraints=[LinearConstraint(one_each, 1, 1), LinearConstraint(within, -np.inf, limit / unit)],
            options={"mip_rel_gap": GAP, "time_limit": 60.0},
        )
    if solved.x is None:
        return start
    choice = np.empty(len(losses), dtype=np.int64)
    taken = solved.x > 0.5
    choice[items[taken]] = options[taken]
    rows = np.arange(len(losses))
    # the solver's tolerance of 1e-7 may overdraw the budget by a byte
    is_kept = limited[rows, choice].sum() <= limit and objective[rows, choice].sum() <= objective[rows, start].sum()
    return choice if is_kept else start


def _undominated(losses: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """(N, O): allowed options that no other option of the same item beats in both loss and bytes."""
    kept = np.zeros(losses.shape, dtype=bool)
    for item, row in enumerate(losses):
        best = np.inf
        for option in np.lexsort((row, sizes)):
            if row[option] < best:
                kept[item, option], best = True, row[option]
    return kept


@contextmanager
def _without_output() -> Iterator[None]:
    """Nothing on standard output: the solver writes notes of its own there, past Python, where --json is to be alone."""
    sys.stdout.flush()
    kept = os.dup(1)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
