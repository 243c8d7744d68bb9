"""The cache that generate() carries: for every layer an AttentionState a group of heads, and what its convolutions remember.

It is a transformers Cache, so beams, chunked prefill, cropping and a second call work; for finite kernels its size does not
grow. An exponential kernel keeps keys and values in the state, behind the same interface.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.modeling_outputs import BaseModelOutputWithPast

from termwise.attention.state import AttentionState
from termwise.models.convolution import ROLLBACK

# transformers 5.24 renamed past_key_values to cache.
CACHE_FIELD = "cache" if "cache" in BaseModelOutputWithPast.__dataclass_fields__ else "past_key_values"


class LayerCache(CacheLayerMixin):
    """What one layer keeps between calls."""

    is_compileable = False
    is_sliding = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, reads_half: bool = False) -> None:
        super().__init__()
        self.reads_half = reads_half
        self.states: tuple[AttentionState, ...] = ()  # one a group of heads, in the order of the layer's groups
        self.past: tuple[Tensor, ...] = ()  # inputs of the convolutions over q, k and v
        self.conv_size = 1
        self.record_past = False
        self.length = 0

    def hold(self, states: Sequence[AttentionState | None]) -> None:
        """The states after a call; with a bfloat16 copy of the moments where that is wanted and there are any."""
        held = [state for state in states if state is not None]
        self.states = tuple(state.reading_half() if self._wants_copy(state) else state for state in held)

    def _wants_copy(self, state: AttentionState) -> bool:
        has_single = state.moments is not None and state.moments.dtype == torch.float32
        return self.reads_half and has_single and state.half is None

    @property
    def nbytes(self) -> int:
        """Bytes of the live tensors."""
        return sum(state.nbytes for state in self.states) + sum(t.numel() * t.element_size() for t in self.past)

    def activate_past_recording(self) -> None:
        """Keep the convolutions' last 64 inputs as well, and states from before keys left exact slots: what `crop` needs."""
        self.record_past = True

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the sequences `indices` of the batch, repeats allowed."""
        self.states = tuple(state.permute(indices) for state in self.states)
        self.past = tuple(t.index_select(0, indices.to(t.device)) for t in self.past)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.states:
            self.batch_select_indices(torch.arange(self.states[0].batch_size).repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last -`tokens_to_remove` tokens."""
        count = -tokens_to_remove
        if count == 0 or not self.states:
            return
        if any(t.shape[1] - count < self.conv_size - 1 for t in self.past):
            raise ValueError(
                f"crop: {count} tokens cannot be taken back, the convolution remembers fewer inputs; call "
                f"activate_past_recording() on the cache before decoding (up to {ROLLBACK} tokens)"
            )
        self.states = tuple(state.rollback(count) for state in self.states)
        self.past = tuple(t[:, : t.shape[1] - count] for t in self.past)
        self.length -= count

    def reset(self) -> None:
        self.states, self.past, self.length, self.is_initialized = (), (), 0, False

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        return self.length + int(query_length), 0

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError(
            "a termwise cache holds states, not keys and values; it is filled by calling the model with it"
        )

    update = lazy_initialization  # type: ignore[assignment]


class TermwiseCache(Cache):
    """The states of all layers, and how many real tokens each sequence has seen.

    `model(ids, cache=cache)` replaces what it holds, in all layers or, if it raises, in none; states themselves never change,
    so `copy()` branches at no cost.

    >>> TermwiseCache(num_layers=2).get_seq_length()
    0
    """

    layers: list[LayerCache]  # type: ignore[assignment]

    def __init__(self, num_layers: int, reads_half: bool = False) -> None:
        super().__init__(layers=[LayerCache(reads_half) for _ in range(num_layers)])
        self.positions: Tensor | None = None  # (B,) tokens seen, blank ones included, padding not
        self.num_sound = 0  # columns at the end without padding: those that `crop` can take back

    @property
    def is_empty(self) -> bool:
        return self.positions is None

    @property
    def nbytes(self) -> int:
        """Bytes of the live tensors, over all layers."""
        return sum(layer.nbytes for layer in self.layers)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns seen, padding included, blank tokens not."""
        return self.layers[layer_idx].length

    def advance(self, positions: Tensor, num_columns: int, num_sound: int) -> None:
        """Count one call: `positions` (B,) after it, its columns, and how many of the last ones hold no padding."""
        self.positions = positions
        self.num_sound = self.num_sound + num_sound if num_sound == num_columns else num_sound
        for layer in self.layers:
            layer.length += num_columns
            layer.is_initialized = True

    def activate_past_recording(self) -> None:
        """Keep what `crop` needs beyond the states themselves; call it before the prompt, or at the latest before decoding."""
        for layer in self.layers:
            layer.activate_past_recording()

    def copy(self) -> TermwiseCache:
        """A branch: the two caches continue without seeing each other."""
        branch = copy.copy(self)
        branch.layers = [copy.copy(layer) for layer in self.layers]
        return branch

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last -`tokens_to_remove` tokens (at most 64); a positive number is the length to keep.

        Errors: ValueError when more were folded into the state, when padding stands among them, or when something needed for it
        was not kept (`activate_past_recording`).
        """
        count = self.get_seq_length() - tokens_to_remove if tokens_to_remove > 0 else -tokens_to_remove
        if count <= 0:
            return
        if count > self.num_sound:
            raise ValueError(
                f"crop: {count} tokens cannot be taken back, padding stands among them (the last {self.num_sound} columns are free of it)"
            )
        with all_or_nothing(self):
            for layer in self.layers:
                layer.crop(-count)
            assert self.positions is not None
            self.positions = self.positions - count
            self.num_sound -= count

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        with all_or_nothing(self):
            super().batch_select_indices(indices)
            if self.positions is not None:
                self.positions = self.positions.index_select(0, indices.to(self.positions.device))

    def batch_repeat_interleave(self, repeats: int) -> None:
        with all_or_nothing(self):
            super().batch_repeat_interleave(repeats)
            if self.positions is not None:
                self.positions = self.positions.repeat_interleave(repeats)

    def reset(self) -> None:
        super().reset()
        self.positions, self.num_sound = None, 0


@contextlib.contextmanager
def all_or_nothing(cache: object) -> Iterator[None]:
    """Whatever the block did to a `TermwiseCache` is undone when it raises, Ctrl-C included: layers change one by one."""
    parts = (cache, *cache.layers) if isinstance(cache, TermwiseCache) else ()
    before = [dict(vars(part)) for part in parts]
    try:
        yield
    except BaseException:
        for part, fields in zip(parts, before, strict=True):
            vars(part).update(fields)
        raise


def check_cache(cache: Any) -> TermwiseCache:
    """The cache, if it is one that holds states; ValueError otherwise."""
    if not isinstance(cache, TermwiseCache):
        raise ValueError(
            f"cache is a {type(cache).__name__}; a termwise model keeps states: pass a TermwiseCache, or nothing to get one"
        )
    return cache
