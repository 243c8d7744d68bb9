"""The scores of every head for the last token of a sentence: what the page's viewer draws weights from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from termwise.analysis.pretrained import Pretrained
from termwise.analysis.replacing import replaced
from termwise.analysis.replaying import run

MOST_TOKENS = 32


def sentence_scores(pretrained: Pretrained, tokenizer: Any, ids: Tensor) -> dict[str, Any]:
    """{"tokens": [...], "scores": layers x query heads x tokens}: the first tokens of a text, up to the last full stop among them.

    The scores are those of the last token's query, after rotary and norms, scaled.
    """
    tokens = [tokenizer.decode([i], clean_up_tokenization_spaces=False) for i in ids[0, :MOST_TOKENS].tolist()]
    ends = [place for place, token in enumerate(tokens) if "." in token and place >= MOST_TOKENS // 2]
    length = min(ids.shape[1], ends[-1] + 1 if ends else MOST_TOKENS)
    found: list[Tensor] = []

    def keep(_layer: int, query: Tensor, key: Tensor, _value: Tensor, scale: float) -> None:
        shared = query.shape[2] // key.shape[2]
        keys = key[0].double().repeat_interleave(shared, dim=1)
        found.append(scale * torch.einsum("hd,shd->hs", query[0, -1].double(), keys))

    with torch.no_grad(), replaced(pretrained, keep):
        run(pretrained, ids[:, :length])
    scores = [[[round(x, 4) for x in head] for head in layer.tolist()] for layer in found]
    return {"tokens": tokens[:length], "scores": scores}
