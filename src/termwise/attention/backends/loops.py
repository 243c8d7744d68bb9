"""The hot loops, compiled by numba: monomials by prefix products, and one token against a state in one pass over it.

Plain functions of arrays; `compiled.py` compiles them on first use. Axes: N sequences times kv heads, R query heads of a kv head,
C columns (tokens), L buffered keys, F features, d key width, e value width.
"""

from __future__ import annotations

import math

import numpy as np

VANISHING = 1e-6  # share of the decayed count that |Z| is kept above (normalizers.VANISHING)
VANISHING_MEAN = 1e8  # times the smallest normal number: below it a decayed count is nothing (safe.is_faded)


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


def scale_monomials(out, offsets, widths, multiplicities, coefficients):
    """out[f, c] *= multiplicity of f times coefficients[order of f, c] (or [order, 0] for all columns)."""
    columns = out.shape[1]
    is_shared = coefficients.shape[1] == 1
    for n in range(offsets.shape[0]):
        for f in range(offsets[n], offsets[n] + widths[n]):
            gain = multiplicities[f]
            if is_shared:
                gain = gain * coefficients[n, 0]
                for c in range(columns):
                    out[f, c] *= gain
            else:
                for c in range(columns):
                    out[f, c] *= gain * coefficients[n, c]


def monomials_of_row(x, offsets, out):
    """The same for one row x (d,) into out (F,)."""
    top = offsets.shape[0] - 1
    out[offsets[0]] = 1
    if top > 0:
        for i in range(x.shape[0]):
            out[offsets[1] + i] = x[i]
    for n in range(2, top + 1):
        row, size = offsets[n], 1
        for i in range(x.shape[0]):
            below, factor = offsets[n - 1], x[i]
            for j in range(size):
                out[row + j] = out[below + j] * factor
            row += size
            size = size * (i + n) // (i + 1)


def read_rows(phi, start, moments, out):
    """out (R, e) += phi (R, start..) @ moments (F, e), two rows at a time: as fast as one read of them."""
    rows, width = moments.shape
    for first in range(0, rows, 32):
        last = min(first + 32, rows)
        for r in range(phi.shape[0]):
            f = first
            while f + 2 <= last:
                a, b = phi[r, start + f], phi[r, start + f + 1]
                for j in range(width):
                    out[r, j] += a * moments[f, j] + b * moments[f + 1, j]
                f += 2
            if f < last:
                a = phi[r, start + f]
                for j in range(width):
                    out[r, j] += a * moments[f, j]


def dot(a, b):
    total = a[0] * b[0]
    for i in range(1, a.shape[0]):
        total += a[i] * b[i]
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


