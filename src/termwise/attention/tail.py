"""Far keys as groups of sums: one low-order recurrent network around each of several centers (math: section 7).

A key belongs to the nearest of m centers; each group g keeps its own count, key sum and moments about a reference key r_g and
is expanded around the mean score of its own keys:
    U = sum_g exp(m_g) sum_{s in g} p(x_s - m_g) v_s,     m_g = q.mean(keys in g)
Order 0 keeps (count, sum k, sum v): the size of one key/value pair. With one center this is the polynomial around the mean, or
around zero.

Axes: B batch, G kv heads, m centers, R query heads a kv head, T queries, N keys, F features, d key width, e value width.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from termwise.attention.centers import nearest_center
from termwise.attention.monomials import features, multiplicities, recentred, total_width, width
from termwise.attention.safe import is_faded
from termwise.attention.spec import AttentionSpec

OUTER_AT_A_TIME = 2**22  # numbers of the products of features and values that stand at once


@dataclass(frozen=True, eq=False)
class Tail:
    """Sums over the keys that have left the exact slots; never changed, `fold_into` returns a new one."""

    scale: float  # of the product inside the kernel
    moments: Tensor  # (B, G, m, F, e) sum phi(k - r) v over the orders that weigh values
    mass: Tensor  # (B, G, m, F') sum phi(k - r); around the mean orders 0 and 1 at least, since they give the mean
    count: Tensor  # (B, G, m)
    reference: Tensor  # (B, G, m, d) reference keys, mapped and scaled; zeros around zero


def moment_orders(spec: AttentionSpec) -> tuple[int, ...]:
    """Orders of the features that values are summed with; around a mean all of 0..P."""
    dense = spec.kernel.dense or ()
    return tuple(range(len(dense))) if spec.kernel.is_centered else tuple(n for n, b in enumerate(dense) if b != 0)


def mass_orders(spec: AttentionSpec) -> tuple[int, ...]:
    """Orders of the features that are summed alone: also order 1 where it gives the mean."""
    orders = moment_orders(spec)
    return tuple(range(max(len(orders), 2))) if spec.kernel.is_centered else orders


def empty_tail(
    spec: AttentionSpec, batch: int, kv_heads: int, key_width: int, value_width: int, scale: float, like: Tensor
) -> Tail:
    """The tail before any key; `like` gives device and accumulation type."""
    groups = (batch, kv_heads, spec.kernel.centers)
    return Tail(
        scale=scale,
        moments=like.new_zeros(*groups, total_width(key_width, moment_orders(spec)), value_width),
        mass=like.new_zeros(*groups, total_width(key_width, mass_orders(spec))),
        count=like.new_zeros(groups),
        reference=like.new_zeros(*groups, key_width),
    )


def fold_into(
    tail: Tail, key: Tensor, value: Tensor, is_real: Tensor, spec: AttentionSpec, centers: Tensor | None
) -> Tail:
    """The tail with keys (B, G, N, d) and values (B, G, N, e) where `is_real` (B or 1, G, N).

    `centers` (G, m, d) in the units of the key; with one center they are the reference key, which is else the first key that
    ever enters. No gradient flows through the choice of a group, nor through the reference.
    """
    if key.shape[2] == 0:
        return tail
    is_real = is_real.expand(key.shape[:3])
    mapped = spec.kernel.map(key) * tail.scale**0.5
    tail = dataclasses.replace(tail, reference=_reference(tail, mapped, is_real, spec, centers))
    num_centers = tail.count.shape[2]
    if num_centers == 1:
        group = torch.zeros_like(is_real, dtype=torch.int64)
    else:
        assert centers is not None
        group = nearest_center(key, centers)
    about = mapped - tail.reference.gather(2, group[..., None].expand_as(key))
    rows = torch.arange(group.shape[0] * group.shape[1], device=key.device).view(*group.shape[:2], 1)
    kept = is_real.flatten()
    place = (rows * num_centers + group).flatten()[kept]
    return _added(tail, about.flatten(0, 2)[kept], value.flatten(0, 2)[kept], place, spec)


def _reference(tail: Tail, mapped: Tensor, is_real: Tensor, spec: AttentionSpec, centers: Tensor | None) -> Tensor:
    """(B, G, m, d): the centers, else the first key of each head that ever enters."""
    if not spec.kernel.is_centered:
        return tail.reference
    if centers is not None:
        given = spec.kernel.map(centers.detach().to(tail.reference)) * tail.scale**0.5
        return given.expand_as(tail.reference)
    first = is_real.to(torch.int8).argmax(dim=2)[..., None, None].expand(-1, -1, 1, mapped.shape[3])
    is_start = (tail.count == 0)[..., None] & is_real.any(dim=2)[..., None, None]
    return torch.where(is_start, mapped.detach().gather(2, first), tail.reference)


def _added(tail: Tail, about: Tensor, value: Tensor, place: Tensor, spec: AttentionSpec) -> Tail:
    """Keys (N, d) about their references and values (N, e) added to the groups `place` (N,) of all heads and sequences.

    Each call's keys are summed by themselves first: added one by one to a long sum they would lose digits.
    """
    shape = tail.moments.shape
    num_groups, num_features = shape[0] * shape[1] * shape[2], shape[3]
    moments = tail.moments.new_zeros(num_groups, num_features * shape[4])
    mass = tail.mass.new_zeros(num_groups, tail.mass.shape[3])
    step = max(1, OUTER_AT_A_TIME // (num_features * shape[4]))
    orders, of_mass = moment_orders(spec), mass_orders(spec)
    for start in range(0, about.shape[0], step):
        part = slice(start, start + step)
        phi = features(about[part], of_mass)
        mass = mass.index_add(0, place[part], phi)
        # Around the mean of order 0 the values need no order 1.
        phi = phi if orders == of_mass else phi[:, :num_features]
        outer = phi[:, :, None] * value[part][:, None, :]
        moments = moments.index_add(0, place[part], outer.flatten(1))
    count = tail.count.new_zeros(num_groups).index_add(0, place, torch.ones_like(about[:, 0]))
    return dataclasses.replace(
        tail,
        moments=tail.moments + moments.view(shape),
        mass=tail.mass + mass.view_as(tail.mass),
        count=tail.count + count.view_as(tail.count),
    )


def read_tail(tail: Tail, query: Tensor, spec: AttentionSpec) -> tuple[Tensor, Tensor, Tensor]:
    """(shift (B, G, R, T, m), value (B, G, R or 1, T or 1, m, e), mass (B, G, R, T, m)) of queries (B, G, R, T, d).

    True sums of a group are exp(shift) times value and mass; an empty group has shift -inf, value and mass 0. The value of
    order 0 is the same for every query: its axes R and T have length 1.
    """
    query = spec.kernel.map(query) * tail.scale**0.5
    count = tail.count[:, :, None, None, :]
    is_empty = is_faded(count)
    middle, offset = _middle(tail, query, is_empty, count, spec)
    value, mass = _group_sums(tail, query, middle, count, spec)
    shift = torch.where(is_empty, torch.full_like(middle, -torch.inf), middle + offset)
    return shift, value, mass


def _middle(tail: Tail, query: Tensor, is_empty: Tensor, count: Tensor, spec: AttentionSpec) -> tuple[Tensor, Tensor]:
    """Mean score of each group about its reference, and the score of the reference itself: their sum is m_g."""
    zero = query.new_zeros(*query.shape[:4], count.shape[-1])
    if not spec.kernel.is_centered:
        return zero, zero
    first = tail.mass[..., 1 : 1 + query.shape[-1]]
    total = torch.einsum("bgrtd,bgmd->bgrtm", query, first)
    middle = torch.where(is_empty, zero, total / torch.where(is_empty, torch.ones_like(count), count))
    return middle, torch.einsum("bgrtd,bgmd->bgrtm", query, tail.reference)


def _group_sums(tail: Tail, query: Tensor, middle: Tensor, count: Tensor, spec: AttentionSpec) -> tuple[Tensor, Tensor]:
    """sum_n c_n <phi_n(q), M_n>, with the coefficients c_n of the polynomial in z = x - q.r of each group and query."""
    dense, orders = spec.kernel.dense, moment_orders(spec)
    assert dense is not None
    if spec.kernel.is_centered and len(dense) == 1:
        return tail.moments[:, :, None, None, :, 0] * dense[0], (dense[0] * count).expand_as(middle)
    phi, start = features(query, orders), 0
    value, mass = query.new_zeros(*middle.shape, tail.moments.shape[4]), torch.zeros_like(middle)
    for n in orders:
        part = slice(start, start + width(query.shape[-1], n))
        coefficient = recentred(dense, -middle, n) if spec.kernel.is_centered else torch.full_like(middle, dense[n])
        weighed = phi[..., part] * torch.from_numpy(multiplicities(query.shape[-1], n)).to(query)
        read = torch.einsum("bgrtf,bgmfe->bgrtme", weighed, tail.moments[..., part, :])
        value = value + coefficient[..., None] * read
        mass = mass + coefficient * torch.einsum("bgrtf,bgmf->bgrtm", weighed, tail.mass[..., part])
        start = part.stop
    if spec.kernel.is_centered and len(dense) == 2:
        # Deviations from a mean sum to nothing: the mass is the count, to the last digit.
        mass = (dense[0] * count).expand_as(middle)
    return value, mass
