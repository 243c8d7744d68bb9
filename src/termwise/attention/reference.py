"""The definition, in float64: a loop over sequences and queries, every sum written out. The oracle of all tests.

Slow and obvious on purpose: it shares no arithmetic with the other forms (no blocks, no monomial recursion, no ranks).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from termwise.attention.call import Call, prepare
from termwise.attention.kernels import Exp, Polynomial
from termwise.attention.monomials import exponents
from termwise.attention.normalizers import VANISHING, Sums
from termwise.attention.safe import is_faded
from termwise.attention.spec import AttentionSpec
from termwise.attention.state import FOLD, RESERVE, AttentionState, num_recent, stored_orders


def attend_reference(call: Call) -> tuple[Tensor, AttentionState | None]:
    """Outputs (B, T, H, e) in float64, then in the query's type; the final state likewise in float64."""
    if call.spec.evicts:
        from termwise.attention.evicting_reference import attend_evicting

        return attend_evicting(call)
    query = call.queries.query.double()
    rows = [_sequence(call, b) for b in range(query.shape[0])]
    out = torch.stack(rows)  # (B, G, R, T, e)
    state = reference_state(call) if call.output_final_state else None
    return call.restore(out), state


def _sequence(call: Call, b: int) -> Tensor:
    real_key = call.keys.rank[min(b, call.keys.rank.shape[0] - 1)] >= 0
    real_query = None if call.queries.is_real is None else call.queries.is_real[b]
    outputs = []
    for t in range(call.num_queries):
        visible = [s for s in range(call.num_keys) if bool(real_key[s]) and (s <= t or not call.causal)]
        is_padded = real_query is not None and not bool(real_query[t])
        if is_padded or not visible:
            outputs.append(
                torch.zeros_like(call.queries.query[b, :, :, t, :1]).double()
                + torch.zeros_like(call.keys.value[b, :, 0, None, :]).double()
            )
        else:
            outputs.append(_row(call, b, t, visible))
    return torch.stack(outputs, dim=2)


def _row(call: Call, b: int, t: int, visible: list[int]) -> Tensor:
    """One query: (G, R, e)."""
    spec, local = call.spec, call.spec.local
    query, key = call.queries.query[b, :, :, t].double(), call.keys.key[b].double()[:, visible]
    value = call.keys.value[b].double()[:, visible]
    scores = torch.einsum("grd,gsd->grs", query, key) * call.state.slot_scale
    products = torch.einsum("grd,gsd->grs", spec.kernel.map(query), spec.kernel.map(key)) * call.state.scale
    log_decay = torch.zeros(key.shape[0], 1, len(visible), dtype=torch.float64)
    if call.keys.log_decay is not None:
        for i, s in enumerate(visible):
            log_decay[:, 0, i] = call.keys.log_decay[b, :, s + 1 : t + 1].sum(dim=-1)
    places = range(len(visible))
    if isinstance(spec.kernel, Exp):
        near = list(places)
    elif local is not None:
        near = [i for i in places if i >= len(visible) - local.window or i < local.sinks]
    else:
        near = []
    far = [i for i in places if i not in near]
    sums = _weigh(call, scores, products, log_decay, value, near, far, count=len(visible))
    if spec.needs_running_gate:
        running = call.parameters["running_gate_score"][b].double()[visible]
        sums = dataclasses.replace(sums, running_gate=torch.logsumexp(running, dim=0)[:, None, None])
    gate = None if call.queries.gate is None else call.queries.gate[b, :, :, t, None].double()
    parameters = {
        name: p.double().squeeze(-2) if name.startswith("norm_") else p.double() for name, p in call.parameters.items()
    }
    if gate is not None and spec.output_gate == "before":
        return spec.normalizer(dataclasses.replace(sums, weighted=sums.weighted * gate), parameters)
    out = spec.normalizer(sums, parameters)
    return out if gate is None else out * gate


