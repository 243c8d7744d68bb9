"""The loop of one token against a state, compiled by numba: a single pass over buffer and moments.

Plain functions of arrays; `compiled.py` compiles them on first use. N sequences times kv heads, R query heads of a kv head, L
buffered keys, F features, d key width, e value width.
"""

from __future__ import annotations

import math

import numpy as np

from termwise.attention.backends.block_loops import dot
from termwise.attention.backends.tables import ROW_SUM, SCALE_FREE
from termwise.attention.backends.vectors import add_weighted_rows
from termwise.attention.normalizers import VANISHING
from termwise.attention.safe import FADED


def monomials_of_row(x, offsets, out):
    """The same for one row x (d,) into out (F,). Views, not sums of indices: those might be negative, and are not vectorised."""
    top, d = offsets.shape[0] - 1, x.shape[0]
    out[offsets[0]] = 1
    if top > 0:
        out[offsets[1] : offsets[1] + d] = x
    for n in range(2, top + 1):
        row, size = offsets[n], 1
        for i in range(d):
            below, here, factor = out[offsets[n - 1] : offsets[n - 1] + size], out[row : row + size], x[i]
            for j in range(size):
                here[j] = below[j] * factor
            row += size
            size = size * (i + n) // (i + 1)


def read_rows(phi, moments, out):
    """out (R, e) += phi (R, F) @ moments (F, e), in one read of them for all R. Moments of uint16 are the bits of bfloat16.

    Sums of 128 rows first: thousands of terms one after another would lose digits.
    """
    for first in range(0, moments.shape[0], 128):
        rows = slice(first, min(first + 128, moments.shape[0]))
        for r in range(phi.shape[0]):
            add_weighted_rows(phi[r, rows], moments[rows], out[r])


def weigh_monomials(phi, multiplicities, gain, mass):
    """phi (F,) *= multiplicities times gain, in place; its product with the mass."""
    total = phi.dtype.type(0)
    factor = phi.dtype.type(gain)
    for f in range(phi.shape[0]):
        weighed = phi[f] * multiplicities[f] * factor
        phi[f] = weighed
        total += weighed * mass[f]
    return total


def horner(coefficients, x):
    total = coefficients[coefficients.shape[0] - 1]
    for i in range(coefficients.shape[0] - 2, -1, -1):
        total = total * x + coefficients[i]
    return total


def recentre(coefficients, binomials, shift, out):
    """c_n of sum_n c_n z^n = sum_j b_j (z + shift)^j:  c_n = sum_{j>=n} b_j C(j, n) shift^(j-n)."""
    top = coefficients.shape[0] - 1
    for n in range(out.shape[0]):
        total = 0.0
        for j in range(top, n - 1, -1):
            total = total * shift + coefficients[j] * binomials[j, n]
        out[n] = total


def add_row(out, weight, row):
    factor = out.dtype.type(weight)
    for j in range(out.shape[0]):
        out[j] += factor * row[j]


def mark_keys(now, rank, length, window, sinks, has_tail, near, far):
    """Which keys the token weighs as exact slots, which by the tail; it is itself the last one."""
    for s in range(length + 1):
        at = now if s == length else rank[s]
        near[s] = window > 0 and at >= 0 and (now - at < window or at < sinks)
        far[s] = has_tail and at >= 0 and not near[s]


def score_keys(query, key, new_key, scale, marked, y):
    """y = scale q.k of the marked keys."""
    length = y.shape[0] - 1
    for s in range(length + 1):
        if marked[s]:
            y[s] = (dot(query, new_key) if s == length else dot(query, key[s])) * scale


def middle_of(y, decay, marked, folded_total, folded_count, faint):
    """(decayed count, mean score) over the marked keys and the folded ones; the mean of next to nothing is 0."""
    count, total = folded_count, folded_total
    for s in range(y.shape[0]):
        if marked[s]:
            count += decay[s]
            total += y[s] * decay[s]
    return count, (total / count if count >= faint else 0.0)


def add_values(weights, value, new_value, out):
    """out += weights (L + 1,) of the buffered keys and the token itself times their values."""
    length = weights.shape[0] - 1
    add_weighted_rows(weights[:length], value[:length], out)
    add_row(out, weights[length], new_value)


