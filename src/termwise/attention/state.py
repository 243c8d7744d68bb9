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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from termwise.attention.buffer import padded, taken_back
from termwise.attention.growth import Room
from termwise.attention.monomials import translate
from termwise.attention.spec import AttentionSpec
from termwise.attention.state_files import load_state, save_state
from termwise.attention.stored import FOLD, RESERVE, num_recent, stored_orders

__all__ = ["FOLD", "RESERVE", "AttentionState", "num_recent", "stored_orders"]


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
            padded(s.with_batch_ranks().with_decay() if with_decay else s.with_batch_ranks(), length, num_given)
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
        return taken_back(self, num_tokens)

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
        save_state(self, path)

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device = "cpu") -> AttentionState:
        """A state written by `save`; anything else is refused."""
        return load_state(cls, path, device)
