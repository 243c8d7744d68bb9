"""The numbers behind the kernels, against mpmath and scipy: the 80-term series, minima and roots, minimax coefficients, powers."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import optimize

from termwise.attention.forms import attend
from termwise.attention.kernels import Minimax, Polynomial, minimax_coefficients, polynomial_minimum
from termwise.attention.monomials import features, multiplicities
from termwise.attention.series import truncated_exponential
from tests.attention.compare import close, equal, holds, refused
from tests.attention.tolerances import TABLE
from tests.attention.values import inputs, spec_of


def exact_series(x: float, num_terms: int) -> mpmath.mpf:
    with mpmath.workdps(120):
        total, term = mpmath.mpf(1), mpmath.mpf(1)
        for n in range(1, num_terms):
            term = term * mpmath.mpf(x) / n
            total += term
        return total


def relative_errors(points: list[float], num_terms: int) -> list[float]:
    got = truncated_exponential(torch.tensor(points, dtype=torch.float64), num_terms).tolist()
    with mpmath.workdps(60):
        return [
            float(abs((mpmath.mpf(g) - e) / e))
            for g, e in zip(got, (exact_series(p, num_terms) for p in points), strict=True)
        ]


def test_the_80_term_series():
    """To 1e-12 of its exact value on [-60, 60], roots apart; there is one at -23.02, and -1.4e23 at -60."""
    points = [float(p) for p in np.linspace(-60, 60, 481)]
    away = [p for p in points if abs(p + 23.02) > 0.3]
    errors = relative_errors(away, 80)
    worst = int(np.argmax(errors))
    holds(errors[worst] < TABLE["series"].relative, f"relative error {errors[worst]:.3g} at {away[worst]}")
    root = mpmath.findroot(lambda x: exact_series(x, 80), -23.0)
    equal(round(float(root), 2), -23.02, "the root")
    below, above = truncated_exponential(torch.tensor([-23.2, -22.8], dtype=torch.float64), 80).tolist()
    holds(below < 0 < above, "it turns negative at its root")
    close(
        truncated_exponential(torch.tensor([-60.0], dtype=torch.float64), 80),
        torch.tensor([-1.4e23]),
        "two digits",
        "at -60",
    )
    holds(relative_errors([-18.0, -23.1, -25.0], 80)[0] < 1e-12, "where Horner's rule in float64 is wrong by 2 %")


def test_the_series_beyond_the_promised_range():
    """Scores farther out are rare, but no less right."""
    for num_terms in (21, 40, 80):
        far = [-1000.0, -400.0, -200.0, -120.0, -100.0, -90.0, -81.0, -79.0, -70.0, 80.0, 120.0, 300.0]
        errors = relative_errors(far, num_terms)
        holds(max(errors) < TABLE["series"].relative, f"{num_terms} terms: {dict(zip(far, errors, strict=True))}")


def test_the_gradient_of_the_series_is_the_series_one_term_shorter():
    x = torch.linspace(-30, 30, 61, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(truncated_exponential(x, 80).sum(), x, create_graph=True)
    close(gradient.detach(), truncated_exponential(x.detach(), 79), "fp64")
    (second,) = torch.autograd.grad(gradient.sum(), x)
    close(second, truncated_exponential(x.detach(), 78), "fp64")
    near = torch.linspace(-3, 3, 7, dtype=torch.float64, requires_grad=True)
    holds(torch.autograd.gradcheck(lambda y: truncated_exponential(y, 80), (near,)), "against finite differences")


def test_the_series_never_turns_into_nan():
    """A score far beyond float32's exponential, seen or not yet seen, leaves finite outputs: the sum is wide enough."""
    spec = spec_of("softmax_taylor_80terms")
    query, key = torch.ones(1, 4, 1, 1), torch.tensor([1.0, 2.0, 500.0, 3.0]).reshape(1, 4, 1, 1)
    value = torch.arange(4.0).reshape(1, 4, 1, 1)
    for t in (query, key, value):
        t.requires_grad_(True)
    out, _ = attend(query, key, value, spec, scale=1.0)
    out.sum().backward()
    expected = torch.tensor([0.0, math.e / (1 + math.e), 2.0, 2.0])
    close(out.flatten(), expected, "fp32", "outputs")
    holds(all(bool(torch.isfinite(t.grad).all()) for t in (query, key, value)), "gradients")


# Truncations of the exponential -----------------------------------------------------------------------------------


def taylor(order: int) -> np.ndarray:
    return np.array([1 / math.factorial(n) for n in range(order + 1)])


