"""A second definition of the algebra, written from the formulas alone: dense matrices in float64, nothing of the package called.

It reads only the fields of a spec. Every weight of every pair is written out, so it is quadratic in length and has no state;
autograd through it gives the gradients every form is held against.

    w_ts = a_ts kernel(x_ts),  U_t = sum_s w_ts i_s v_s,  Z_t = sum_s w_ts,  o_t = g'_t normalize(g_t U_t, Z_t, c_t)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from termwise.attention.kernels import Drop, Exp, FeatureMap, Minimax, Polynomial, Power
from termwise.attention.normalizers import L2, RMS, Count, Identity, Layer, RowSum, RunningGateSum


def attend(
    query: Tensor, key: Tensor, value: Tensor, spec, *, scale: float | None = None, causal: bool = True, key_mask: Tensor | None = None,
    query_mask: Tensor | None = None, cu_seqlens: Tensor | None = None, input_gate: Tensor | None = None, output_gate: Tensor | None = None,
    log_decay: Tensor | None = None, parameters: dict[str, Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """(B, T, H, e) in float64. Arguments as those of `termwise.attend`."""
    if cu_seqlens is not None:
        return _packed(
            query, key, value, spec, cu_seqlens, scale, causal, input_gate, output_gate, log_decay, parameters
        )
    batch, num_keys = key.shape[:2]
    real = torch.ones(batch, num_keys, dtype=torch.bool) if key_mask is None else key_mask
    asked = query_mask if query_mask is not None else key_mask if query.shape[1] == num_keys else None
    asked = torch.ones(batch, query.shape[1], dtype=torch.bool) if asked is None else asked
    outputs = []
    if spec.local is not None and spec.local.evict_every is not None:
        from tests.attention.oracle_evicting import rows_of

        given = (query, key, value, spec, scale)
        return torch.stack(
            [rows_of(*given, real[b], input_gate, output_gate, parameters or {}, b) for b in range(batch)]
        )
    for b in range(batch):
        pick = [None if t is None else t[b] for t in (input_gate, output_gate, log_decay)]
        rows = [
            _head(query[b, :, h], key[b, :, _kv(h, query, key)], value[b, :, _kv(h, query, key)], spec, scale, causal, real[b], asked[b],
                  *(None if t is None else t[:, h if t is pick[1] else _kv(h, query, key)] for t in pick),
                  _of_head(parameters or {}, b, h, _kv(h, query, key)))
            for h in range(query.shape[2])
        ]  # fmt: skip
        outputs.append(torch.stack(rows, dim=1))
    return torch.stack(outputs)


def _kv(head: int, query: Tensor, key: Tensor) -> int:
    """Query heads 0..r-1 share kv head 0."""
    return head // (query.shape[2] // key.shape[2])


def _of_head(parameters: dict[str, Tensor], b: int, h: int, g: int) -> dict[str, Tensor]:
    place = {
        "norm_weight": (h,),
        "norm_bias": (h,),
        "count_exponent": (g,),
        "running_gate_score": (b, slice(None), g),
        "reference_key": (g,),
    }
    return {name: t[place[name]] for name, t in parameters.items()}


def _packed(
    query, key, value, spec, cu_seqlens, scale, causal, input_gate, output_gate, log_decay, parameters
) -> Tensor:
    parts = []
    for start, stop in zip(cu_seqlens.tolist(), cu_seqlens.tolist()[1:], strict=False):
        cut = [None if t is None else t[:, start:stop] for t in (query, key, value, input_gate, output_gate, log_decay)]
        own = {n: t[:, start:stop] if n == "running_gate_score" else t for n, t in (parameters or {}).items()}
        parts.append(
            attend(
                *cut[:3],
                spec,
                scale=scale,
                causal=causal,
                input_gate=cut[3],
                output_gate=cut[4],
                log_decay=cut[5],
                parameters=own,
            )
        )
    return torch.cat(parts, dim=1)


def _head(
    query, key, value, spec, scale, causal, real, asked, input_gate, output_gate, log_decay, parameters
) -> Tensor:
    """One sequence and head: query (T, d), key (S, d), value (S, e)."""
    num_queries, num_keys, width = query.shape[0], key.shape[0], query.shape[1]

    def clean(t, mask, fill=0.0):
        mask = mask.reshape(-1, *[1] * (t.dim() - 1))
        return torch.where(mask, t, torch.full_like(t, fill)).double()

    query, key, value = clean(query, asked), clean(key, real), clean(value, real)
    t_index, s_index = torch.arange(num_queries)[:, None], torch.arange(num_keys)[None]
    visible = real[None].expand(num_queries, -1) & (
        (s_index <= t_index) if causal else torch.ones(num_queries, num_keys, dtype=torch.bool)
    )
    count = visible.sum(dim=1, keepdim=True).double()
    log_a = (
        _decay(clean(log_decay, real), num_queries)
        if log_decay is not None
        else torch.zeros(num_queries, num_keys, dtype=torch.float64)
    )
    a = torch.where(visible, log_a, torch.full_like(log_a, -torch.inf)).exp()
    if input_gate is not None:
        value = value * clean(input_gate, real)[:, None]
    if spec.input_gate == "count":
        of_key = real.double().cumsum(dim=0) if causal else real.double().sum().expand(num_keys)
        value = value * of_key.clamp(min=1)[:, None] ** -torch.sigmoid(parameters["count_exponent"].double())
    slots = _slots(spec, visible, real)
    near, far, peak, floor = _weights(spec, query, key, scale, width, a, log_a, visible, slots)
    weights = near + far
    mass = weights.sum(dim=1, keepdim=True)
    weighted = weights @ value
    is_exponential = isinstance(spec.kernel, (Exp, Drop))
    if not is_exponential and isinstance(spec.normalizer, RowSum):
        low = 1e-6 * floor.detach()  # what a sum is held against is no part of the function
        mass = torch.where(mass.abs() < low, torch.where(mass < 0, -low, low), mass)
    running = None
    if isinstance(spec.normalizer, RunningGateSum):
        running = (clean(parameters["running_gate_score"], real)[None].exp() * visible).sum(dim=1, keepdim=True)
    is_row = (asked & visible.any(dim=1))[:, None]
    gate = None if output_gate is None else clean(output_gate, asked)[:, None]
    if gate is not None and spec.output_gate == "before":
        weighted = weighted * gate
    mass = torch.where(is_row, mass, torch.ones_like(mass))
    out = _normalize(spec.normalizer, weighted, mass, count.clamp(min=1), peak, running, is_exponential, parameters)
    if gate is not None and spec.output_gate != "before":
        out = out * gate
    return torch.where(is_row, out, torch.zeros_like(out))


def _decay(log_decay: Tensor, num_queries: int) -> Tensor:
    """log a_ts for s <= t, row by row: the sum of the log decays after s up to t."""
    rows, row = [], torch.zeros_like(log_decay)
    index = torch.arange(log_decay.shape[0])
    for t in range(num_queries):
        row = torch.where(index < t, row + log_decay[t], torch.zeros_like(row))
        rows.append(row)
    return torch.stack(rows)


def _slots(spec, visible: Tensor, real: Tensor) -> Tensor:
    """Pairs that use exp(x): the last `window` real keys including self, and the first `sinks` real keys."""
    if spec.local is None:
        return visible if isinstance(spec.kernel, Exp) else torch.zeros_like(visible)
    newer = visible.flip(1).cumsum(dim=1).flip(1) - visible.long()  # visible keys after s
    older = real.cumsum(dim=0)[None] - 1  # real keys before s
    return visible & ((newer < spec.local.window) | (older < spec.local.sinks))


def _map(kernel, x: Tensor) -> Tensor:
    if isinstance(kernel, FeatureMap):
        if kernel.name == "elu1":
            x = torch.where(x > 0, x + 1, x.clamp(max=0).exp())
        elif kernel.name == "relu":
            x = x * (x > 0)
        elif kernel.name == "unit":
            zero = (x == 0).all(dim=-1, keepdim=True)
            x = torch.where(
                zero,
                torch.zeros_like(x),
                x / torch.where(zero, torch.ones_like(x), x).pow(2).sum(dim=-1, keepdim=True).sqrt(),
            )
        if kernel.power_of == "features":
            x = x.pow(kernel.power)
    return x


def _scales(kernel, scale: float | None, width: int) -> tuple[float, float]:
    """(of the kernel's product, of exact slots)."""
    if scale is not None:
        return scale, scale
    root = 1 / math.sqrt(width)
    if isinstance(kernel, Power) or (isinstance(kernel, FeatureMap) and not kernel.by_root_width):
        return 1.0, root
    return root, root


def coefficients(kernel: Polynomial) -> dict[int, float]:
    if isinstance(kernel.coefficients, Minimax):
        from termwise.attention.kernels import minimax_coefficients  # itself tested against scipy in test_series.py

        return dict(zip(kernel.orders, minimax_coefficients(kernel.orders, kernel.coefficients.radius), strict=True))
    if isinstance(kernel.coefficients, tuple):
        return dict(zip(kernel.orders, kernel.coefficients, strict=True))
    return {n: 1 / math.factorial(n) for n in kernel.orders}


def _weights(spec, query, key, scale, width, a, log_a, visible, slots) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights of slots and of the tail, both times exp(-M); M; and what a vanishing sum is held against."""
    kernel = spec.kernel
    product_scale, slot_scale = _scales(kernel, scale, width)
    x = query @ key.T * slot_scale
    y = _map(kernel, query) @ _map(kernel, key).T * product_scale
    zero = torch.zeros(query.shape[0], 1, dtype=torch.float64)
    lows = torch.full_like(x, -torch.inf)
    if isinstance(kernel, Exp):
        logs = (
            x if kernel.clamp is None else torch.minimum(x, torch.tensor(kernel.clamp, dtype=torch.float64))
        ) + log_a
    else:
        logs = x + log_a
    logs = torch.where(slots, logs, lows)
    far = visible & ~slots
    a_far = torch.where(far, a, torch.zeros_like(a))
    n_far = a_far.sum(dim=1, keepdim=True)
    has_far = n_far > 2.2e-300  # less has faded: a mean over it would overflow
    middle = zero
    if isinstance(kernel, Polynomial) and kernel.center == "mean":
        middle = (a_far * y).sum(dim=1, keepdim=True) / torch.where(has_far, n_far, torch.ones_like(n_far))
    if isinstance(kernel, (Exp, Drop)):
        tail, has_far = torch.zeros_like(x), torch.zeros_like(has_far)
    elif isinstance(kernel, Polynomial):
        base = torch.where(far, y - middle, torch.zeros_like(y))
        if kernel.orders == tuple(range(80)):
            tail = _series(base)
        else:
            tail = sum(b * base.pow(n) for n, b in coefficients(kernel).items())
    elif isinstance(kernel, Power):
        tail = y.pow(kernel.degree)
    else:
        tail = y.pow(kernel.power) if kernel.power_of == "product" else y
        tail = tail if kernel.clamp is None else torch.minimum(tail, torch.tensor(kernel.clamp, dtype=torch.float64))
    if not bool(slots.any()):
        return torch.zeros_like(x), tail * a_far, zero, n_far
    peak = logs.detach().amax(dim=1, keepdim=True)
    peak = torch.where(has_far, torch.maximum(peak, middle.detach()), peak)
    peak = torch.where(peak == -torch.inf, zero, peak)
    near = torch.where(slots, (torch.where(slots, logs, zero) - peak).exp(), zero)
    gain = torch.where(has_far, (middle - peak).exp(), zero)
    return near, gain * tail * a_far, peak, near.sum(dim=1, keepdim=True) + gain * n_far


def _series(x: Tensor) -> Tensor:
    """Terms 0..79 added as they are: exact enough for the moderate scores of the contract (|x| < 6)."""
    out = term = torch.ones_like(x)
    for n in range(1, 80):
        term = term * x / n
        out = out + term
    return out


def normalize_softmax(normalizer, y: Tensor, parameters: dict[str, Tensor]) -> Tensor:
    """A normalizer of a softmax output (T, e), in its own type until the learned weights come."""
    one = torch.ones_like(y[:, :1])
    return _normalize(normalizer, y, one, one, torch.zeros_like(one), None, True, parameters)


def _normalize(normalizer, weighted, mass, count, peak, running, is_exponential, parameters) -> Tensor:
    true_weighted, true_mass = weighted * peak.exp(), mass * peak.exp()
    if isinstance(normalizer, RowSum):
        if normalizer.floor is not None:
            true_mass = torch.maximum(true_mass, torch.tensor(normalizer.floor, dtype=torch.float64))
        true_mass = true_mass + normalizer.eps
        return true_weighted / (true_mass.detach() if normalizer.detach else true_mass)
    if isinstance(normalizer, Identity):
        return true_weighted
    if isinstance(normalizer, Count):
        return true_weighted / count
    if isinstance(normalizer, RunningGateSum):
        bottom = (
            running
            if normalizer.floor is None
            else torch.maximum(running, torch.tensor(normalizer.floor, dtype=torch.float64))
        )
        return (
            true_weighted
            / torch.where(bottom == 0, torch.ones_like(bottom), bottom)
            / (count if normalizer.times_count else 1)
        )
    # Vector norms: of the softmax output for exponentials, of U exp(-M) / c for polynomials; only eps can tell them apart.
    y = weighted / (mass if is_exponential else count)
    if isinstance(normalizer, L2):
        is_zero = (y == 0).all(dim=1, keepdim=True)
        length = torch.where(is_zero, torch.ones_like(y), y).pow(2).sum(dim=1, keepdim=True).sqrt()
        return torch.where(is_zero, torch.zeros_like(y), y / length) * (y.shape[1] if normalizer.times_width else 1)
    assert isinstance(normalizer, (RMS, Layer))
    if isinstance(normalizer, Layer):
        y = y - y.mean(dim=1, keepdim=True)
    out = y / torch.sqrt(y.pow(2).mean(dim=1, keepdim=True) + normalizer.eps)
    if normalizer.weight:
        out = out * parameters["norm_weight"].double()
    if isinstance(normalizer, Layer) and normalizer.bias:
        out = out + parameters["norm_bias"].double()
    return out
