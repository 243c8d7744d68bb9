"""How keys enter a state: into the exact buffer, later folded into the moments at fixed absolute positions."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from termwise.attention import reuse
from termwise.attention.backends import loops_for, wants_gradient
from termwise.attention.backends.gradients import folded
from termwise.attention.backends.products import fold_into
from termwise.attention.backends.tables import tables_of
from termwise.attention.buffer import compress, pick
from termwise.attention.growth import room_behind
from termwise.attention.monomials import features
from termwise.attention.safe import is_transformed
from termwise.attention.state import AttentionState
from termwise.attention.stored import FOLD, RESERVE, num_recent

FEATURES_AT_A_TIME = 2**22  # 16 MiB in fp32: beyond that new memory from the system costs more than the arithmetic


@dataclass(frozen=True)
class Keys:
    """New keys in the engine's layout, padded ones zeroed; every tensor in the accumulation type, decay in float64."""

    key: Tensor  # (B, G, S, d)
    value: Tensor  # (B, G, S, e), input gate applied
    rank: Tensor  # (B or 1, S), -1 where padded
    log_decay: Tensor | None  # (B, G, S)
    running_score: Tensor | None  # (B, G, S), -inf where padded

    @property
    def length(self) -> int:
        return self.key.shape[2]

    def slice(self, start: int, stop: int) -> Keys:
        part = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        cut = {
            name: t[:, start:stop] if name == "rank" else t[:, :, start:stop]
            for name, t in part.items()
            if t is not None
        }
        return dataclasses.replace(self, **cut)


def mapped_keys(state: AttentionState, key: Tensor) -> Tensor:
    """Keys as the moments see them: mapped, scaled by sqrt(scale), about the reference."""
    y = state.spec.kernel.map(key) * state.scale**0.5
    return y if state.reference is None else y - state.reference[:, :, None, :]


def extend(state: AttentionState, keys: Keys, reference: Tensor | None) -> AttentionState:
    """The state with `keys` in its buffer, nothing folded yet. Ages are log decays from each key to the last one."""
    count = state.count + (keys.rank >= 0).sum(dim=1)
    if state.reference is not None:
        state = dataclasses.replace(state, reference=_reference(state, keys, reference))
    if keys.log_decay is not None:
        state = state.with_decay()
    new: dict[str, Tensor | None] = {"count": count}
    if state.age is not None:
        decay = (
            torch.zeros_like(keys.key[..., 0], dtype=torch.float64)
            if keys.log_decay is None
            else keys.log_decay.double()
        )
        total = decay.sum(dim=2)
        # Suffix sums: exact zeros at the last key, whatever came before (a long running sum would lose digits).
        age = decay.flip(2).cumsum(dim=2).flip(2) - decay
        assert state.fold_age is not None and state.total_log_decay is not None
        new["age"] = torch.cat([state.age + total[..., None], age], dim=2)
        new["fold_age"] = state.fold_age + total
        new["total_log_decay"] = state.total_log_decay + total
    if keys.running_score is not None:
        assert state.running_total is not None and state.running_gate is not None
        scores = torch.cat([state.running_total[..., None], keys.running_score], dim=2)
        running = torch.logcumsumexp(scores, dim=2)[..., 1:]
        new["running_gate"] = torch.cat([state.running_gate, running], dim=2)
        new["running_total"] = running[..., -1]
    rows = max(state.rank.shape[0], keys.rank.shape[0])
    new["boundary"] = state.boundary.expand(rows)
    return dataclasses.replace(state, **new, **_buffered(state, keys, rows))  # type: ignore[arg-type]


