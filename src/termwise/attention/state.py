"""AttentionState: what earlier keys leave behind. One interface whether it is of constant size or a growing cache.

Two parts. The folded part is sums over far keys: moments sum_s a_s phi(k_s - r) (i_s v_s)^T, mass sum_s a_s phi(k_s - r), in
fp32 or wider, about a reference key r, with decay up to the last folded key; it is replaced only when keys are folded, at
fixed absolute positions (multiples of 64), so the state does not depend on how a sequence was split. The exact buffer holds
the keys not folded yet: sinks, window, and 64 to 127 recent ones, which is what `rollback` can take back. Kernels without a
finite form never fold: their buffer is the key/value cache.

Axes: B batch, G kv heads, F features, L buffer slots, d key width, e value width. `rank` numbers the real keys of each
sequence from 0; an empty slot has rank -1. A batch without padding keeps one row of ranks (batch axis 1).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from termwise.attention.growth import Room
from termwise.attention.monomials import total_width, translate
from termwise.attention.spec import AttentionSpec

FOLD = 64  # keys are folded in groups of this many, in one product: 3e-7 against 2e-6 token by token
RESERVE = 64  # tokens that can always be rolled back
NOT_TENSORS = ("spec", "scale", "slot_scale", "room", "past")


@dataclass(frozen=True, eq=False)
class AttentionState:
    """The state of one attention call; never changed, `attend` returns a new one."""

    spec: AttentionSpec
    scale: float  # of the product inside the kernel
    slot_scale: float  # of exact slots (differs from `scale` only for feature maps and powers by default)
    count: Tensor  # (B or 1,) real keys seen
    boundary: Tensor  # (B or 1,) keys of smaller rank are folded (or sinks)
    key: Tensor  # (B, G, L, d) exact buffer
    value: Tensor  # (B, G, L, e), input gate applied
    rank: Tensor  # (B or 1, L)
    moments: Tensor | None  # (B, G, F, e)
    mass: Tensor | None  # (B, G, F)
    decayed_count: Tensor  # (B, G) sum of decays of the folded keys
    reference: Tensor | None  # (B, G, d) reference key, mapped and scaled
    age: Tensor | None  # (B, G, L) float64: log decay from each buffered key to now; None: no decay so far
    fold_age: Tensor | None  # (B, G) float64: log decay from the last folded key to now
    total_log_decay: Tensor | None  # (B, G) float64
    running_gate: Tensor | None  # (B, G, L) log of the running gate sum at each buffered key
    running_total: Tensor | None  # (B, G) the same, now
    half: Tensor | None = None  # (B, G, F, e) bfloat16 copy of the moments, which single steps read in their place
    room: Room | None = None  # where `key` and `value` stand, if there is room for more behind them
    # Where keys leave at fixed positions only (evicting_state.py): `rank` is (B, G, L), and moments, mass, decayed count and
    # reference have an axis of centers behind G; `boundary` is the count when keys last left.
    received: Tensor | None = None  # (B, G, L) weight each slot has been given
    given: Tensor | None = (
        None  # (B, G, n, L) what each query has given since, apart from that, where the past is recorded
    )
    given_rank: Tensor | None = None  # (B or 1, n)
    past: AttentionState | None = None  # the state before keys last left, where it is recorded

    def __post_init__(self) -> None:
        # Tensors that have been replaced keep no room of the old ones alive.
        if self.room is not None and not self.room.owns(self.key):
            object.__setattr__(self, "room", None)

    # Sizes --------------------------------------------------------------------------------------------------------

    @property
    def batch_size(self) -> int:
        return self.key.shape[0]

    @property
    def orders(self) -> tuple[int, ...]:
        """Orders whose moments are kept: all of 0..P around the mean, those with a coefficient around zero."""
        return stored_orders(self.spec)

    @property
    def has_moments(self) -> bool:
        """Whether moments are held; a parallel call that hands back no state holds none."""
        return self.moments is not None

    @property
    def tensors(self) -> dict[str, Tensor]:
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    @property
    def nbytes(self) -> int:
        """Bytes of the live tensors, room for keys to come and a recorded past included."""
        stores: dict[int, int] = {}
        state: AttentionState | None = self
        while state is not None:
            stores |= {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in state.tensors.values()}
            state = state.past
        return sum(stores.values())

    def __repr__(self) -> str:
        length = self.key.shape[2]
        return f"AttentionState({self.spec.short_name}, batch={self.batch_size}, keys={self.count.tolist()}, buffered={length}, nbytes={self.nbytes})"

    # Batch --------------------------------------------------------------------------------------------------------

    def permute(self, indices: Tensor) -> AttentionState:
        """The sequences `indices` of the batch, repeats allowed (beam search)."""
        size = self.batch_size
        picked: dict[str, Any] = {
            name: t.index_select(0, indices.to(t.device)) if t.shape[0] == size else t
            for name, t in self.tensors.items()
        }
        if size == 1 and len(indices) > 1:
            for name in ("count", "boundary", "given_rank") if self.spec.evicts else ("count", "boundary", "rank"):
                picked[name] = getattr(self, name)
        past = None if self.past is None else self.past.permute(indices)
        return dataclasses.replace(self, **picked, past=past)

    def split(self) -> list[AttentionState]:
        """One state a sequence."""
        device = self.key.device
        return [self.permute(torch.tensor([i], device=device)) for i in range(self.batch_size)]

    @staticmethod
    def stack(states: Sequence[AttentionState]) -> AttentionState:
        """One batch from several states of the same spec; shorter buffers are filled with empty slots in front."""
        if not states:
            raise ValueError("stack needs at least one state")
        first = states[0]
        for other in states[1:]:
            first.check_same_kind(other)
        pasts = [s.past for s in states if s.past is not None]
        past = AttentionState.stack(pasts) if len(pasts) == len(states) else None
        length = max(s.key.shape[2] for s in states)
        with_decay = any(s.age is not None for s in states)
        if any(s.half is None for s in states):
            states = [dataclasses.replace(s, half=None) for s in states]
        if any(s.given is None for s in states) and any(s.given is not None for s in states):
            from termwise.attention.evicting_state import recording

            states = [recording(s, False) for s in states]
        num_given = max(0 if s.given is None else s.given.shape[2] for s in states)
        rows = [
            _padded(s.with_batch_ranks().with_decay() if with_decay else s.with_batch_ranks(), length, num_given)
            for s in states
        ]
        joined: dict[str, Any] = {name: torch.cat([row.tensors[name] for row in rows]) for name in rows[0].tensors}
        return dataclasses.replace(rows[0], **joined, past=past)

    def with_batch_ranks(self) -> AttentionState:
        """Ranks and counts written out for every sequence."""
        size = self.batch_size
        return dataclasses.replace(
            self,
            count=self.count.expand(size),
            boundary=self.boundary.expand(size),
            rank=self.rank if self.spec.evicts else self.rank.expand(size, -1),
            given_rank=None if self.given_rank is None else self.given_rank.expand(size, -1),
        )

    def with_decay(self) -> AttentionState:
        """Zero decays written out, for a state that has seen none."""
        if self.age is not None:
            return self
        zeros = self.decayed_count.new_zeros(self.decayed_count.shape, dtype=torch.float64)
        age = self.key.new_zeros(self.key.shape[:3], dtype=torch.float64)
        return dataclasses.replace(self, age=age, fold_age=zeros, total_log_decay=zeros)

    def check_same_kind(self, other: AttentionState) -> None:
        """Refuses a state of another spec, scale, precision or shape (its batch apart)."""
        shapes = [(s.key.shape[1], s.key.shape[3], s.value.shape[3]) for s in (self, other)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"states for (kv heads, key width, value width) {shapes[0]} and {shapes[1]} do not go together"
            )
        if self.spec != other.spec or self.scale != other.scale or self.slot_scale != other.slot_scale:
            raise ValueError(
                f"states of different attention: {self.spec.short_name} (scale {self.scale:g}) and {other.spec.short_name} "
                f"(scale {other.scale:g}); only states of one spec and scale go together"
            )
        if self.key.dtype != other.key.dtype:
            raise ValueError(
                f"states of {self.key.dtype} and {other.key.dtype} do not go together; use one precision throughout"
            )

    # Time ---------------------------------------------------------------------------------------------------------

    def rollback(self, num_tokens: int) -> AttentionState:
        """The state before the last `num_tokens` tokens, from the exact buffer.

        Where keys leave at fixed positions only, it reaches back to when they last left, or 64 tokens if the past is recorded.
        """
        if num_tokens < 0:
            raise ValueError(f"rollback: num_tokens={num_tokens}; allowed are 0 to {RESERVE}")
        if num_tokens == 0:
            return self
        if self.spec.evicts:
            from termwise.attention.evicting_state import rolled_back

            return rolled_back(self, num_tokens)
        target = self.count - num_tokens
        oldest_needed = (target - num_recent(self.spec) + 1).clamp(min=0)
        if (target < 0).any() or (self.boundary > oldest_needed).any():
            raise ValueError(
                f"rollback: {num_tokens} tokens cannot be taken back from {self.count.tolist()} keys; the buffer allows up to "
                f"{RESERVE} (a cache: all); keep an earlier state for more"
            )
        keep = (self.rank >= 0) & (self.rank < target[:, None])
        is_last = self.rank == target[:, None] - 1
        state = dataclasses.replace(self, count=target)
        if self.age is not None and self.fold_age is not None and self.total_log_decay is not None:
            undone = _pick(self.age, is_last)
            # A sequence rolled back to nothing has no decay left; one with folded keys only is anchored at the last of them.
            undone = torch.where(
                is_last.any(dim=1, keepdim=True),
                undone,
                torch.where(target[:, None] > 0, self.fold_age, self.total_log_decay),
            )
            state = dataclasses.replace(
                state,
                age=self.age - undone[..., None],
                fold_age=self.fold_age - undone,
                total_log_decay=self.total_log_decay - undone,
            )
        if self.running_gate is not None and self.running_total is not None:
            empty = torch.full_like(self.running_total, -torch.inf)
            state = dataclasses.replace(
                state,
                running_total=torch.where(is_last.any(dim=1, keepdim=True), _pick(self.running_gate, is_last), empty),
            )
        if self.reference is not None:
            state = dataclasses.replace(
                state,
                reference=torch.where((target > 0)[:, None, None], self.reference, torch.zeros_like(self.reference)),
            )
        return compress(state, keep)

    def translate(self, reference: Tensor) -> AttentionState:
        """The same state about another reference key (B, G, d), mapped and scaled as `reference` is: a polynomial shift."""
        self._refuse_evicting("translate", "the references of its groups are fixed; compute the state anew instead")
        if self.moments is None or self.mass is None or self.reference is None:
            raise ValueError("only states around the mean (center='mean') hold a reference key")
        shift = self.reference - reference
        both = translate(torch.cat([self.moments, self.mass[..., None]], dim=-1), shift, self.orders)
        return dataclasses.replace(
            self, moments=both[..., :-1], mass=both[..., -1], reference=reference.expand_as(self.reference)
        ).with_copy()

    def merge(self, later: AttentionState) -> AttentionState:
        """The state of two segments one after the other; `later` was computed from nothing on the second segment."""
        self._refuse_evicting("merge", "which keys stay depends on all before; continue with initial_state instead")
        self.check_same_kind(later)
        if self.batch_size != later.batch_size:
            raise ValueError(f"merge: states of {self.batch_size} and {later.batch_size} sequences; both need the same")
        if self.spec.input_gate == "count":
            raise ValueError(
                "merge: with input_gate='count' the values of the later segment are scaled by counts that start at 1; "
                "continue from the first state with initial_state instead"
            )
        first, second = self.with_batch_ranks(), later.with_batch_ranks()
        if first.age is not None or second.age is not None:
            first, second = first.with_decay(), second.with_decay()
        if first.reference is not None and second.reference is not None:
            start = (first.count > 0)[:, None, None]
            reference = torch.where(start, first.reference, second.reference)
            first, second = first.translate(reference), second.translate(reference)
        from termwise.attention.folding import merge_folded

        return merge_folded(first, second)

    def _refuse_evicting(self, what: str, way_out: str) -> None:
        if self.spec.evicts:
            raise ValueError(f"{what}: not for {self.spec.short_name}, whose keys leave at fixed positions: {way_out}")

    def with_copy(self) -> AttentionState:
        """The bfloat16 copy, where one is kept, made anew after the moments have changed."""
        return (
            self
            if self.half is None or self.moments is None
            else dataclasses.replace(self, half=self.moments.bfloat16())
        )

    def reading_half(self) -> AttentionState:
        """The same state with a bfloat16 copy of its moments beside it, which compiled steps of one token then read.

        Half the bytes a step, a relative error of some 1e-3 in what is read of far keys. Sums are still kept in fp32: the copy
        is made anew from them at every fold. Errors: ValueError for states without moments, or of another type than fp32.
        """
        self._refuse_evicting("reading_half", "its tail is read in float32; leave out reads_half (--half-state)")
        if self.moments is None or self.moments.dtype != torch.float32:
            kind = "no moments" if self.moments is None else f"moments of {self.moments.dtype}"
            raise ValueError(
                f"reading_half: the state of {self.spec.short_name} holds {kind}; it needs moments in float32"
            )
        return dataclasses.replace(self, half=self.moments.bfloat16())

    # Files --------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Tensors in safetensors, the spec as JSON in its header."""
        from safetensors.torch import save_file

        header = {"format": "termwise.state", "schema": "1", "spec": json.dumps(self.spec.to_dict())}
        header |= {"scale": repr(self.scale), "slot_scale": repr(self.slot_scale)}
        save_file(
            {name: t.detach().contiguous().clone() for name, t in self.tensors.items()}, str(path), metadata=header
        )

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device = "cpu") -> AttentionState:
        """A state written by `save`; anything else is refused."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), framework="pt", device=str(device)) as file:
                header = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(
                f"{path}: no complete safetensors file ({error}); states are written by AttentionState.save"
            ) from None
        if header.get("format") != "termwise.state" or header.get("schema") != "1":
            raise ValueError(
                f"{path}: not a termwise state of schema 1 (format {header.get('format')!r}, schema {header.get('schema')!r})"
            )
        spec = AttentionSpec.from_dict(json.loads(header["spec"]))
        names = [f.name for f in dataclasses.fields(cls) if f.name not in NOT_TENSORS]
        values: dict[str, Any] = {name: tensors.get(name) for name in names}
        return cls(spec, float(header["scale"]), float(header["slot_scale"]), **values)


def num_recent(spec: AttentionSpec) -> int:
    """Real keys that are never folded: the window, self included; with a running gate also the key before, whose sum rollback reads."""
    window = spec.local.window if spec.local else 1
    return max(window, 2) if spec.needs_running_gate else window


def stored_orders(spec: AttentionSpec) -> tuple[int, ...]:
    """Orders whose moments a state keeps; around the mean orders 0 and 1 always, since they give the mean itself."""
    dense = spec.kernel.dense
    if not dense:
        return ()
    if spec.kernel.is_centered:
        return tuple(range(max(len(dense), 2)))
    return tuple(n for n, b in enumerate(dense) if b != 0)


def empty_state(
    spec: AttentionSpec,
    batch: int,
    kv_heads: int,
    key_width: int,
    value_width: int,
    scale: float,
    slot_scale: float,
    like: Tensor,
    with_moments: bool = True,
) -> AttentionState:
    """The state before any key; `like` gives device and accumulation type."""
    if spec.evicts:
        return _empty_evicting(spec, batch, kv_heads, key_width, value_width, scale, slot_scale, like)
    orders = stored_orders(spec) if with_moments else ()
    num_features = total_width(key_width, orders)
    return AttentionState(
        spec=spec, scale=scale, slot_scale=slot_scale,
        count=_whole(like, 1), boundary=_whole(like, 1),
        key=like.new_zeros(batch, kv_heads, 0, key_width), value=like.new_zeros(batch, kv_heads, 0, value_width),
        rank=_whole(like, 1, 0),
        moments=like.new_zeros(batch, kv_heads, num_features, value_width) if orders else None,
        mass=like.new_zeros(batch, kv_heads, num_features) if orders else None,
        decayed_count=like.new_zeros(batch, kv_heads),
        reference=like.new_zeros(batch, kv_heads, key_width) if spec.has_tail and spec.kernel.is_centered else None,
        age=None, fold_age=None, total_log_decay=None,
        running_gate=like.new_zeros(batch, kv_heads, 0) if spec.needs_running_gate else None,
        running_total=like.new_full((batch, kv_heads), -torch.inf) if spec.needs_running_gate else None,
    )  # fmt: skip


def _empty_evicting(
    spec: AttentionSpec, batch: int, kv_heads: int, key_width: int, value_width: int, scale: float, slot_scale: float,
    like: Tensor,
) -> AttentionState:  # fmt: skip
    from termwise.attention.tail import empty_tail

    tail = empty_tail(spec, batch, kv_heads, key_width, value_width, scale, like) if spec.has_tail else None
    has_heavy = spec.local is not None and spec.local.heavy > 0
    return AttentionState(
        spec=spec, scale=scale, slot_scale=slot_scale,
        count=_whole(like, 1), boundary=_whole(like, 1),
        key=like.new_zeros(batch, kv_heads, 0, key_width), value=like.new_zeros(batch, kv_heads, 0, value_width),
        rank=_whole(like, batch, kv_heads, 0),
        moments=None if tail is None else tail.moments, mass=None if tail is None else tail.mass,
        decayed_count=like.new_zeros(batch, kv_heads) if tail is None else tail.count,
        reference=None if tail is None else tail.reference,
        age=None, fold_age=None, total_log_decay=None, running_gate=None, running_total=None,
        received=like.new_zeros(batch, kv_heads, 0) if has_heavy else None,
    )  # fmt: skip


def _whole(like: Tensor, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64, device=like.device)


def compress(state: AttentionState, keep: Tensor) -> AttentionState:
    """The buffer reduced to the slots `keep` (B or 1, L), in order, empty slots in front where sequences differ."""
    if keep.shape[0] == 1:
        slots = keep.nonzero()[:, 1][None]
        if slots.shape[1] == keep.shape[1]:
            return state
        rank = state.rank.index_select(1, slots[0])
    else:
        length = int(keep.sum(dim=1).max()) if keep.numel() else 0
        if length == keep.shape[1]:
            return state if bool(keep.all()) else dataclasses.replace(state, rank=torch.where(keep, state.rank, -1))
        if length == 0:
            slots = keep.new_zeros(keep.shape[0], 0, dtype=torch.int64)
        else:
            slots = keep.to(torch.int8).argsort(dim=1, stable=True)[:, -length:]
        kept = keep.gather(1, slots)
        rank = torch.where(kept, state.rank.expand_as(keep).gather(1, slots), -1)
    changed: dict[str, Any] = {"rank": rank}
    for name in ("key", "value", "age", "running_gate"):
        tensor = getattr(state, name)
        if tensor is not None:
            changed[name] = _take(tensor, slots)
    return dataclasses.replace(state, **changed)


def _take(tensor: Tensor, slots: Tensor) -> Tensor:
    """Slots (B or 1, L') of a (B, G, L, ...) tensor."""
    if slots.shape[0] == 1:
        return tensor.index_select(2, slots[0])
    index = slots[:, None, :].expand(-1, tensor.shape[1], -1)
    if tensor.dim() == 4:
        index = index[..., None].expand(-1, -1, -1, tensor.shape[3])
    return tensor.gather(2, index)


def _pick(tensor: Tensor, mask: Tensor) -> Tensor:
    """The one slot of each sequence where `mask` (B or 1, L) is true, from (B, G, L); zero where there is none."""
    return torch.where(mask[:, None, :], tensor, torch.zeros_like(tensor)).sum(dim=2)


def _padded(state: AttentionState, length: int, num_given: int) -> AttentionState:
    if state.spec.evicts:
        from termwise.attention.evicting_state import padded

        return padded(state, length, num_given)
    missing = length - state.key.shape[2]
    if missing == 0:
        return state

    fills = {"key": 0.0, "value": 0.0, "age": 0.0, "running_gate": 0.0, "rank": -1}
    changed: dict[str, Any] = {}
    for name, fill in fills.items():
        tensor = getattr(state, name)
        if tensor is not None:
            front = (0, 0, missing, 0) if tensor.dim() == 4 else (missing, 0)
            changed[name] = torch.nn.functional.pad(tensor, front, value=fill)
    return dataclasses.replace(state, **changed)
