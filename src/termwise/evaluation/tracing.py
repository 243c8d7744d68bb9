"""What a model computes on the way: the output of every layer's attention, then the logits, row by row.

Trained models hide mistakes: a wrong head may leave the logits almost as they were. So every layer is looked at. Axes: B batch,
T columns of a call, N rows of one sequence, P parts (one a layer, the logits last).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Parts = list[Tensor]  # (B, T, width) each, or (N, width) of one sequence


class Traced:
    """A causal language model whose calls give the outputs of all its attentions and its logits at `columns` of the vocabulary."""

    def __init__(self, model: Any, columns: Int[Tensor, " V"]) -> None:
        self.model, self.columns = model, columns

    @torch.no_grad()
    def __call__(self, ids: Int[Tensor, "B T"] | None = None, **given: Any) -> Parts:
        """Rows in the caller's columns; arguments as the model takes them."""
        kept: Parts = []

        def keep(module: Any, arguments: tuple[Any, ...], out: Tensor) -> None:
            layout = arguments[1]
            kept.append(layout.restore(out))

        handles = [layer.self_attn.register_forward_hook(keep) for layer in self.model.model.layers]
        try:
            logits = self.model(input_ids=ids, **given).logits
        finally:
            for handle in handles:
                handle.remove()
        return [*kept, logits[..., self.columns]]

    def in_pieces(self, ids: Int[Tensor, "B T"], sizes: Iterable[int], cache: Any) -> Parts:
        """The same of a sequence handed over in pieces through one cache."""
        pieces, start = [], 0
        for size in sizes:
            pieces.append(self(ids[:, start : start + size], cache=cache))
            start += size
        return joined(pieces)


def joined(pieces: list[Parts]) -> Parts:
    """Calls one after another as one."""
    return [torch.cat(parts, dim=1) for parts in zip(*pieces, strict=True)]


def rows(parts: Parts, row: int, columns: Bool[Tensor, " T"] | slice = slice(None)) -> Parts:
    """One sequence of a batch, at some columns."""
    return [part[row, columns] for part in parts]


def numbers(start: int, parts: Parts) -> Int[Tensor, " N"]:
    """Positions of rows that follow one another from `start` on."""
    return torch.arange(start, start + parts[-1].shape[0])


@dataclass(frozen=True)
class Errors:
    """Relative errors of rows against float64, (N, P), NaN where left out, with the sequence and the position each row has."""

    values: Float[Tensor, "N P"]
    sequence: Int[Tensor, " N"]
    position: Int[Tensor, " N"]

    @classmethod
    def of(cls, found: Parts, exact: Parts, sequence: int, position: Int[Tensor, " N"]) -> Errors:
        """|found - exact| of each row over the row's size, or the median row's where that is larger; inf where not finite.

        `exact` holds all rows of the sequence, `found` those at `position`.
        """
        columns = [_row_errors(f, e, e[position]) for f, e in zip(found, exact, strict=True)]
        return cls(torch.stack(columns, dim=1), torch.full_like(position, sequence), position)

    @classmethod
    def join(cls, parts: Iterable[Errors]) -> Errors:
        """The rows of all."""
        listed = list(parts)
        return cls(
            torch.cat([one.values for one in listed]),
            torch.cat([one.sequence for one in listed]),
            torch.cat([one.position for one in listed]),
        )

    def only(self, mask: Bool[Tensor, " N"]) -> Errors:
        """Some of the rows."""
        return Errors(self.values[mask], self.sequence[mask], self.position[mask])


def _row_errors(found: Tensor, exact: Tensor, rows: Tensor) -> Float[Tensor, " N"]:
    usual = exact.double().norm(dim=-1).median()
    size = rows.double().norm(dim=-1).maximum(usual).clamp(min=1e-300)
    error = ((found.double() - rows.double()).norm(dim=-1) / size).cpu()
    return torch.where(error.isfinite(), error, torch.full_like(error, torch.inf))


def rms(values: Float[Tensor, "N P"]) -> Float[Tensor, " P"]:
    """Root mean square over the rows that are not left out; 0 where all are."""
    return values.square().nanmean(dim=0).sqrt().nan_to_num(nan=0.0, posinf=torch.inf)


def worst(values: Float[Tensor, "N P"]) -> Float[Tensor, " P"]:
    """The largest of the rows that are not left out."""
    return values.nan_to_num(nan=0.0, posinf=torch.inf).amax(dim=0)