def test_even_truncations_are_positive():
    for order, least in ((2, 0.5), (4, 0.27), (6, 0.149), (8, 0.083)):
        found = Polynomial(tuple(range(order + 1))).minimum
        holds(
            abs(found - least) < 0.0006 if order > 4 else abs(found - least) < 0.006,
            f"orders 0..{order}: {found}, printed {least}",
        )
        coefficients = taylor(order)
        by_scipy = optimize.minimize_scalar(
            lambda x, b=coefficients: np.polynomial.polynomial.polyval(x, b), bounds=(-order, 0), method="bounded"
        )
        holds(abs(found - by_scipy.fun) < 1e-8, f"orders 0..{order}: {found}, scipy {by_scipy.fun}")
    for order in range(2, 80, 2):
        holds(Polynomial(tuple(range(order + 1))).minimum >= 0, f"orders 0..{order} are positive everywhere")


def test_odd_truncations_have_one_real_root():
    for order, root in ((1, -1.0), (3, -1.596), (5, -2.181), (7, -2.759)):
        coefficients = taylor(order)
        found = optimize.brentq(lambda x, b=coefficients: np.polynomial.polynomial.polyval(x, b), -order - 1, 0)
        equal(round(found, 3), root, f"orders 0..{order}")
        kernel = Polynomial(tuple(range(order + 1)), allow_negative=True)
        equal(kernel.minimum, -math.inf, f"orders 0..{order}")
        weights = kernel.weights(torch.tensor([found - 1e-6, found + 1e-6], dtype=torch.float64)).tolist()
        holds(weights[0] < 0 < weights[1], f"orders 0..{order} change sign at {found}")


@pytest.mark.parametrize(
    ("coefficients", "least"),
    [
        ((1.0, -2.0, 1.0), 0.0),
        ((1.0, -4.0, 6.0, -4.0, 1.0), 0.0),
        ((4.0, 0.0, -4.0, 0.0, 1.0), 0.0),
        ((3.0, 0.0, -4.0, 0.0, 1.0), -1.0),
        ((0.0, 0.0, 1.0), 0.0),
        ((0.0, 0.0, 0.0, 0.0, 2.0), 0.0),
        ((2.5,), 2.5),
        ((-1.0,), -1.0),
        ((1.0, 1.0), -math.inf),
        ((1.0, 0.0, -1.0), -math.inf),
        ((1.0, 0.0, 0.0, 0.0, 1e-9), 1.0),
        ((1.0, 1.0, 0.2), -0.25),
        ((1e6, -2e3, 1.0), 0.0),
    ],
)
def test_the_minimum_of_a_polynomial(coefficients, least):
    found = polynomial_minimum(coefficients)
    holds(
        found == least or abs(found - least) < 1e-8 * max(abs(b) for b in coefficients),
        f"{coefficients}: {found}, expected {least}",
    )
    holds((found >= 0) == (least >= 0), f"{coefficients}: {found} has the sign of {least}")


def test_minima_of_random_polynomials():
    make = np.random.default_rng(0)
    for _ in range(200):
        degree = int(make.integers(1, 4)) * 2
        b = make.normal(size=degree + 1)
        b[-1] = abs(b[-1]) + 0.1
        radius = 1 + max(abs(b[:-1] / b[-1]))
        grid = np.linspace(-radius, radius, 20001)
        rough = grid[np.argmin(np.polynomial.polynomial.polyval(grid, b))]
        fine = optimize.minimize_scalar(
            lambda x, b=b: np.polynomial.polynomial.polyval(x, b),
            bounds=(rough - 0.01 * radius, rough + 0.01 * radius),
            method="bounded",
            options={"xatol": 1e-12},
        )
        found = polynomial_minimum(tuple(float(x) for x in b))
        holds(abs(found - fine.fun) < 1e-6 * (1 + abs(fine.fun)), f"{b}: {found}, scipy {fine.fun}")


def test_the_truncation_error_is_bounded():
    """|x|^(P+1) e^max(x,0) / (P+1)!"""
    x = torch.linspace(-8, 8, 161, dtype=torch.float64)
    for order in range(9):
        error = (Polynomial(tuple(range(order + 1)), allow_negative=True).weights(x) - x.exp()).abs()
        bound = x.abs() ** (order + 1) * x.clamp(min=0).exp() / math.factorial(order + 1)
        holds(bool((error <= bound * (1 + 1e-9) + 1e-12).all()), f"orders 0..{order}")


def test_the_dominant_order_is_about_the_score():
    for score in (1.5, 4.5, 9.5, 20.5):
        terms = [score**n / math.factorial(n) for n in range(60)]
        equal(int(np.argmax(terms)), int(score), f"score {score}")


# Minimax ----------------------------------------------------------------------------------------------------------


def relative_error(coefficients: tuple[float, ...], radius: float) -> float:
    x = np.linspace(-radius, radius, 20001)
    return float(np.abs(np.polynomial.polynomial.polyval(x, coefficients) * np.exp(-x) - 1).max())