def step(
    query, slot_query, key, slot_key, value, rank, new_key, new_slot_key, new_value, length, count, log_decay, folded_log_decay,
    moments, mass, folded_count, reference, is_folded, starts, offsets, widths, multiplicities, coefficients, binomials,
    scales, window, sinks, is_centered, has_tail, divides, appends, weighted, out_mass, out_count, out_peak,
):  # fmt: skip
    """Sums of one token over buffer, itself and the folded moments: true sums are these times exp(out_peak).

    query (N, R, d) mapped; slot_query the same unmapped; key, value (N, places, .), the first `length` taken; rank (B or 1,
    places), -1: empty; count (B or 1,) keys before this one; log_decay (N, length) from each key to this token, (N, 0): no
    decay; moments (N, F, e); starts: where order n begins in the moments, -1: not kept; window 0: no exact slots. `divides`:
    weighted becomes U / Z, by the vanishing rule; `appends`: the token takes the next place. Follows reading.py line by line.
    """
    heads, group = query.shape[0], query.shape[1]
    per_row = heads // count.shape[0]
    near = np.zeros(length + 1, dtype=np.bool_)
    far = np.zeros(length + 1, dtype=np.bool_)
    y = np.empty(length + 1, dtype=query.dtype)
    decay = np.ones(length + 1, dtype=query.dtype)
    total_width = offsets[offsets.shape[0] - 1] + widths[widths.shape[0] - 1]
    phi = np.empty((group, total_width), dtype=query.dtype)
    per_order = np.empty(offsets.shape[0], dtype=np.float64)
    scaled = np.empty(query.shape[2], dtype=query.dtype)
    faint = VANISHING_MEAN * np.finfo(query.dtype).tiny
    for n in range(heads):
        row = n // per_row
        now = count[row]
        for s in range(length + 1):
            at = now if s == length else rank[row, s]
            is_slot = window > 0 and at >= 0 and (now - at < window or at < sinks)
            near[s] = is_slot
            far[s] = at >= 0 and has_tail and not is_slot
            if log_decay.shape[1] > 0 and s < length:
                decay[s] = math.exp(log_decay[n, s])
        folded_decay = math.exp(min(folded_log_decay[n], 0.0))
        reads_folded = has_tail and is_folded[row]
        for r in range(group):
            tail_count, total = 0.0, 0.0
            if has_tail:
                for s in range(length + 1):
                    if far[s]:
                        product = dot(query[n, r], new_key[n]) if s == length else dot(query[n, r], key[n, s])
                        y[s] = product * scales[0]
                        tail_count += decay[s]
                        total += y[s] * decay[s]
            offset = 0.0
            if reads_folded:
                root = math.sqrt(scales[0])
                for i in range(scaled.shape[0]):
                    scaled[i] = query[n, r, i] * root
                tail_count += folded_count[n] * folded_decay
                if is_centered:
                    offset = dot(scaled, reference[n])
                    first = dot(scaled, mass[n, 1 : 1 + scaled.shape[0]])
                    total += (first + folded_count[n] * offset) * folded_decay
            middle = 0.0
            if is_centered and tail_count >= faint:
                middle = total / tail_count
            tail_mass = 0.0
            for j in range(weighted.shape[2]):
                weighted[n, r, j] = 0
            if has_tail:
                for s in range(length + 1):
                    if far[s]:
                        weight = horner(coefficients, y[s] - middle) * decay[s]
                        tail_mass += weight
                        if s == length:
                            for j in range(weighted.shape[2]):
                                weighted[n, r, j] += weight * new_value[n, j]
                        else:
                            for j in range(weighted.shape[2]):
                                weighted[n, r, j] += weight * value[n, s, j]
            if reads_folded:
                monomials_of_row(scaled, offsets, phi[r])
                if is_centered:
                    recentre(coefficients, binomials, offset - middle, per_order)
                else:
                    per_order[:] = coefficients
                far_mass = 0.0
                for o in range(offsets.shape[0]):
                    if starts[o] >= 0:
                        gain = per_order[o] * folded_decay
                        part = query.dtype.type(0)
                        for i in range(widths[o]):
                            f = offsets[o] + i
                            phi[r, f] = phi[r, f] * multiplicities[f] * gain
                            part += phi[r, f] * mass[n, starts[o] + i]
                        far_mass += part
                tail_mass += far_mass
            out_mass[n, r], out_count[n, r], out_peak[n, r] = tail_mass, tail_count, middle
        if reads_folded:
            for o in range(offsets.shape[0]):
                if starts[o] >= 0:
                    read_rows(phi, offsets[o], moments[n, starts[o] : starts[o] + widths[o]], weighted[n])
        if window > 0:
            for r in range(group):
                join_slots(
                    slot_query[n, r], slot_key[n], value[n], new_slot_key[n], new_value[n], length, near, log_decay, n, scales[1],
                    faint, y, weighted[n, r], out_mass[n, r : r + 1], out_count[n, r : r + 1], out_peak[n, r : r + 1], has_tail,
                )  # fmt: skip
        if divides:
            for r in range(group):
                floor = VANISHING * out_count[n, r] if has_tail else 0.0
                divisor = out_mass[n, r]
                if abs(divisor) < floor:
                    divisor = -floor if divisor < 0 else floor
                for j in range(weighted.shape[2]):
                    weighted[n, r, j] /= divisor
        if appends:
            slot_key[n, length], value[n, length] = new_slot_key[n], new_value[n]
    if appends:
        for row in range(rank.shape[0]):
            rank[row, length] = count[row if count.shape[0] > 1 else 0]


def join_slots(
    query, key, value, new_key, new_value, length, near, log_decay, n, scale, faint, y, weighted, mass, count, peak, has_tail
):
    """Slots exp(x - M) beside the tail exp(m - M) p, M = max(largest slot score, m); m comes in `peak` and M goes out."""
    top = -math.inf
    for s in range(length + 1):
        if near[s]:
            score = (dot(query, new_key) if s == length else dot(query, key[s])) * scale
            if s < length and log_decay.shape[1] > 0:
                score += log_decay[n, s]
            y[s] = score
            top = max(top, score)
    middle, tail_count = peak[0], count[0]
    reads_tail = has_tail and tail_count >= faint
    largest = max(top, middle) if reads_tail else top
    gain = math.exp(min(middle - largest, 0.0)) if reads_tail else 0.0
    near_mass = 0.0
    for j in range(weighted.shape[0]):
        weighted[j] = weighted[j] * gain if reads_tail else 0
    for s in range(length + 1):
        if near[s]:
            weight = math.exp(y[s] - largest)
            near_mass += weight
            if s == length:
                for j in range(weighted.shape[0]):
                    weighted[j] += weight * new_value[j]
            else:
                for j in range(weighted.shape[0]):
                    weighted[j] += weight * value[s, j]
    mass[0] = near_mass + gain * mass[0] if reads_tail else near_mass
    count[0] = near_mass + gain * tail_count if reads_tail else near_mass
    peak[0] = largest
