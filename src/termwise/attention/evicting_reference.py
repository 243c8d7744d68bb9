"""The definition of slots that keys leave at fixed positions, in float64: a loop over queries and heads, keys in plain lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from termwise.attention.call import Call
from termwise.attention.centers import TIE
from termwise.attention.kernels import Drop
from termwise.attention.normalizers import VANISHING, Sums
from termwise.attention.reference import kernel_weights, moments_of
from termwise.attention.spec import AttentionSpec
from termwise.attention.state import AttentionState
from termwise.attention.tail import has_reference, mass_orders, moment_orders


@dataclass
class Head:
    """The keys of one kv head, by their column."""

    held: list[int] = field(default_factory=list)  # exact slots, the oldest first
    left: dict[int, int] = field(default_factory=dict)  # the others, as they left: the group of each
    received: dict[int, float] = field(default_factory=dict)  # from all queries, or from those before `given`
    given: list[dict[int, float]] = field(default_factory=list)  # by each query since keys last left

    def enter(self, column: int, rank: dict[int, int], spec: AttentionSpec, group_of: Callable[[int], int]) -> None:
        """One more key; if it makes the count a multiple of `evict_every`, others leave first, each to its group."""
        local, count = spec.local, rank[column] + 1
        assert local is not None and local.evict_every is not None
        if count % local.evict_every == 0:
            self.receive()
            others = [s for s in self.held if local.sinks <= rank[s] < count - local.window]
            heaviest = sorted(others, key=lambda s: (-self.received[s], rank[s]))[: local.heavy]
            leaving = [s for s in others if s not in heaviest]
            self.held = [s for s in self.held if s not in leaving]
            self.left |= {s: group_of(s) for s in leaving}
        self.held.append(column)
        self.received[column] = 0.0

    def receive(self) -> None:
        """What the queries have given joins what was received."""
        for row in self.given:
            for s, weight in row.items():
                self.received[s] += weight
        self.given = []


def attend_evicting(call: Call) -> tuple[Tensor, AttentionState | None]:
    """Outputs (B, T, H, e) in float64, then in the query's type; the final state likewise in float64."""
    batch = call.keys.key.shape[0]
    found = [_sequence(call, b) for b in range(batch)]
    out = call.restore(torch.stack([out for out, _, _ in found]))
    if not call.output_final_state:
        return out, None
    parts = [_state(call, b, rank, heads) for b, (_, rank, heads) in enumerate(found)]
    return out, AttentionState.stack(parts) if batch > 1 else parts[0]


def _sequence(call: Call, b: int) -> tuple[Tensor, dict[int, int], list[Head]]:
    """Outputs (G, R, T, e) of one sequence, the rank of each real column, and what its heads hold at the end."""
    real = call.keys.rank[min(b, call.keys.rank.shape[0] - 1)] >= 0
    kv_heads = call.keys.key.shape[1]
    rank: dict[int, int] = {}
    heads, outputs = [Head() for _ in range(kv_heads)], []
    for t in range(call.num_keys):
        if not bool(real[t]):
            outputs.append(
                torch.zeros_like(call.queries.query[b, :, :, t, :1] + call.keys.value[b, :, None, t]).double()
            )
            continue
        rank[t] = len(rank)
        for g, head in enumerate(heads):
            head.enter(t, rank, call.spec, partial(_group_of, call, b, g))
        rows = [_row(call, b, g, t, head, len(rank)) for g, head in enumerate(heads)]
        outputs.append(torch.stack(rows))
    return torch.stack(outputs, dim=2), rank, heads


def _row(call: Call, b: int, g: int, t: int, head: Head, count: int) -> Tensor:
    """What the query heads of one group read, (R, e)."""
    kernel = call.spec.kernel
    query, key = call.queries.query[b, g, :, t].double(), call.keys.key[b, g].double()
    value = call.keys.value[b, g].double()
    groups = [group for group in _groups(call, head) if group]
    near = query @ key[head.held].T * call.state.slot_scale
    far = [query @ key[group].T * call.state.scale for group in groups]
    middles = [x.mean(dim=1, keepdim=True) if kernel.is_centered else torch.zeros_like(x[:, :1]) for x in far]
    peak = torch.cat([near, *middles], dim=1).amax(dim=1, keepdim=True).detach()
    weights = [(near - peak).exp()]
    weights += [(m - peak).exp() * kernel_weights(kernel, x - m) for x, m in zip(far, middles, strict=True)]
    size = weights[0].sum(dim=1, keepdim=True)
    size = size + sum((m - peak).exp() * x.shape[1] for x, m in zip(far, middles, strict=True))
    mass = torch.cat(weights, dim=1).sum(dim=1, keepdim=True)
    low = VANISHING * size.detach()
    if call.row_counts is not None:
        flat = mass.detach().reshape(1, -1, 1)
        vanishes = flat.abs() < (0 if isinstance(kernel, Drop) else low.reshape(1, -1, 1))
        _count(call, g, vanishes, flat < 0)
    safe = mass if isinstance(kernel, Drop) else torch.where(mass.abs() < low, torch.where(mass < 0, -low, low), mass)
    shares = (weights[0] / safe).sum(dim=0).tolist()
    head.given.append(dict(zip(head.held, shares, strict=True)))
    columns = [*head.held, *(s for group in groups for s in group)]
    return _finish(call, b, g, t, torch.cat(weights, dim=1) @ value[columns], mass, safe, peak, count)


def _count(call: Call, g: int, vanishes: Tensor, is_negative: Tensor) -> None:
    """Bad rows of one group; the other heads are counted when their turn comes."""
    assert call.row_counts is not None
    group, kv_heads = vanishes.shape[1], call.keys.key.shape[1]
    masks = torch.zeros(3, 1, kv_heads * group, 1, dtype=torch.bool)
    place = slice(g * group, (g + 1) * group)
    masks[0, :, place], masks[1, :, place], masks[2, :, place] = True, vanishes, is_negative
    call.row_counts.add(*masks)


