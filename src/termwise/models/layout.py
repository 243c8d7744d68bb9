"""Where the tokens of one call stand, in one form for every way of calling.

The model works on sequences that begin with their first real token: padding is moved behind, blank tokens stand in front,
packed documents stay one row with boundaries. Everything that depends on place (rotary positions, convolutions, masks) reads
it from here, and outputs are put back in the caller's columns at the end.

Shapes: B sequences (1 when packed), T tokens in work order, N documents, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Places of the tokens, in work order."""

    batch: int
    positions: Tensor  # (B or 1, T) rotary positions
    num_blank: int = 0  # blank tokens in front of every document in this call
    key_mask: Tensor | None = None  # (B, T) True for real tokens, which come first; None: all are
    columns: Tensor | None = None  # (B, S) or (S,) the place of each of the caller's columns; None: the same order
    cu_seqlens: Tensor | None = None  # (N + 1,) boundaries of packed documents, in work order, on the CPU
    document: Tensor | None = None  # (T,) the document of each token
    place: Tensor | None = None  # (T,) its place in that document
    is_unpacked: bool = False  # documents of one length, taken from their row as a batch

    @property
    def counts(self) -> Tensor | None:
        """(B,) real tokens of each sequence, or None when all are."""
        return None if self.key_mask is None else self.key_mask.sum(dim=1)

    @property
    def lengths(self) -> Tensor:
        """(B or 1,) or (N,): one more than the last position of each document."""
        if self.cu_seqlens is not None:
            return self.positions[0, self.cu_seqlens[1:].long().to(self.positions.device) - 1] + 1
        seen = self.positions
        if self.key_mask is not None:
            seen = seen.expand_as(self.key_mask).masked_fill(~self.key_mask, 0)
        return seen.amax(dim=1) + 1

    @property
    def num_new(self) -> Tensor:
        """(B,) or (N,): real and blank tokens of each sequence in this call."""
        if self.cu_seqlens is not None:
            return self.cu_seqlens.long().diff().to(self.positions.device)
        return self.positions.new_full((self.batch,), self.positions.shape[1]) if self.counts is None else self.counts

    def restore(self, hidden: Tensor) -> Tensor:
        """Outputs (B, T, D) in the caller's columns, those of blank tokens dropped."""
        if self.columns is None:
            hidden = hidden[:, self.num_blank :] if self.num_blank else hidden
            return hidden.flatten(0, 1)[None] if self.is_unpacked else hidden
        if self.columns.dim() == 1:
            return hidden.index_select(1, self.columns)
        return hidden.gather(1, self.columns[..., None].expand(-1, -1, hidden.shape[-1]))


def arrange(
    embeds: Float[Tensor, "B S D"],
    *,
    is_real: Bool[Tensor, "B S"] | None = None,
    cu_seqlens: Int[Tensor, " N"] | None = None,
    position_ids: Int[Tensor, "_ S"] | None = None,
    blank: Float[Tensor, "n D"] | None = None,
    offset: Int[Tensor, " B"] | None = None,
) -> tuple[Float[Tensor, "B T D"], Layout]:
    """Embeddings in work order and their layout.

    S caller's columns become T places. `blank` is put in front of every document; `offset` counts the tokens of earlier
    cached calls; `position_ids` (one row, or one a sequence), if given, are the tokens' own positions. Errors: ValueError
    for boundaries that do not cover the row, or together with padding.
    """
    if cu_seqlens is not None:
        return _packed(embeds, cu_seqlens, is_real, position_ids, blank)
    order = columns = None
    if is_real is not None:
        # Zeroed before anything else: what stands at padding may be NaN.
        embeds = embeds.masked_fill(~is_real[..., None], 0)
        if bool((is_real[:, 1:] & ~is_real[:, :-1]).any()):
            order = torch.argsort(is_real.to(torch.int8), dim=1, descending=True, stable=True)
            columns = torch.argsort(order, dim=1)
            embeds = embeds.gather(1, order[..., None].expand_as(embeds))
            is_real = is_real.gather(1, order)
            if position_ids is not None:
                position_ids = position_ids.expand_as(order).gather(1, order)
    if position_ids is None:
        position_ids = torch.arange(embeds.shape[1], device=embeds.device)[None]
        position_ids = position_ids if offset is None else position_ids + offset[:, None]
    layout = Layout(embeds.shape[0], position_ids, key_mask=is_real, columns=columns)
    return (embeds, layout) if blank is None else _with_blank(embeds, layout, blank)