def _weigh(
    call: Call,
    scores: Tensor,
    products: Tensor,
    log_decay: Tensor,
    value: Tensor,
    near: list[int],
    far: list[int],
    count: int,
) -> Sums:
    """U, Z and n of one query over its exact slots `near` and its tail `far`, scaled by exp(-M)."""
    kernel = call.spec.kernel
    is_sum_of_exponentials = isinstance(kernel, Exp) or kernel.dense == ()
    decay = log_decay.exp()
    exponents_near = (
        scores.clamp(max=kernel.clamp) if isinstance(kernel, Exp) and kernel.clamp is not None else scores
    ) + log_decay
    middle = torch.zeros_like(scores[..., :1])
    tail = torch.zeros_like(scores)
    far_count, has_far = torch.zeros_like(middle), torch.zeros_like(middle, dtype=torch.bool)
    if far:
        far_decay = decay[..., far]
        far_count = far_decay.sum(dim=-1, keepdim=True).expand_as(middle)
        has_far = ~is_faded(far_count)
        if kernel.is_centered:
            total = (far_decay * products[..., far]).sum(dim=-1, keepdim=True)
            middle = torch.where(has_far, total / torch.where(has_far, far_count, 1), middle)
        tail = torch.zeros_like(scores).index_copy(
            2, torch.tensor(far), kernel_weights(kernel, products[..., far] - middle) * far_decay
        )
    candidates = [exponents_near[..., i : i + 1] for i in near]
    if near and far and not is_sum_of_exponentials:
        candidates.append(torch.where(has_far, middle, torch.full_like(middle, -torch.inf)))
    peak = torch.cat(candidates, dim=-1).amax(dim=-1, keepdim=True).detach() if candidates else torch.zeros_like(middle)
    gain = (middle - peak).exp() if near else torch.ones_like(middle)
    weights = tail * torch.where(has_far, gain, torch.zeros_like(gain))
    scale_of_mass = torch.where(has_far, gain * far_count, torch.zeros_like(gain))
    if near:
        slots = (exponents_near[..., near] - peak).exp()
        weights = weights.index_add(2, torch.tensor(near), slots)
        scale_of_mass = scale_of_mass + slots.sum(dim=-1, keepdim=True)
    mass = weights.sum(dim=-1, keepdim=True)
    low = torch.zeros_like(mass) if is_sum_of_exponentials else VANISHING * scale_of_mass.detach()
    if call.row_counts is not None:
        flat, least = mass.detach().reshape(1, -1, 1), low.reshape(1, -1, 1)
        call.row_counts.add(torch.ones_like(flat, dtype=torch.bool), flat.abs() < least, flat < 0)
    if not is_sum_of_exponentials and call.spec.normalizer.divides_by_mass:
        mass = torch.where(mass.abs() < low, torch.where(mass < 0, -low, low), mass)
    return Sums(
        weighted=torch.einsum("grs,gse->gre", weights, value),
        mass=mass,
        count=torch.tensor(float(count), dtype=torch.float64),
        log_scale=peak,
        is_mass_positive=is_sum_of_exponentials,
    )


def kernel_weights(kernel, products: Tensor) -> Tensor:
    """The kernel's polynomial as a plain sum of powers (long series by their own exact method)."""
    if kernel.dense is None or (isinstance(kernel, Polynomial) and kernel.is_long_series):
        return kernel.weights(products)
    return sum((b * products**n for n, b in enumerate(kernel.dense)), torch.zeros_like(products))


def reference_state(call: Call) -> AttentionState:
    """The final state by its definition: every moment a sum over the folded keys, every monomial a plain product."""
    parts = [_reference_sequence(call, b) for b in range(call.keys.key.shape[0])]
    return AttentionState.stack(parts) if len(parts) > 1 else parts[0]


