"""The loops of blocks of tokens, compiled by numba: monomials by prefix products, what is read of their mass, and backwards.

Plain functions of arrays; `compiled.py` compiles them on first use. C columns (tokens), F features, d key width.
"""

from __future__ import annotations

import numpy as np


def fill_monomials(x, offsets, out):
    """Monomials of the columns of x (d, C) into out (F, C), orders 0..P at `offsets`, colex.

    Order n with largest index l is x_l times the first C(l+n-1, n-1) rows of order n-1: whole rows, no gather.
    """
    d, columns = x.shape
    top = offsets.shape[0] - 1
    for c in range(columns):
        out[offsets[0], c] = 1
    if top > 0:
        for i in range(d):
            for c in range(columns):
                out[offsets[1] + i, c] = x[i, c]
    for n in range(2, top + 1):
        row, size = offsets[n], 1
        for i in range(d):
            for j in range(size):
                below = offsets[n - 1] + j
                for c in range(columns):
                    out[row + j, c] = out[below, c] * x[i, c]
            row += size
            size = size * (i + n) // (i + 1)


def monomials_backward(x, offsets, out, grad, grad_x):
    """Gradient of fill_monomials: grad (F, C) of every monomial, written over, to grad_x (d, C), from the highest order down."""
    d, columns = x.shape
    top = offsets.shape[0] - 1
    grad_x[:] = 0
    for n in range(top, 1, -1):
        row, size = offsets[n], 1
        for i in range(d):
            for j in range(size):
                below = offsets[n - 1] + j
                for c in range(columns):
                    grad_x[i, c] += grad[row + j, c] * out[below, c]
                    grad[below, c] += grad[row + j, c] * x[i, c]
            row += size
            size = size * (i + n) // (i + 1)
    if top > 0:
        for i in range(d):
            for c in range(columns):
                grad_x[i, c] += grad[offsets[1] + i, c]


def weigh_block(phi, offsets, widths, starts, multiplicities, coefficients, mass, out):
    """phi[f, c] *= multiplicity of f times coefficients[order of f, c]; out (C,) = phi^T mass.

    Sums of 64 rows first: thousands of terms one after another would lose digits.
    """
    columns = phi.shape[1]
    part = np.empty(columns, dtype=phi.dtype)
    out[:] = 0
    for n in range(offsets.shape[0]):
        if starts[n] < 0:
            continue
        for first in range(0, widths[n], 64):
            part[:] = 0
            for i in range(first, min(first + 64, widths[n])):
                f, held = offsets[n] + i, mass[starts[n] + i]
                gain = multiplicities[f]
                for c in range(columns):
                    phi[f, c] *= gain * coefficients[n, c]
                    part[c] += phi[f, c] * held
            for c in range(columns):
                out[c] += part[c]


def weigh_backward(phi, offsets, widths, starts, multiplicities, coefficients, grad, weighed, grad_coefficients):
    """Backward of weigh_block for one block of columns: grad (F, C) of the weighed monomials becomes that of phi, in place.

    weighed (F, C) gets phi as it was read; grad_coefficients (P + 1, C) what each order's coefficient gets. Orders that are not
    kept have no gradient of their own.
    """
    columns = phi.shape[1]
    grad_coefficients[:] = 0
    for n in range(offsets.shape[0]):
        for f in range(offsets[n], offsets[n] + widths[n]):
            gain = multiplicities[f]
            if starts[n] < 0:
                for c in range(columns):
                    grad[f, c] = 0
            else:
                for c in range(columns):
                    read = phi[f, c] * gain
                    grad_coefficients[n, c] += grad[f, c] * read
                    weighed[f, c] = read * coefficients[n, c]
                    grad[f, c] *= gain * coefficients[n, c]


def add_mass(phi, weight, mass):
    """mass (F,) += phi (F, S) @ weight (S,)."""
    for f in range(phi.shape[0]):
        mass[f] += dot(phi[f], weight)


def dot(a, b):
    total = a[0] * b[0]
    for i in range(1, a.shape[0]):
        total += a[i] * b[i]
    return total
