"""The multiple-choice knapsack against every choice there is."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest

from termwise.analysis.knapsack import front, least_bytes, least_loss


def problem(seed, items=5, options=4):
    """Random losses that need not fall with size, one option not allowed, the largest without loss."""
    random = np.random.default_rng(seed)
    sizes = np.sort(random.integers(1, 50, options)).astype(float) + np.arange(options)
    losses = random.exponential(1.0, (items, options)) / sizes
    losses[:, -1] = 0.0
    losses[random.integers(items), 0] = np.inf
    return losses, sizes


def every_choice(losses, sizes):
    for choice in itertools.product(range(losses.shape[1]), repeat=len(losses)):
        yield np.array(choice), losses[np.arange(len(losses)), choice].sum(), sizes[list(choice)].sum()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
def test_least_loss_is_that_of_all_choices(seed, share):
    losses, sizes = problem(seed)
    budget = sizes[0] * 5 + share * (sizes[-1] - sizes[0]) * 5
    best = min(loss for _, loss, size in every_choice(losses, sizes) if size <= budget)
    choice = least_loss(losses, sizes, budget)
    assert sizes[choice].sum() <= budget
    assert losses[np.arange(5), choice].sum() == pytest.approx(best, rel=2e-4, abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_least_bytes_is_that_of_all_choices(seed):
    losses, sizes = problem(seed)
    allowed = 0.3 * np.where(np.isfinite(losses), losses, 0).sum() / losses.shape[1]
    best = min(size for _, loss, size in every_choice(losses, sizes) if loss <= allowed)
    choice = least_bytes(losses, sizes, allowed)
    assert losses[np.arange(5), choice].sum() <= allowed
    assert sizes[choice].sum() <= best * (1 + 2e-4)


@pytest.mark.parametrize("seed", range(6))
def test_the_front_bounds_every_choice_from_below_and_its_corners_are_choices(seed):
    losses, sizes = problem(seed)
    found = front(losses, sizes)
    for _, loss, size in every_choice(losses, sizes):
        assert loss >= found.bound(size) - 1e-12
    for choice, loss, size in zip(found.choices, found.losses, found.sizes, strict=True):
        assert (losses[np.arange(5), choice].sum(), sizes[choice].sum()) == (pytest.approx(loss), pytest.approx(size))
        assert (found.greedy(size) == choice).all()
    assert found.losses[-1] == 0.0
    assert (np.diff(found.sizes) > 0).all() and (np.diff(found.losses) < 0).all()


def test_what_does_not_fit_is_refused():
    losses, sizes = problem(0)
    with pytest.raises(ValueError, match="the smallest choice takes"):
        least_loss(losses, sizes, sizes[0])
    with pytest.raises(ValueError, match="the least that the options reach is"):
        least_bytes(losses + 1.0, sizes, 0.5)


def test_the_solver_says_nothing(capfd):
    random = np.random.default_rng(3)
    sizes = np.arange(1.0, 31.0)
    losses = random.exponential(1.0, (90, 30)) / sizes**1.5
    losses[:, -1] = 0.0
    for power in (1.0, 0.6, 0.3):
        assert sizes[least_loss(losses**power, sizes, 500.0)].sum() <= 500.0
    os.write(1, b"after")
    assert capfd.readouterr() == ("after", "")
