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

from termwise.attention.backends import loops_for, tails
from termwise.attention.centers import nearest_center
from termwise.attention.monomials import features, multiplicities, recentred, total_width, width
from termwise.attention.spec import AttentionSpec

NUMBERS_AT_A_TIME = 2**22  # of features that stand at once: 16 MiB in fp32


@dataclass(frozen=True, eq=False)
class Tail:
    """Sums over the keys that have left the exact slots; never changed, `fold_into` returns a new one."""

    scale: float  # of the product inside the kernel
    moments: Tensor  # (B, G, m, F, e) sum phi(k - r) v over the orders that weigh values
    mass: Tensor  # (B, G, m, F') sum phi(k - r); around the mean orders 0 and 1 at least, since they give the mean
    count: Tensor  # (B, G, m)
    reference: Tensor | None  # (B, G, m, d) reference keys, mapped and scaled; None: zero


def moment_orders(spec: AttentionSpec) -> tuple[int, ...]:
    """Orders of the features that values are summed with; around a mean all of 0..P."""
    dense = spec.kernel.dense or ()
    return tuple(range(len(dense))) if spec.kernel.is_centered else tuple(n for n, b in enumerate(dense) if b != 0)


def mass_orders(spec: AttentionSpec) -> tuple[int, ...]:
    """Orders of the features that are summed alone: also order 1 where it gives the mean."""
    orders = moment_orders(spec)
    return tuple(range(max(len(orders), 2))) if spec.kernel.is_centered else orders


def has_reference(spec: AttentionSpec) -> bool:
    """Whether moments stand about reference keys: around a mean, from order 1. A sum of keys alone loses nothing about zero."""
    return spec.kernel.is_centered and len(spec.kernel.dense or ()) > 1


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
        reference=like.new_zeros(*groups, key_width) if has_reference(spec) else None,
    )


def fold_into(
    tail: Tail, key: Tensor, value: Tensor, is_real: Tensor, spec: AttentionSpec, centers: Tensor | None
) -> Tail:
    """The tail with keys (B, G, N, d) and values (B, G, N, e) where `is_real` (B or 1, G, N).

    `centers` (G, m, d) in the units of the key; with one center they are the reference key, which is else the first key that
    ever enters. No gradient flows through the choice of a group, nor through the reference.
    """
    if key.numel() == 0:
        return tail
    is_real = is_real.expand(key.shape[:3])
    mapped = spec.kernel.map(key) * tail.scale**0.5
    group = torch.zeros_like(is_real, dtype=torch.int64)
    if tail.count.shape[2] > 1:
        assert centers is not None
        group = nearest_center(key, centers)
    if tail.reference is not None:
        reference = _reference(tail.reference, tail.count, mapped, is_real, spec, centers, tail.scale)
        tail = dataclasses.replace(tail, reference=reference)
        mapped = mapped - reference.gather(2, group[..., None].expand_as(key))
    num_groups, rows = tail.count.shape[2], range(key.shape[0])
    if num_groups == 1 or len(rows) == 1:
        return _added(tail, *_sorted(mapped, value, is_real, group, num_groups), spec)
    # Row by row: a product as wide as the largest group of any row would add up a document's keys in an order that depends on others.
    cut = ((mapped[b : b + 1], value[b : b + 1], is_real[b : b + 1], group[b : b + 1]) for b in rows)
    done = [_added(_row(tail, b), *_sorted(*one, num_groups), spec) for b, one in zip(rows, cut, strict=True)]
    moments, mass, count = (torch.cat(sums) for sums in zip(*((r.moments, r.mass, r.count) for r in done), strict=True))
    return dataclasses.replace(tail, moments=moments, mass=mass, count=count)


def _row(tail: Tail, b: int) -> Tail:
    """One sequence of the batch."""
    reference = None if tail.reference is None else tail.reference[b : b + 1]
    return Tail(tail.scale, tail.moments[b : b + 1], tail.mass[b : b + 1], tail.count[b : b + 1], reference)


