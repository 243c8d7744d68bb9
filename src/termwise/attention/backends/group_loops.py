"""The loop of one token against exact slots and a tail in groups, compiled by numba: one pass over both for all query heads.

Plain functions of arrays; `compiled.py` compiles them on first use. N sequences times kv heads, R query heads of a kv head, L
slots, m groups, F features, d key width, e value width. Follows evicting.py and tail.py line by line.
"""

from __future__ import annotations

import math

import numpy as np

from termwise.attention.backends.block_loops import dot
from termwise.attention.backends.step_loops import (
    add_row,
    divide,
    monomials_of_row,
    read_rows,
    recentre,
    weigh_monomials,
)


def score_slots(query, key, new_key, rank, scale, y):
    """y (L + 1,) = scale q.k of the slots and the token itself, -inf of empty ones; the largest."""
    length, top = y.shape[0] - 1, -math.inf
    for s in range(length + 1):
        y[s] = -math.inf
        if s == length:
            y[s] = dot(query, new_key) * scale
        elif rank[s] >= 0:
            y[s] = dot(query, key[s]) * scale
        top = max(top, y[s])
    return top


def score_groups(query, mass, count, reference, is_centered, middle, shift):
    """Mean score of each group about its reference, and as it is (0 around zero, -inf of empty groups); the largest."""
    d, top = query.shape[0], -math.inf
    for g in range(count.shape[0]):
        middle[g], shift[g] = 0.0, -math.inf
        if count[g] > 0:
            shift[g] = 0.0
            if is_centered:
                middle[g] = dot(query, mass[g, 1 : 1 + d]) / count[g]
                shift[g] = middle[g]
                if reference.shape[0] > 0:
                    shift[g] += dot(query, reference[g])
            top = max(top, shift[g])
    return top


def weigh_group(
    phi,
    mass,
    gain,
    middle,
    starts,
    offsets,
    widths,
    multiplicities,
    coefficients,
    binomials,
    is_centered,
    per_order,
    out,
):
    """out (F,) = gain times the weighed monomials as one group's moments are kept; their product with its mass."""
    per_order[:] = coefficients
    if is_centered:
        recentre(coefficients, binomials, -middle, per_order)
    total = 0.0
    for o in range(offsets.shape[0]):
        start, size = starts[o], widths[o]
        if start >= 0 and start + size <= out.shape[0]:
            these = slice(offsets[o], offsets[o] + size)
            out[start : start + size] = phi[these]
            total += weigh_monomials(
                out[start : start + size], multiplicities[these], per_order[o] * gain, mass[start : start + size]
            )
    return total


def add_slots_of_group(y, largest, value, new_value, out):
    """out += sum exp(y - M) v; y becomes the weights; their sum."""
    length, mass = y.shape[0] - 1, 0.0
    for s in range(length + 1):
        weight = math.exp(y[s] - largest)
        y[s] = weight
        if weight > 0:
            mass += weight
            add_row(out, weight, new_value if s == length else value[s])
    return mass


def grouped_step(
    query, key, value, rank, new_key, new_value, length, count_before, moments, mass, count, reference, starts, offsets, widths,
    multiplicities, coefficients, binomials, scales, is_centered, has_exact_mass, given, row, appends, weighted, start, stop,
):  # fmt: skip
    """Outputs U / Z (N, R, e) of one token over slots, itself and the tail, by the vanishing rule.

    query (N, R, d); key, value (N, places, .), rank (N, places), the first `length` taken, rank -1: empty; count_before (B or 1,)
    keys before this one; moments (N, m, F, e), mass (N, m, F'), count (N, m), reference (N, m, d) or none (N, 0, d): the tail, m = 0: none;
    `has_exact_mass`: a group's mass is its count times b_0; given (N, rows, places): what the token gives each slot, w / Z summed
    over R, goes into `row`, unless rows are 0; `appends`: the token takes the next place. Heads `start` to `stop` alone.
    """
    heads, group, d = query.shape
    num_groups, num_features = moments.shape[1], moments.shape[2]
    y, scaled = np.empty((group, length + 1), dtype=np.float64), np.empty((group, d), dtype=query.dtype)
    middle, shift = np.empty((group, num_groups)), np.empty((group, num_groups))
    phi = np.empty((group, offsets[-1] + widths[-1]), dtype=query.dtype)
    weighed = np.empty((group, num_features), dtype=query.dtype)
    largest, total, held, per_order = np.empty(group), np.empty(group), np.empty(group), np.empty(offsets.shape[0])
    for n in range(start, stop):
        weighted[n] = 0
        for r in range(group):
            top = score_slots(query[n, r], key[n], new_key[n], rank[n], scales[1], y[r])
            for i in range(d):
                scaled[r, i] = query[n, r, i] * math.sqrt(scales[0])
            if num_groups > 0:
                of_groups = score_groups(scaled[r], mass[n], count[n], reference[n], is_centered, middle[r], shift[r])
                top = max(top, of_groups)
                monomials_of_row(scaled[r], offsets, phi[r])
            largest[r], held[r] = top, 0.0
            total[r] = add_slots_of_group(y[r], top, value[n], new_value[n], weighted[n, r])
            held[r] = total[r]
        for g in range(num_groups):
            is_read = False
            for r in range(group):
                gain = math.exp(shift[r, g] - largest[r])
                is_read = is_read or gain > 0
                of_group = weigh_group(
                    phi[r], mass[n, g], gain, middle[r, g], starts, offsets, widths, multiplicities, coefficients, binomials,
                    is_centered, per_order, weighed[r],
                )  # fmt: skip
                total[r] += gain * coefficients[0] * count[n, g] if has_exact_mass else of_group
                held[r] += gain * count[n, g]
            if is_read:
                read_rows(weighed, moments[n, g], weighted[n])
        for r in range(group):
            divisor = divide(weighted[n, r], total[r], held[r] if num_groups > 0 else 0.0)
            if given.shape[1] > 0:
                for s in range(length + 1):
                    given[n, row, s] += y[r, s] / divisor
        if appends:
            key[n, length], value[n, length] = new_key[n], new_value[n]
            rank[n, length] = count_before[n // (heads // count_before.shape[0])]