def _finish(
    call: Call, b: int, g: int, t: int, weighted: Tensor, mass: Tensor, safe: Tensor, peak: Tensor, count: int
) -> Tensor:
    normalizer, is_drop = call.spec.normalizer, isinstance(call.spec.kernel, Drop)
    gate = None if call.queries.gate is None else call.queries.gate[b, g, :, t, None].double()
    if gate is not None and call.spec.output_gate == "before":
        weighted, gate = weighted * gate, None
    ready = Sums(
        weighted=weighted,
        mass=safe if normalizer.divides_by_mass else mass,
        count=torch.tensor(float(count), dtype=torch.float64),
        log_scale=peak,
        is_mass_positive=is_drop,
    )
    own = {n: p[g].double().squeeze(-2) if n.startswith("norm_") else p for n, p in call.parameters.items()}
    out = normalizer(ready, own)
    return out if gate is None else out * gate


def _centers(call: Call, g: int) -> Tensor | None:
    if call.reference is not None:
        return call.reference[0, g, None].double()
    given = call.parameters.get("centers")
    return None if given is None else given[g].double()


def _groups(call: Call, head: Head) -> list[list[int]]:
    """The keys that have left, by the center they went to."""
    groups: list[list[int]] = [[] for _ in range(call.spec.kernel.centers)]
    for s, group in head.left.items() if call.spec.has_tail else ():
        groups[group].append(s)
    return groups


def _group_of(call: Call, b: int, g: int, s: int) -> int:
    """The center nearest to one key; where there are none, all keys are one group."""
    centers = _centers(call, g) if call.spec.has_tail else None
    return 0 if centers is None else _nearest(call.keys.key[b, g, s].double(), centers)


def _nearest(key: Tensor, centers: Tensor) -> int:
    """The first of the centers (m, d) at the least distance: distances that differ by rounding alone are one."""
    middle = centers.mean(dim=0)
    square = (key - centers).square().sum(dim=1)
    slack = 2 * TIE * ((key - middle).square().sum() + (centers - middle).square().sum(dim=1).max())
    return int((square <= square.min() + slack).nonzero()[0])


def _state(call: Call, b: int, rank: dict[int, int], heads: list[Head]) -> AttentionState:
    """The final state by its definition: every moment a sum over the keys of its group, every monomial a plain product."""
    spec, local = call.spec, call.spec.local
    assert local is not None and local.evict_every is not None
    key, value = call.keys.key[b].double(), call.keys.value[b].double()
    count, kv_heads = len(rank), len(heads)
    if not call.record_past:
        for head in heads:
            head.receive()
    tails = [_tail(call, g, key[g], value[g], head) for g, head in enumerate(heads)] if spec.has_tail else []
    queries = sorted(rank.values())[count - len(heads[0].given) :]
    has_heavy, keeps_given = local.heavy > 0, local.heavy > 0 and call.record_past

    def per_slot(numbers: list[list[float]]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.float64).reshape(1, kv_heads, -1)

    given = [[[row.get(s, 0.0) for s in head.held] for row in head.given] for head in heads]
    return AttentionState(
        spec=spec, scale=call.state.scale, slot_scale=call.state.slot_scale,
        count=torch.tensor([count]), boundary=torch.tensor([count // local.evict_every * local.evict_every]),
        key=torch.stack([key[g, head.held] for g, head in enumerate(heads)])[None],
        value=torch.stack([value[g, head.held] for g, head in enumerate(heads)])[None],
        rank=torch.tensor([[rank[s] for s in head.held] for head in heads], dtype=torch.int64).reshape(1, kv_heads, -1),
        moments=torch.stack([tail[0] for tail in tails])[None] if tails else None,
        mass=torch.stack([tail[1] for tail in tails])[None] if tails else None,
        decayed_count=torch.stack([t[2] for t in tails])[None] if tails else torch.zeros(1, kv_heads, dtype=torch.float64),
        reference=torch.stack([tail[3] for tail in tails])[None] if tails and has_reference(spec) else None,
        age=None, fold_age=None, total_log_decay=None, running_gate=None, running_total=None,
        received=per_slot([[head.received[s] for s in head.held] for head in heads]) if has_heavy else None,
        given=torch.tensor(given, dtype=torch.float64).reshape(1, kv_heads, len(queries), len(heads[0].held)) if keeps_given else None,
        given_rank=torch.tensor([queries], dtype=torch.int64).reshape(1, -1) if keeps_given else None,
    )  # fmt: skip


def _tail(call: Call, g: int, key: Tensor, value: Tensor, head: Head) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Moments (m, F, e), mass (m, F'), counts (m,) and references (m, d) of one head."""
    spec, mapped = call.spec, key * call.state.scale**0.5
    centers, groups, left = _centers(call, g), _groups(call, head), list(head.left)
    references = torch.zeros(len(groups), key.shape[1], dtype=torch.float64)
    if has_reference(spec) and left:
        references = mapped[left[:1]].detach() if centers is None else centers.detach() * call.state.scale**0.5
    moments, mass = [], []
    for group, reference in zip(groups, references, strict=True):
        about, ones = (mapped - reference)[None], {s: torch.ones(1, dtype=torch.float64) for s in group}
        moments.append(moments_of(moment_orders(spec), about, value[None], ones)[0][0, 0])
        mass.append(moments_of(mass_orders(spec), about, value[None], ones)[1][0, 0])
    counts = torch.tensor([float(len(group)) for group in groups], dtype=torch.float64)
    return torch.stack(moments), torch.stack(mass), counts, references