def add_tail(y, decay, marked, middle, coefficients, value, new_value, weights, out):
    """out += sum of p(y - middle) decay v over the marked keys; the sum of the weights."""
    mass = 0.0
    for s in range(y.shape[0]):
        weight = horner(coefficients, y[s] - middle) * decay[s] if marked[s] else 0.0
        mass += weight
        weights[s] = weight
    add_values(weights, value, new_value, out)
    return mass


def add_slots(y, log_decay, marked, middle, tail_count, tail_mass, faint, value, new_value, weights, out):
    """Slots exp(x - M) beside the tail exp(m - M) p, M = max(largest slot score, m): (mass, decayed count, M)."""
    length, top = y.shape[0] - 1, -math.inf
    for s in range(length + 1):
        if marked[s]:
            if s < length and log_decay.shape[0] > 0:
                y[s] += log_decay[s]
            top = max(top, y[s])
    reads_tail = tail_count >= faint
    largest = max(top, middle) if reads_tail else top
    gain = math.exp(min(middle - largest, 0.0)) if reads_tail else 0.0
    for j in range(out.shape[0]):
        out[j] = out[j] * gain if reads_tail else 0
    mass = 0.0
    for s in range(length + 1):
        weight = math.exp(y[s] - largest) if marked[s] else 0.0
        mass += weight
        weights[s] = weight
    add_values(weights, value, new_value, out)
    return mass + gain * tail_mass, mass + gain * tail_count, largest


def weigh_folded(
    query, mass, starts, offsets, widths, multiplicities, coefficients, binomials, shift, is_centered, decay, phi
):
    """phi (F,) = weighed monomials of a query as the folded keys see it; what it reads of their mass."""
    monomials_of_row(query, offsets, phi)
    per_order = coefficients.copy()
    if is_centered:
        recentre(coefficients, binomials, shift, per_order)
    total = 0.0
    for o in range(offsets.shape[0]):
        if starts[o] >= 0:
            these = slice(offsets[o], offsets[o] + widths[o])
            kept = mass[starts[o] : starts[o] + widths[o]]
            total += weigh_monomials(phi[these], multiplicities[these], per_order[o] * decay, kept)
    return total


def divide(out, mass, count):
    """U / Z by the vanishing rule: |Z| stays above a share of the decayed count; the divisor."""
    floor = VANISHING * count
    divisor = mass
    if abs(mass) < floor:
        divisor = -floor if mass < 0 else floor
    for j in range(out.shape[0]):
        out[j] /= divisor
    return divisor


def scale_free(out, divisor, subtracts_mean, eps, gain, weight, bias):
    """out = gain w z / sqrt(mean(z^2) + eps) + b, z = y or y - mean(y), y = out / divisor: L2, RMS and Layer. Zero stays zero."""
    width, mean, square = out.shape[0], out.dtype.type(0), out.dtype.type(0)
    for j in range(width):
        out[j] /= divisor
        mean += out[j]
    if subtracts_mean:
        for j in range(width):
            out[j] -= mean / width
    for j in range(width):
        square += out[j] * out[j]
    root = math.sqrt(square / width + eps)
    factor = out.dtype.type(gain / root) if root > 0 else out.dtype.type(0)
    for j in range(width):
        out[j] *= factor
    if weight.shape[0] > 0:
        for j in range(width):
            out[j] *= weight[j]
    if bias.shape[0] > 0:
        for j in range(width):
            out[j] += bias[j]