def _reference_sequence(call: Call, b: int) -> AttentionState:
    spec, keys = call.spec, call.keys
    real = [s for s in range(call.num_keys) if int(keys.rank[min(b, keys.rank.shape[0] - 1), s]) >= 0]
    recent, sinks = num_recent(spec), spec.local.sinks if spec.local else 0
    num_folded = 0
    if spec.is_constant_size:
        num_folded = max(0, len(real) - (recent - 1) - RESERVE) // FOLD * FOLD if call.causal else len(real)
    folded = [s for rank, s in enumerate(real) if sinks <= rank < num_folded]
    kept = [s for rank, s in enumerate(real) if rank < sinks or rank >= num_folded] if spec.is_constant_size else real
    key, value = keys.key[b].double(), keys.value[b].double()
    decay = torch.zeros_like(key[..., 0]) if keys.log_decay is None else keys.log_decay[b].double()
    until = {s: decay[:, s + 1 :].sum(dim=-1) for s in real}
    anchor = until[real[num_folded - 1]] if folded else decay.sum(dim=-1)
    mapped = spec.kernel.map(key) * call.state.scale**0.5
    reference = None
    if spec.has_tail and spec.kernel.is_centered:
        first = mapped[:, real[0]] if real else torch.zeros_like(mapped[:, 0])
        if call.reference is not None:
            first = spec.kernel.map(call.reference[0].double()) * call.state.scale**0.5
        reference = first.detach()
        mapped = mapped - reference[:, None]
    moments, mass = (
        moments_of(stored_orders(spec), mapped, value, {s: (until[s] - anchor).exp() for s in folded})
        if spec.has_tail
        else (None, None)
    )
    running = None
    if spec.needs_running_gate:
        scores = call.parameters["running_gate_score"][b].double()
        running = {s: torch.logsumexp(scores[[r for r in real if r <= s]], dim=0) for s in real}
    decayed_count = torch.zeros_like(key[None, :, 0, 0])
    if folded and spec.has_tail:
        decayed_count = torch.stack([(until[s] - anchor).exp() for s in folded]).sum(dim=0)[None]
    has_decay = keys.log_decay is not None
    return AttentionState(
        spec=spec, scale=call.state.scale, slot_scale=call.state.slot_scale,
        count=torch.tensor([len(real)]), boundary=torch.tensor([num_folded]),
        key=key[None, :, kept], value=value[None, :, kept], rank=torch.tensor([[real.index(s) for s in kept]]).reshape(1, len(kept)),
        moments=moments, mass=mass,
        decayed_count=decayed_count,
        reference=None if reference is None else reference[None],
        age=torch.stack([until[s] for s in kept], dim=-1)[None] if has_decay else None,
        fold_age=anchor[None] if has_decay else None,
        total_log_decay=decay.sum(dim=-1)[None] if has_decay else None,
        running_gate=torch.stack([running[s] for s in kept], dim=-1)[None] if running else None,
        running_total=running[real[-1]][None] if running else None,
    )  # fmt: skip


def moments_of(
    orders: tuple[int, ...], mapped: Tensor, value: Tensor, weight: dict[int, Tensor]
) -> tuple[Tensor, Tensor]:
    """Moments (1, G, F, e) and mass (1, G, F) of the keys in `weight`, from mapped keys (G, S, d) and values (G, S, e)."""
    names = list(itertools.chain.from_iterable(exponents(mapped.shape[-1], n) for n in orders))
    moments, mass = [], []
    for name in names:
        terms = [w * math.prod((mapped[:, s, i] for i in name), start=torch.ones_like(w)) for s, w in weight.items()]
        zero = torch.zeros_like(value[:, 0])
        moments.append(sum((term[:, None] * value[:, s] for term, s in zip(terms, weight, strict=True)), zero))
        mass.append(sum(terms, zero[:, 0]))
    return torch.stack(moments, dim=1)[None], torch.stack(mass, dim=1)[None]


def reference_rows(
    query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec, rows: Sequence[int], **options: Any
) -> Tensor:
    """Outputs (B, rows, H, e) of single queries of a causal sequence in float64: the definition where all rows would take too long.

    `options`: gates, decay, scale and parameters as for `attend`. Errors: ValueError where a row depends on what earlier ones
    have read (`evict_every`).
    """
    if spec.evicts:
        raise ValueError(
            f"{spec.short_name}: which keys a row sees depends on all rows before; use form='reference', or form='parallel' in float64"
        )
    names = ("scale", "key_mask", "input_gate", "output_gate", "log_decay", "parameters", "initial_state", "chunk_size")
    given: dict[str, Any] = dict.fromkeys((*names, "row_counts", "query_mask")) | options
    call = prepare(query, key, value, spec, causal=True, output_final_state=False, form="reference", **given)
    of_batch = [torch.stack([_row(call, b, t, list(range(t + 1))) for t in rows], dim=2) for b in range(query.shape[0])]
    return torch.stack(of_batch).permute(0, 3, 1, 2, 4).flatten(2, 3)