def _reference(
    before: Tensor,
    count: Tensor,
    mapped: Tensor,
    is_real: Tensor,
    spec: AttentionSpec,
    centers: Tensor | None,
    scale: float,
) -> Tensor:
    """(B, G, m, d): the centers, else the first key of each head that ever enters. A group with keys keeps the one it has."""
    if centers is not None:
        given = spec.kernel.map(centers.detach().to(before)) * scale**0.5
        return torch.where((count == 0)[..., None], given, before)
    first = is_real.to(torch.int8).argmax(dim=2)[..., None, None].expand(-1, -1, 1, mapped.shape[3])
    is_start = (count == 0)[..., None] & is_real.any(dim=2)[..., None, None]
    return torch.where(is_start, mapped.detach().gather(2, first), before)


def _sorted(
    about: Tensor, value: Tensor, is_real: Tensor, group: Tensor, num_groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys (B, G, m, n, d), values (B, G, m, n, e) and whether they are there (B, G, m, n), each group's own in order."""
    member = (group[..., None] == torch.arange(num_groups, device=group.device)) & is_real[..., None]
    longest = max(int(member.sum(dim=2).max()), 1)
    place = group * longest + (member.to(torch.int64).cumsum(dim=2) - 1).gather(3, group[..., None])[..., 0]
    # What is no real key goes into a place behind all others, which is cut off.
    place = torch.where(is_real, place, num_groups * longest)[..., None]

    def spread(rows: Tensor) -> Tensor:
        fresh = rows.new_zeros(*rows.shape[:2], num_groups * longest + 1, rows.shape[3])
        filled = fresh.scatter(2, place.expand_as(rows), rows)[:, :, :-1]
        return filled.unflatten(2, (num_groups, longest))

    return spread(about), spread(value), spread(is_real[..., None].to(about.dtype))[..., 0]


def _added(tail: Tail, about: Tensor, value: Tensor, weight: Tensor, spec: AttentionSpec) -> Tail:
    """Sorted keys about their references and their values added to the sums, in one product for each group."""
    orders, of_mass = moment_orders(spec), mass_orders(spec)
    count = tail.count + weight.sum(dim=3)
    loops = loops_for(tail.moments, tail.mass, about, value)
    if loops is not None and orders[-1] > 1:
        moments, mass = tails.added(loops, spec, tail.moments, tail.mass, about, value, weight)
        return dataclasses.replace(tail, moments=moments, mass=mass, count=count)
    num_features = tail.moments.shape[3]
    moments, mass = torch.zeros_like(tail.moments), torch.zeros_like(tail.mass)
    for part in _parts(about.shape[3], tail.mass.numel()):
        phi = features(about[:, :, :, part], of_mass) * weight[:, :, :, part, None]
        mass = mass + phi.sum(dim=3)
        # Values need no order 1 that is kept for the mean alone.
        phi = phi if orders == of_mass else phi[..., :num_features]
        moments = moments + phi.transpose(3, 4) @ value[:, :, :, part]
    return dataclasses.replace(tail, moments=tail.moments + moments, mass=tail.mass + mass, count=count)


def _parts(length: int, per_row: int) -> list[slice]:
    """Rows 0..length, so many at a time that what is made of them stays small."""
    step = max(1, NUMBERS_AT_A_TIME // max(per_row, 1))
    return [slice(start, start + step) for start in range(0, length, step)]


@dataclass(frozen=True, eq=False)
class Reading:
    """What queries see of a tail: true sums are sum_g exp(shift_g) (value_g, mass_g) over the groups g."""

    tail: Tail
    spec: AttentionSpec
    query: Tensor  # (B, G, R, T, d) mapped and scaled
    middle: Tensor  # (B, G, R, T, m) mean score of each group about its reference
    shift: Tensor  # (B, G, R, T, m) the mean score itself, 0 around zero; -inf of an empty group
    mass: Tensor  # (B, G, R, T, m)
    value: Tensor | None = None  # (B, G, R, T, e) of one group, where it was made together with the mass

    def weighted(self, gain: Tensor) -> Tensor:
        """sum_g gain_g value_g, (B, G, R, T, e); the gain (B, G, R, T, m) is exp(shift), up to a factor of each query."""
        if self.value is not None:
            return gain * self.value
        moments = self.tail.moments.flatten(2, 3)
        orders = moment_orders(self.spec)
        per_query = gain[..., 0, :].numel() * self.tail.moments.shape[3]
        found = []
        for part in _parts(gain.shape[3], per_query):
            phi = _order_by_order(self.query[..., part, :], orders)
            factors = [gain[..., part, :] * c for c in _coefficients(self.spec, self.middle[..., part, :], orders)]
            joined = [factor[..., None] * x[..., None, :] for factor, x in zip(factors, phi, strict=True)]
            weighed = torch.cat(joined, dim=-1).flatten(-2)
            found.append((weighed.flatten(2, 3) @ moments).unflatten(2, weighed.shape[2:4]))
        return found[0] if len(found) == 1 else torch.cat(found, dim=3)


def read_tail(tail: Tail, query: Tensor, spec: AttentionSpec) -> Reading:
    """What queries (B, G, R, T, d) see of the tail; an empty group has shift -inf and mass 0."""
    query = spec.kernel.map(query) * tail.scale**0.5
    count = tail.count[:, :, None, None, :]
    is_empty = count == 0
    shift = middle = query.new_zeros(*query.shape[:4], count.shape[-1])
    if spec.kernel.is_centered:
        first = tail.mass[..., 1 : 1 + query.shape[-1]]
        total = torch.einsum("bgrtd,bgmd->bgrtm", query, first)
        middle = torch.where(is_empty, shift, total / torch.where(is_empty, torch.ones_like(count), count))
        shift = middle
    if tail.reference is not None:
        shift = middle + torch.einsum("bgrtd,bgmd->bgrtm", query, tail.reference)
    shift = torch.where(is_empty, torch.full_like(shift, -torch.inf), shift)
    loops = loops_for(query, tail.moments, tail.mass, middle)
    if loops is not None and tail.count.shape[2] == 1 and moment_orders(spec)[-1] > 1:
        value, mass = tails.read(loops, spec, tail.moments, tail.mass, query, middle)
        return Reading(tail, spec, query, middle, shift, mass, value)
    return Reading(tail, spec, query, middle, shift, _group_mass(tail, query, middle, spec))


def _group_mass(tail: Tail, query: Tensor, middle: Tensor, spec: AttentionSpec) -> Tensor:
    """Sum of the polynomial over each group, (B, G, R, T, m)."""
    dense, orders = spec.kernel.dense, moment_orders(spec)
    assert dense is not None
    if spec.kernel.is_centered and len(dense) < 3:
        # Deviations from a mean sum to nothing: the mass is the count, to the last digit.
        return (dense[0] * tail.count)[:, :, None, None, :].expand_as(middle)
    found = []
    for part in _parts(query.shape[3], query[..., 0, 0].numel() * tail.mass.shape[3]):
        total, start = torch.zeros_like(middle[..., part, :]), 0
        phi = _order_by_order(query[..., part, :], orders)
        for x, c in zip(phi, _coefficients(spec, middle[..., part, :], orders), strict=True):
            kept = tail.mass[..., start : start + x.shape[-1]]
            total = total + c * torch.einsum("bgrtf,bgmf->bgrtm", x, kept)
            start += x.shape[-1]
        found.append(total)
    return torch.cat(found, dim=3)


def _order_by_order(query: Tensor, orders: tuple[int, ...]) -> list[Tensor]:
    """Monomials of the query times their multiplicities, one tensor an order."""
    d = query.shape[-1]
    blocks = features(query, orders).split([width(d, n) for n in orders], dim=-1)
    return [x * torch.from_numpy(multiplicities(d, n)).to(query) for x, n in zip(blocks, orders, strict=True)]


def _coefficients(spec: AttentionSpec, middle: Tensor, orders: tuple[int, ...]) -> list[Tensor]:
    """c_n of sum_n c_n z^n = p(z - middle), z the score about a group's reference: one (B, G, R, T, m) an order."""
    dense = spec.kernel.dense
    assert dense is not None
    if not spec.kernel.is_centered:
        return [torch.full_like(middle, dense[n]) for n in orders]
    return [recentred(dense, -middle, n) for n in orders]