def _with_blank(embeds: Tensor, layout: Layout, blank: Tensor) -> tuple[Tensor, Layout]:
    batch, n = embeds.shape[0], blank.shape[0]
    embeds = torch.cat([blank.to(embeds.dtype).expand(batch, -1, -1), embeds], dim=1)
    front = torch.arange(n, device=embeds.device).expand(layout.positions.shape[0], -1)
    mask = layout.key_mask
    return embeds, replace(
        layout,
        positions=torch.cat([front, layout.positions + n], dim=1),
        num_blank=n,
        key_mask=None if mask is None else torch.cat([mask.new_ones(batch, n), mask], dim=1),
        columns=None if layout.columns is None else layout.columns + n,
    )


def _packed(
    embeds: Tensor, cu_seqlens: Tensor, is_real: Tensor | None, position_ids: Tensor | None, blank: Tensor | None
) -> tuple[Tensor, Layout]:
    check_boundaries(cu_seqlens, embeds.shape)
    if is_real is not None:
        raise ValueError(
            "cu_seqlens and an attention_mask with padding exclude each other; leave padding out of packed rows"
        )
    lengths = cu_seqlens.diff()
    if bool((lengths == lengths[0]).all()):
        places = None if position_ids is None else position_ids.reshape(len(lengths), -1)
        work, layout = arrange(embeds.reshape(len(lengths), -1, embeds.shape[2]), position_ids=places, blank=blank)
        return work, replace(layout, is_unpacked=True)
    num_blank = 0 if blank is None else blank.shape[0]
    bounds = cu_seqlens.long() + num_blank * torch.arange(len(cu_seqlens))
    document = torch.repeat_interleave(lengths + num_blank).to(embeds.device)
    place = torch.arange(len(document), device=embeds.device) - bounds.to(embeds.device)[document]
    positions, columns = place[None], None
    if blank is not None:
        # Rows 0 to n - 1 of the source are the blank tokens, the rest the real ones.
        columns = (place >= num_blank).nonzero()[:, 0]
        source = place.clone()
        source[columns] = torch.arange(num_blank, num_blank + embeds.shape[1], device=embeds.device)
        embeds = torch.cat([blank.to(embeds.dtype)[None], embeds], dim=1).index_select(1, source)
    if position_ids is not None:
        given = position_ids.to(positions.dtype) + num_blank
        positions = given if columns is None else positions.index_copy(1, columns, given)
    layout = Layout(
        1,
        positions,
        num_blank,
        columns=columns,
        cu_seqlens=bounds.to(torch.int32),
        document=document,
        place=place,
    )
    return embeds, layout


def check_boundaries(cu_seqlens: Tensor, shape: torch.Size) -> None:
    """Refuse boundaries that do not cover exactly the one packed row."""
    if shape[0] != 1:
        raise ValueError(f"cu_seqlens needs the documents packed along one row (batch 1); the batch is {shape[0]}")
    if cu_seqlens.dim() != 1 or cu_seqlens.is_floating_point() or len(cu_seqlens) < 2:
        raise ValueError(
            f"cu_seqlens has shape {tuple(cu_seqlens.shape)} and type {cu_seqlens.dtype}; "
            "allowed are whole numbers (documents + 1,), e.g. [0, 5, 9]"
        )
    if cu_seqlens[0] != 0 or cu_seqlens[-1] != shape[1] or bool((cu_seqlens.diff() <= 0).any()):
        raise ValueError(
            f"cu_seqlens {cu_seqlens.tolist()[:8]}... must rise from 0 to the number of tokens, {shape[1]}, "
            "without an empty document"
        )


def boundaries_from_positions(position_ids: Tensor) -> Tensor | None:
    """Boundaries where the positions of a packed row start again at a smaller number; None if they never do.

    Such rows come from transformers' DataCollatorWithFlattening. Errors: ValueError when a row of a batch restarts.
    """
    restarts = position_ids.diff(dim=1) <= 0
    if not bool(restarts.any()):
        return None
    if position_ids.shape[0] != 1:
        raise ValueError(
            f"position_ids restart inside a row of a batch of {position_ids.shape[0]}; if these are packed documents, pack "
            "them along one row and pass cu_seqlens, if it is padding pass an attention_mask"
        )
    inner = restarts[0].nonzero()[:, 0] + 1
    ends = inner.new_tensor([position_ids.shape[1]])
    return torch.cat([torch.zeros_like(ends), inner, ends]).to(torch.int32)