def step(
    query, slot_query, key, slot_key, value, rank, new_key, new_slot_key, new_value, length, count, log_decay, folded_log_decay,
    moments, half, mass, folded_count, reference, is_folded, starts, offsets, widths, multiplicities, coefficients, binomials,
    scales, window, sinks, is_centered, has_tail, norm, subtracts_mean, eps, gain, norm_weight, norm_bias, appends, weighted,
    out_mass, out_count, out_peak, start, stop,
):  # fmt: skip
    """Sums of one token over buffer, itself and the folded moments: true sums are these times exp(out_peak).

    query (N, R, d) mapped; slot_query the same unmapped; key, value (N, places, .), the first `length` taken; rank (B or 1,
    places), -1: empty; count (B or 1,) keys before this one; log_decay (N, length) from each key to this token, (N, 0): no
    decay; moments (N, F, e); half: their bfloat16 copy, (N, 0, 0): none; starts: where order n begins in the moments, -1: not
    kept; window 0: no exact slots. `norm`: weighted is left as U (SUMS), becomes U / Z by the vanishing rule (ROW_SUM), or is
    normalized by `scale_free`, norm_weight and norm_bias (G, R, e or 0). `appends`: the token takes the next place. Heads
    `start` to `stop` alone are computed, so that threads can share them. Follows reading.py line by line.
    """
    heads, group, d = query.shape
    near, far = np.zeros(length + 1, dtype=np.bool_), np.zeros(length + 1, dtype=np.bool_)
    y, decay = np.empty(length + 1, dtype=np.float64), np.ones(length + 1, dtype=np.float64)
    phi = np.empty((group, offsets[-1] + widths[-1]), dtype=query.dtype)
    scaled, weights = np.empty(d, dtype=query.dtype), np.empty(length + 1, dtype=query.dtype)
    faint = FADED * np.finfo(query.dtype).tiny
    marked = -1
    for n in range(start, stop):
        row = n // (heads // count.shape[0])
        if row != marked:
            mark_keys(count[row], rank[row], length, window, sinks, has_tail, near, far)
            marked = row
        for s in range(log_decay.shape[1]):
            decay[s] = math.exp(log_decay[n, s])
        reads_folded, folded_decay = has_tail and is_folded[row], math.exp(min(folded_log_decay[n], 0.0))
        held = folded_count[n] * folded_decay if reads_folded else 0.0
        for r in range(group):
            out, offset, folded_total = weighted[n, r], 0.0, 0.0
            out[:] = 0
            if reads_folded:
                for i in range(d):
                    scaled[i] = query[n, r, i] * math.sqrt(scales[0])
                if is_centered:
                    offset = dot(scaled, reference[n])
                    folded_total = dot(scaled, mass[n, 1 : 1 + d]) * folded_decay + held * offset
            tail_mass, tail_count, middle = 0.0, 0.0, 0.0
            if has_tail:
                score_keys(query[n, r], key[n], new_key[n], scales[0], far, y)
                tail_count, mean = middle_of(y, decay, far, folded_total, held, faint)
                middle = mean if is_centered else 0.0
                tail_mass = add_tail(y, decay, far, middle, coefficients, value[n], new_value[n], weights, out)
            if reads_folded:
                tail_mass += weigh_folded(
                    scaled, mass[n], starts, offsets, widths, multiplicities, coefficients, binomials, offset - middle,
                    is_centered, folded_decay, phi[r],
                )  # fmt: skip
            out_mass[n, r], out_count[n, r], out_peak[n, r] = tail_mass, tail_count, middle
        if reads_folded:
            for o in range(offsets.shape[0]):
                if starts[o] >= 0:
                    these, kept = phi[:, offsets[o] : offsets[o] + widths[o]], slice(starts[o], starts[o] + widths[o])
                    if half.shape[1] > 0:
                        read_rows(these, half[n, kept], weighted[n])
                    else:
                        read_rows(these, moments[n, kept], weighted[n])
        for r in range(group):
            if window > 0:
                score_keys(slot_query[n, r], slot_key[n], new_slot_key[n], scales[1], near, y)
                out_mass[n, r], out_count[n, r], out_peak[n, r] = add_slots(
                    y, log_decay[n], near, out_peak[n, r], out_count[n, r], out_mass[n, r], faint, value[n], new_value[n],
                    weights, weighted[n, r],
                )  # fmt: skip
            if norm == ROW_SUM:
                divide(weighted[n, r], out_mass[n, r], out_count[n, r])
            elif norm == SCALE_FREE:
                g, divisor = n % norm_weight.shape[0], count[row] + 1.0 if has_tail else out_mass[n, r]
                scale_free(weighted[n, r], divisor, subtracts_mean, eps, gain, norm_weight[g, r], norm_bias[g, r])
        if appends:
            slot_key[n, length], value[n, length] = new_slot_key[n], new_value[n]
    if appends and start == 0:
        for row in range(rank.shape[0]):
            rank[row, length] = count[row if count.shape[0] > 1 else 0]
