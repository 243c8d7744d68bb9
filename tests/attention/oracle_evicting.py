"""The second definition, for slots that keys leave at fixed positions: one mask of slots a query, dense rows in float64.

It reads only the fields of a spec. The query heads of one kv head go through it together, since what they give a key, summed,
decides whether it stays.
"""

from __future__ import annotations

import torch
from torch import Tensor

from termwise.attention.kernels import Drop
from tests.attention import oracle


def group(
    query: Tensor, key: Tensor, value: Tensor, spec, scale: float | None, real: Tensor, centers: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(U / Z, Z) of query (R, T, d), key (S, d), value (S, e): (R, T, e) and (R, T, 1); zeros and ones for padding."""
    num_keys, local = key.shape[0], spec.local
    product_scale, slot_scale = oracle._scales(spec.kernel, scale, key.shape[1])
    x = query @ key.T * slot_scale
    y = query @ key.T * product_scale
    nearest = torch.zeros(num_keys, dtype=torch.int64)
    if centers is not None and spec.kernel.centers > 1:
        nearest = torch.cdist(key.detach(), centers, compute_mode="donot_use_mm_for_euclid_dist").argmin(dim=1)
    order = real.cumsum(dim=0) - 1
    exact = torch.zeros(num_keys, dtype=torch.bool)
    received = torch.zeros(num_keys, dtype=torch.float64)
    rows, masses = [], []
    for t in range(num_keys):
        if not bool(real[t]):
            rows.append(torch.zeros_like(query[:, 0, :1] * value[0]))
            masses.append(torch.ones_like(query[:, 0, :1]))
            continue
        seen = int(order[t]) + 1
        if seen % local.evict_every == 0:
            safe = (order >= seen - local.window) | (order < local.sinks)
            ranking = torch.where(exact & ~safe, received, torch.full_like(received, -1.0))
            kept = torch.zeros_like(exact)
            for _ in range(min(local.heavy, int((exact & ~safe).sum()))):
                best = int((ranking == ranking.max()).int().argmax())
                kept[best], ranking[best] = True, -2.0
            exact = exact & (safe | kept)
        exact = exact.clone()
        exact[t] = True
        far = real & ~exact & (torch.arange(num_keys) < t)
        row, mass, shares = _row(spec.kernel, x[:, t], y[:, t], value, exact, far, nearest)
        received = received + shares.detach()
        rows.append(row)
        masses.append(mass)
    return torch.stack(rows, dim=1), torch.stack(masses, dim=1)


def _row(kernel, x: Tensor, y: Tensor, value: Tensor, exact: Tensor, far: Tensor, nearest: Tensor):
    """(U / Z, Z, what each exact key is given) of one query a head: scores x, products y (R, S)."""
    weights, sizes = torch.zeros_like(x), torch.zeros_like(x)
    middles = torch.zeros_like(y)
    has_far = bool(far.any()) and not isinstance(kernel, Drop)
    tops = [torch.where(exact, x, torch.full_like(x, -torch.inf))]
    if has_far:
        for g in range(int(nearest.max()) + 1):
            own = far & (nearest == g)
            if kernel.center == "mean" and bool(own.any()):
                middles = torch.where(own, y[:, own].mean(dim=1, keepdim=True), middles)
        tops.append(torch.where(far, middles, torch.full_like(x, -torch.inf)))
    peak = torch.cat(tops, dim=1).amax(dim=1, keepdim=True).detach()
    weights = torch.where(exact, (torch.where(exact, x, peak) - peak).exp(), weights)
    sizes = weights
    if has_far:
        base = torch.where(far, y - middles, torch.zeros_like(y))
        gain = torch.where(far, (torch.where(far, middles, peak) - peak).exp(), torch.zeros_like(y))
        weights = weights + gain * sum(b * base.pow(n) for n, b in oracle.coefficients(kernel).items())
        sizes = sizes + gain
    mass = weights.sum(dim=1, keepdim=True)
    low = 1e-6 * sizes.sum(dim=1, keepdim=True).detach()
    safe = torch.where(mass.abs() < low, torch.where(mass < 0, -low, low), mass)
    return weights @ value / safe, safe, torch.where(exact, weights / safe, torch.zeros_like(weights)).sum(dim=0)


def rows_of(query, key, value, spec, scale, real, input_gate, output_gate, parameters, b: int) -> Tensor:
    """Outputs (T, H, e) of sequence b of a batch: everything around the sums."""
    num_kv, outputs = key.shape[2], []
    repeats = query.shape[2] // num_kv

    def clean(t: Tensor) -> Tensor:
        mask = real.reshape(-1, *[1] * (t.dim() - 1))
        return torch.where(mask, t, torch.zeros_like(t)).double()

    count = real.double().cumsum(dim=0).clamp(min=1)
    for g in range(num_kv):
        own = clean(value[b, :, g])
        if input_gate is not None:
            own = own * clean(input_gate[b, :, g])[:, None]
        if spec.input_gate == "count":
            own = own * count[:, None] ** -torch.sigmoid(parameters["count_exponent"][g].double())
        centers = parameters["centers"][g].double() if "centers" in parameters else None
        heads = clean(query[b, :, g * repeats : (g + 1) * repeats]).transpose(0, 1)
        outputs.append(group(heads, clean(key[b, :, g]), own, spec, scale, real, centers)[0])
    out = torch.cat(outputs).transpose(0, 1)
    return out if output_gate is None else out * clean(output_gate[b])[..., None]