def _buffered(state: AttentionState, keys: Keys, rows: int) -> dict[str, Any]:
    """Key, value and rank of a buffer with the new keys behind its own. A cache that grows token by token is not copied each time."""
    length = state.key.shape[2]
    is_single = keys.length == 1 and length > 0 and rows == state.rank.shape[0] and not state.spec.is_constant_size
    if (
        is_single
        and not is_transformed()
        and not any(t.requires_grad for t in (state.key, state.value, keys.key, keys.value))
    ):
        room = room_behind(state, length + max(FOLD, length // 4))
        room.put(length, keys.key, keys.value, keys.rank)
        return {"room": room, **room.upto(length + 1)}
    return {
        "key": _joined(state.key, keys.key),
        "value": _joined(state.value, keys.value),
        "rank": torch.cat([state.rank.expand(rows, -1), keys.rank.expand(rows, -1)], dim=1),
    }


def as_read(before: AttentionState, keys: Keys, extended: AttentionState) -> tuple[AttentionState, Tensor | None]:
    """The extended state with ages measured to the start of the new keys, and the ages of the new keys themselves.

    The decay from a key to a query is then a sum of what lies between: later tokens leave every bit of it alone.
    """
    if extended.age is None:
        return extended, None
    before = before.with_decay()
    assert before.age is not None
    if keys.log_decay is None:
        age = torch.zeros_like(keys.key[..., 0], dtype=torch.float64)
    else:
        age = -keys.log_decay.double().cumsum(dim=2)
    return dataclasses.replace(extended, age=torch.cat([before.age, age], dim=2), fold_age=before.fold_age), age


def _joined(old: Tensor, new: Tensor) -> Tensor:
    """Old and new buffer slots; without old ones nothing is copied."""
    return new if old.shape[2] == 0 else torch.cat([old, new], dim=2)


def _reference(state: AttentionState, keys: Keys, given: Tensor | None) -> Tensor:
    """A calibrated key, else the first real key that ever enters. The output does not depend on it, so no gradient flows."""
    assert state.reference is not None
    if given is not None:
        candidate = given.expand_as(state.reference)
    else:
        first = _first_real(keys.rank)
        candidate = keys.key.gather(2, first[:, None, None, None].expand(*keys.key.shape[:2], 1, keys.key.shape[3]))[
            :, :, 0
        ]
    mapped = (state.spec.kernel.map(candidate) * state.scale**0.5).detach()
    is_start = (state.count == 0)[:, None, None]
    return torch.where(is_start, mapped, state.reference)


def _first_real(rank: Tensor) -> Tensor:
    return (rank >= 0).to(torch.int8).argmax(dim=1)


def fold_target(state: AttentionState) -> Tensor:
    """The boundary a state of this many keys has: a multiple of 64 that leaves the window and 64 more in the buffer."""
    due = (state.count - (num_recent(state.spec) - 1) - RESERVE).clamp(min=0) // FOLD * FOLD
    return torch.maximum(state.boundary, due)


def fold(state: AttentionState, target: Tensor, is_ours: bool = False) -> AttentionState:
    """Keys of rank below `target` (B or 1,) moved from the buffer into the moments; sinks stay.

    `is_ours`: no other state holds these moments, so they may be added to in place.
    """
    is_real = state.rank >= 0
    if not state.spec.is_constant_size:
        return compress(state, is_real)
    sinks = state.spec.local.sinks if state.spec.local else 0
    is_far = is_real & (state.rank < target[:, None]) & (state.rank >= sinks)
    if bool(is_far.any()):
        anchor = _anchor(state, target)
        state = _fold_moments(state, is_far, anchor, is_ours) if state.has_moments else state
        state = dataclasses.replace(state, fold_age=anchor)
    return compress(dataclasses.replace(state, boundary=target), is_real & ~is_far)


def _anchor(state: AttentionState, target: Tensor) -> Tensor | None:
    """Log decay from the last key folded to now, None without decay. Sequences that fold nothing keep theirs."""
    if state.age is None or state.fold_age is None:
        return None
    is_last = state.rank == target[:, None] - 1
    return torch.where(is_last.any(dim=1, keepdim=True), pick(state.age, is_last), state.fold_age)


def _fold_moments(state: AttentionState, is_far: Tensor, anchor: Tensor | None, is_ours: bool) -> AttentionState:
    assert state.moments is not None and state.mass is not None
    moments, mass, count = state.moments, state.mass, state.decayed_count
    if anchor is not None and state.fold_age is not None:
        faded = (state.fold_age - anchor).clamp(max=0).exp().to(mass.dtype)
        moments, mass, count = moments * faded[..., None, None], mass * faded[..., None], count * faded
    far = compress(state, is_far)
    loops = loops_for(moments, mass, far.key, far.value)
    if loops is not None:
        weight = _fold_weights(far, anchor, slice(None)).expand(*mass.shape[:2], -1)
        tables = tables_of(state.spec, far.key.shape[3], mass.dtype)
        flat = [t.flatten(0, 1) for t in (moments, mass, mapped_keys(state, far.key), far.value, weight)]
        if wants_gradient(*flat):
            new = folded(loops, tables, flat[0], flat[1], flat[2], flat[3], flat[4])
        else:
            is_free = is_ours or moments is not state.moments
            new = (flat[0], flat[1]) if is_free else (reuse.empty(flat[0], *flat[0].shape), torch.empty_like(flat[1]))
            fold_into(loops, tables, flat[0], flat[1], flat[2], flat[3], flat[4], None if is_free else new)
        moments, mass = new[0].view_as(moments), new[1].view_as(mass)
        changed = dataclasses.replace(state, moments=moments, mass=mass, decayed_count=count + weight.sum(dim=2))
        return changed.with_copy()
    step = keys_at_a_time(state)
    for start in range(0, far.key.shape[2], step):
        part = slice(start, start + step)
        weight = _fold_weights(far, anchor, part).expand(*mass.shape[:2], -1)
        phi = features(mapped_keys(state, far.key[:, :, part]), state.orders) * weight[..., None]
        moments = moments + torch.einsum("bgsf,bgse->bgfe", phi, far.value[:, :, part])
        mass, count = mass + phi.sum(dim=2), count + weight.sum(dim=2)
    return dataclasses.replace(state, moments=moments, mass=mass, decayed_count=count).with_copy()


def keys_at_a_time(state: AttentionState) -> int:
    """Keys (or queries) whose features are made at once: at most 64, fewer where they are many, so that a block stays small."""
    per_key = state.mass.numel() if state.mass is not None else 1
    return max(1, min(FOLD, FEATURES_AT_A_TIME // per_key))


def _fold_weights(far: AttentionState, anchor: Tensor | None, part: slice) -> Tensor:
    """Decay of each key to the last one folded, 0 for empty slots: (B or 1, G or 1, keys)."""
    is_real = (far.rank[:, part] >= 0)[:, None]
    if anchor is None or far.age is None:
        return is_real.to(far.key.dtype)
    return (far.age[:, :, part] - anchor[..., None]).masked_fill(~is_real, -torch.inf).exp().to(far.key.dtype)


def merge_folded(first: AttentionState, second: AttentionState) -> AttentionState:
    """Two segments about one reference, ranks and counts written out: see `AttentionState.merge`."""
    has_folded = second.boundary > 0
    gain = torch.ones_like(first.decayed_count)
    if first.fold_age is not None and second.fold_age is not None and second.total_log_decay is not None:
        until_now = first.fold_age + second.total_log_decay
        anchor = torch.where(has_folded[:, None], second.fold_age, until_now)
        gain = (until_now - anchor).exp().to(gain.dtype)
        first = dataclasses.replace(first, fold_age=anchor)
    if first.has_moments and second.has_moments:
        assert (
            first.moments is not None
            and first.mass is not None
            and second.moments is not None
            and second.mass is not None
        )
        first = dataclasses.replace(
            first,
            moments=first.moments * gain[..., None, None] + second.moments,
            mass=first.mass * gain[..., None] + second.mass,
            decayed_count=first.decayed_count * gain + second.decayed_count,
        ).with_copy()
    if first.age is not None and second.age is not None:
        assert first.total_log_decay is not None and second.total_log_decay is not None
        first = dataclasses.replace(
            first,
            age=torch.cat([first.age + second.total_log_decay[..., None], second.age], dim=2),
            total_log_decay=first.total_log_decay + second.total_log_decay,
        )
    if first.running_gate is not None and second.running_gate is not None:
        assert first.running_total is not None and second.running_total is not None
        later = torch.logaddexp(first.running_total[..., None], second.running_gate)
        first = dataclasses.replace(
            first,
            running_gate=torch.cat([first.running_gate, later], dim=2),
            running_total=torch.logaddexp(first.running_total, second.running_total),
        )
    shifted = torch.where(second.rank >= 0, second.rank + first.count[:, None], -1)
    merged = dataclasses.replace(
        first,
        key=torch.cat([first.key, second.key], dim=2),
        value=torch.cat([first.value, second.value], dim=2),
        rank=torch.cat([first.rank, shifted], dim=1),
        count=first.count + second.count,
        boundary=torch.where(has_folded, first.count + second.boundary, first.boundary),
    )
    return fold(merged, fold_target(merged))
