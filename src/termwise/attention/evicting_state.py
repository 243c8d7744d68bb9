"""Exact slots that keys leave at fixed positions only, and the part of an AttentionState that holds them (math: section 6).

When t real keys have been seen, the new one included, and t is a multiple of `evict_every`, of all held keys the last
`window`, the first `sinks` and the `heavy` others of greatest received weight stay; the rest goes into the tail, before the
query reads. Heads keep different keys but equally many, so `rank` has a head axis: (B, G, L).

    received  (B, G, L)     weight that each slot has been given (w / Z, summed over the group's queries)
Only where the past is recorded, so that queries can be taken back:
    given     (B, G, n, L)  what each query has given since keys last left, apart from `received`; `given_rank` (B or 1, n)
    past                    the state before keys last left: rollback goes on from there
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from termwise.attention.folding import Keys
from termwise.attention.state import RESERVE, AttentionState
from termwise.attention.tail import Tail, fold_into


def tail_of(state: AttentionState) -> Tail | None:
    """What has left the slots; None where it is dropped."""
    if state.moments is None or state.mass is None:
        return None
    return Tail(state.scale, state.moments, state.mass, state.decayed_count, state.reference)


def recording(state: AttentionState, records_past: bool) -> AttentionState:
    """The state that keeps what each query gives from now on, or adds it to what was received: then it cannot be taken back."""
    if state.received is None or records_past == (state.given is not None):
        return state
    if state.given is None:
        batch, kv_heads, length = state.received.shape
        given, rank = state.received.new_zeros(batch, kv_heads, 0, length), state.count.new_zeros(1, 0)
        return dataclasses.replace(state, given=given, given_rank=rank)
    return dataclasses.replace(state, received=so_far(state), given=None, given_rank=None)


def so_far(state: AttentionState) -> Tensor:
    """(B, G, L): the weight that each slot has been given until now."""
    assert state.received is not None
    return state.received if state.given is None else state.received + state.given.sum(dim=2)


def noting(state: AttentionState, rank: Tensor, given: Tensor) -> AttentionState:
    """The state with what the queries of ranks `rank` (B or 1, T) have given, (B, G, T, L)."""
    assert state.received is not None
    if state.given is None or state.given_rank is None:
        return dataclasses.replace(state, received=state.received + given.sum(dim=2))
    rows = max(rank.shape[0], state.given_rank.shape[0])
    ranks = torch.cat([state.given_rank.expand(rows, -1), rank.expand(rows, -1)], dim=1)
    # Most blocks are whole: nothing was given before them, and nothing is copied.
    given = torch.cat([state.given, given], dim=2) if state.given.shape[2] else given
    return dataclasses.replace(state, given=given, given_rank=ranks)


def append(state: AttentionState, keys: Keys) -> AttentionState:
    """The state with `keys` in its slots, nothing leaves."""
    batch, kv_heads, new = keys.key.shape[:3]
    rank = keys.rank[:, None, :].expand(batch, kv_heads, new)
    changed: dict[str, Any] = {
        "count": state.count + (keys.rank >= 0).sum(dim=1),
        "key": torch.cat([state.key, keys.key], dim=2),
        "value": torch.cat([state.value, keys.value], dim=2),
        "rank": torch.cat([state.rank, rank], dim=2),
    }
    for name in ("received", "given"):
        if (weights := getattr(state, name)) is not None:
            changed[name] = pad(weights, (0, new))
    return dataclasses.replace(state, **changed)


def staying(state: AttentionState, is_due: Tensor) -> Tensor:
    """(B, G, L): the slots that stay in the sequences `is_due` (B or 1,), whose next key makes the count a multiple."""
    local = state.spec.local
    assert local is not None
    is_real, count = state.rank >= 0, (state.count + 1)[:, None, None]
    is_near = (state.rank >= count - local.window) | (state.rank < local.sinks)
    stays = is_real & (is_near | ~is_due[:, None, None])
    if state.received is None:
        return stays
    received = so_far(state).masked_fill(stays | ~is_real, -torch.inf)
    # Slots stand in the order of their keys, so that a stable sort leaves ties to the older one.
    heaviest = received.argsort(dim=2, descending=True, stable=True)[..., : local.heavy]
    return stays | (torch.zeros_like(stays).scatter(2, heaviest, True) & is_real)


def evict(state: AttentionState, is_due: Tensor, centers: Tensor | None) -> AttentionState:
    """The state after keys have left the slots of the sequences `is_due` (B or 1,), just before the next key enters."""
    stays = staying(state, is_due)
    state = into_tail(state, (state.rank >= 0) & ~stays, centers)
    return compact(counted(state, is_due), stays)


def counted(state: AttentionState, is_due: Tensor) -> AttentionState:
    """Keys have left the sequences `is_due`: what had been given until now is received."""
    changed: dict[str, Any] = {"boundary": torch.where(is_due, state.count + 1, state.boundary)}
    if state.received is not None and state.given_rank is not None:
        changed["received"] = torch.where(is_due[:, None, None], so_far(state), state.received)
        changed["given_rank"] = state.given_rank.masked_fill(is_due[:, None], -1)
    return _compact_given(dataclasses.replace(state, **changed))


def into_tail(state: AttentionState, leaves: Tensor, centers: Tensor | None) -> AttentionState:
    """The state whose tail also holds the slots `leaves` (B, G, L), which are left where they are."""
    tail, number = tail_of(state), int(leaves.sum(dim=2).max()) if leaves.numel() else 0
    if tail is None or number == 0:
        return state
    places = _last(leaves, number)
    key, value = _slots(state.key, places), _slots(state.value, places)
    tail = fold_into(tail, key, value, leaves.gather(2, places), state.spec, centers)
    return dataclasses.replace(
        state, moments=tail.moments, mass=tail.mass, decayed_count=tail.count, reference=tail.reference
    )


def _last(chosen: Tensor, number: int) -> Tensor:
    """Places of the last `number` slots when the chosen ones are moved behind all others, each in their order."""
    if int(chosen.sum()) == number * chosen.shape[0] * chosen.shape[1]:
        return chosen.nonzero()[:, 2].view(*chosen.shape[:2], number)
    return chosen.to(torch.int8).argsort(dim=2, stable=True)[..., chosen.shape[2] - number :]


def _slots(tensor: Tensor, places: Tensor) -> Tensor:
    """Rows `places` (B, G, L') of a (B, G, L, width) tensor; whole rows are copied, which gather does not do."""
    batch, kv_heads, length, _ = tensor.shape
    heads = torch.arange(batch * kv_heads, device=places.device).view(batch, kv_heads, 1)
    return (
        tensor.flatten(0, 2).index_select(0, (heads * length + places).flatten()).view(*places.shape, tensor.shape[3])
    )


def compact(state: AttentionState, stays: Tensor) -> AttentionState:
    """The slots `stays` (B, G, L) in their order, empty ones in front where sequences differ."""
    if bool(stays.all()):
        return state
    length = int(stays.sum(dim=2).max())
    places = _last(stays, length)
    changed: dict[str, Any] = {
        "key": _slots(state.key, places),
        "value": _slots(state.value, places),
        "rank": torch.where(stays.gather(2, places), state.rank.gather(2, places), -1),
    }
    if state.received is not None:
        changed["received"] = state.received.gather(2, places)
    if state.given is not None:
        across = places[:, :, None].expand(-1, -1, state.given.shape[2], -1)
        changed["given"] = state.given.gather(3, across)
    return dataclasses.replace(state, **changed)


def _compact_given(state: AttentionState) -> AttentionState:
    """The same for the queries that still count."""
    if state.given is None or state.given_rank is None or bool((state.given_rank >= 0).all()):
        return state
    counts = state.given_rank >= 0
    number = int(counts.sum(dim=1).max())
    places = counts.to(torch.int8).argsort(dim=1, stable=True)[:, counts.shape[1] - number :]
    rank = torch.where(counts.gather(1, places), state.given_rank.gather(1, places), -1)
    index = places[:, None, :, None].expand(*state.given.shape[:2], -1, state.given.shape[3])
    given = state.given.gather(2, index) * (rank >= 0)[:, None, :, None]
    return dataclasses.replace(state, given=given, given_rank=rank)


def settled(state: AttentionState) -> AttentionState:
    """The state without the empty slots that padding has left."""
    return compact(_compact_given(state), state.rank >= 0)


def remembering(after: AttentionState, before: AttentionState) -> AttentionState:
    """`after` with `before` as its past, and of that so much that any 64 tokens can be taken back."""
    # Where keys have left, the boundary is the count with the key that comes.
    return _reaching(dataclasses.replace(after, past=before), torch.maximum(after.count, after.boundary) - RESERVE)


def _reaching(state: AttentionState, oldest: Tensor) -> AttentionState:
    if state.past is None:
        return state
    past = None if bool((state.boundary <= oldest).all()) else _reaching(state.past, oldest)
    return dataclasses.replace(state, past=past)


def rolled_back(state: AttentionState, num_tokens: int) -> AttentionState:
    """The state before the last `num_tokens` tokens: from its own slots, or from a recorded past."""
    target = state.count - num_tokens
    found: AttentionState | None = state
    while found is not None and bool((found.boundary > target).any()):
        found = found.past
    if found is not None and bool(((found.count >= target) & (target >= 0) & _knows(found, target)).all()):
        return _cut(found, target)
    if state.batch_size > 1:
        return AttentionState.stack([rolled_back(row, num_tokens) for row in state.split()])
    lost = f"exact slots were given up at key {int(state.boundary.max())}"
    if found is not None and not bool(_knows(found, target).all()):
        lost = "what they gave each slot was not kept apart"
    raise ValueError(
        f"rollback: {num_tokens} tokens cannot be taken back from {state.count.tolist()} keys: {lost}; up to {RESERVE} tokens can "
        "be where the past is recorded: attend(..., record_past=True), cache.activate_past_recording(); or keep an earlier state"
    )


def _knows(state: AttentionState, target: Tensor) -> Tensor:
    """(B or 1,): whether what each query from rank `target` on has given can be taken back."""
    if state.received is None:
        return torch.ones_like(target, dtype=torch.bool)
    ranks = state.count.new_zeros(1, 0) if state.given_rank is None else state.given_rank
    return (ranks >= target[:, None]).sum(dim=1) == state.count - target


def _cut(state: AttentionState, target: Tensor) -> AttentionState:
    changed: dict[str, Any] = {"count": target}
    if state.given_rank is not None:
        changed["given_rank"] = state.given_rank.masked_fill(state.given_rank >= target[:, None], -1)
    stays = (state.rank >= 0) & (state.rank < target[:, None, None])
    return compact(_compact_given(dataclasses.replace(state, **changed)), stays)


def padded(state: AttentionState, length: int, num_given: int) -> AttentionState:
    """Empty slots and queries in front, up to `length` and `num_given`."""
    missing = length - state.key.shape[2]
    changed: dict[str, Any] = {
        "key": pad(state.key, (0, 0, missing, 0)),
        "value": pad(state.value, (0, 0, missing, 0)),
        "rank": pad(state.rank, (missing, 0), value=-1),
    }
    if state.received is not None:
        changed["received"] = pad(state.received, (missing, 0))
    if state.given is not None and state.given_rank is not None:
        rows = num_given - state.given.shape[2]
        changed["given"] = pad(state.given, (missing, 0, rows, 0))
        changed["given_rank"] = pad(state.given_rank, (rows, 0), value=-1)
    return dataclasses.replace(state, **changed)