@pytest.mark.parametrize(
    ("radius", "order", "by_taylor", "by_minimax"),
    [(3, 4, 27, 0.092), (3, 6, 6.3, 0.0053), (5, 4, 2030, 0.60), (5, 8, 527, 0.012)],
)
def test_minimax_against_taylor(radius, order, by_taylor, by_minimax):
    """The printed largest relative errors. Taylor's lies at the left end."""
    found = relative_error(Polynomial(tuple(range(order + 1)), Minimax(radius)).dense, radius)
    holds(
        abs(found - by_minimax) <= TABLE["two digits"].relative * by_minimax, f"minimax {found}, printed {by_minimax}"
    )
    found = relative_error(tuple(taylor(order)), radius)
    holds(abs(found - by_taylor) <= TABLE["two digits"].relative * by_taylor, f"taylor {found}, printed {by_taylor}")


@pytest.mark.parametrize(("radius", "order"), [(1, 1), (2, 3), (3, 4), (5, 2), (10, 8), (4, 7), (8, 1)])
def test_minimax_coefficients_are_optimal(radius, order):
    """Nonnegative, alternating P + 2 times between the extremes (the sign of an optimum), and not bettered by a neighbour."""
    b = minimax_coefficients(tuple(range(order + 1)), float(radius))
    holds(min(b) >= 0, f"all coefficients are at least 0: {b}")
    x = np.linspace(-radius, radius, 40001)
    error = np.polynomial.polynomial.polyval(x, b) * np.exp(-x) - 1
    size = np.abs(error).max()
    signs = [s for s in np.sign(np.where(np.abs(error) > 0.995 * size, error, 0)) if s]
    equal(
        1 + sum(a != c for a, c in itertools.pairwise(signs)),
        order + 2,
        f"alternations at radius {radius}, order {order}",
    )


def test_minimax_of_chosen_orders():
    kernel = Polynomial((0, 2, 4), Minimax(2.0))
    equal([n for n, b in enumerate(kernel.dense) if b], [0, 2, 4], "only the chosen orders")
    with refused("radius=0", "positive"):
        Minimax(0)
    with refused("radius=inf"):
        Minimax(math.inf)


# Powers -----------------------------------------------------------------------------------------------------------


def test_kronecker_powers():
    """(q.k)^n = <q (x)...(x) q, k (x)...(x) k>: the n-fold Kronecker power, and the same from C(d+n-1, n) monomials."""
    make = torch.Generator().manual_seed(0)
    for d, n in ((3, 2), (3, 3), (2, 5), (4, 4)):
        q, k = torch.randn(2, d, generator=make, dtype=torch.float64)
        power_q, power_k = q, k
        for _ in range(n - 1):
            power_q, power_k = torch.kron(power_q, q), torch.kron(power_k, k)
        equal(len(power_q), d**n, "d^n features")
        expected = (q @ k) ** n
        close((power_q @ power_k)[None], expected[None], "fp64", "Kronecker")
        mine = features(q, (n,)) * torch.from_numpy(multiplicities(d, n)) @ features(k, (n,))
        close(mine[None], expected[None], "fp64", "monomials")


def test_softmax_is_a_sum_of_recurrent_networks():
    """U_t = sum_n 1/n! (q^(x)n)^T H^(n), H^(n) <- H^(n) + k^(x)n v^T: one network with identity transition for each order."""
    arguments = inputs(spec_of("softmax"), length=6, heads=1, key_width=2, value_width=3, seed=5)
    q, k, v = (arguments[n][0, :, 0] for n in ("query", "key", "value"))
    top, scale = 14, 2**-0.25
    memory = [torch.zeros(2**n, 3, dtype=torch.float64) for n in range(top + 1)]
    mass = [torch.zeros(2**n, dtype=torch.float64) for n in range(top + 1)]
    outputs = []
    for t in range(6):
        power_k = power_q = torch.ones(1, dtype=torch.float64)
        weighted, total = torch.zeros(3, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for n in range(top + 1):
            memory[n] = memory[n] + power_k[:, None] * v[t]
            mass[n] = mass[n] + power_k
            weighted = weighted + power_q @ memory[n] / math.factorial(n)
            total = total + power_q @ mass[n] / math.factorial(n)
            power_k, power_q = torch.kron(power_k, k[t] * scale), torch.kron(power_q, q[t] * scale)
        outputs.append(weighted / total)
    recurrent = torch.stack(outputs)[None, :, None]
    for name in ("taylor:0..14",):
        for form in ("parallel", "recurrent", "chunked"):
            close(attend(**arguments, spec=spec_of(name), form=form)[0], recurrent, "fp64", f"{name}, {form}")
    close(attend(**arguments, spec=spec_of("softmax"))[0], recurrent, "truncated", "softmax itself")
