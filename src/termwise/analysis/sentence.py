"""What each Taylor order does to a sentence: the weights of one head's last query, order by order.

Axes: L layers, H query heads, T tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

KEPT = ((0,), (0, 1), (0, 1, 2), (0, 1, 2, 3, 4), tuple(range(7)), tuple(range(9)))
CENTERS = ("zero", "mean")
TERMS = 9
MOST_TOKENS = 96


@dataclass(frozen=True)
class Look:
    """One query of one head: its scores, softmax's weights, and what truncations make of them.

    `weights[center, orders]` sum to one over the tokens and may be negative; `distances` are half the sum of their absolute
    differences from softmax (0: equal, 1: no common weight). `terms[n]` is x^n / n! over softmax's own denominator.
    """

    model: str
    layer: int
    head: int
    num_layers: int
    num_heads: int
    tokens: tuple[str, ...]
    scores: tuple[float, ...]
    softmax: tuple[float, ...]
    weights: dict[tuple[str, tuple[int, ...]], tuple[float, ...]]
    distances: dict[tuple[str, tuple[int, ...]], float]
    terms: tuple[tuple[float, ...], ...]


def look(folder: str | Path, sentence: str, *, layer: int | None = None, head: int | None = None) -> Look:
    """Run the model of a folder over the sentence and take one head's last query apart.

    Without `layer` and `head` the head is taken whose softmax weights are furthest from even. Errors: ValueError for a
    folder without model or tokenizer, a sentence of fewer than two or too many tokens, a layer or head that is not there.
    """
    from termwise.models.build import load
    from termwise.models.streaming import token_ids

    model, tokenizer = load(folder)
    if tokenizer is None:
        raise ValueError(f"{folder} holds no tokenizer, so it reads no sentence; copy a tokenizer.json into it")
    ids = token_ids(tokenizer, sentence, "the sentence")
    if not 2 <= ids.shape[1] <= MOST_TOKENS:
        raise ValueError(f"the sentence has {ids.shape[1]} tokens; allowed are 2 to {MOST_TOKENS}")
    scores = last_scores(model, ids)
    place = _choose(scores, layer, head)
    signs = tuple(tokenizer.decode([i], clean_up_tokenization_spaces=False) for i in ids[0].tolist())
    return taken_apart(str(folder), scores, place, signs)


def last_scores(model: Any, ids: Tensor) -> Tensor:
    """(L, H, T) float64: x_s = q_T.k_s / sqrt(d) of the last token in every layer and head, as the model computes them."""
    from termwise.models.layers import Attention
    from termwise.models.rotary import rotate

    found: list[Tensor] = []

    def capture(module: Attention, inputs: tuple[Any, ...]) -> None:
        hidden, layout, rotation = inputs[:3]
        query, key, _ = module._heads(hidden, layout, None)
        if module.options.qk_norm:
            query, key = module.q_norm(query), module.k_norm(key)
        if rotation is not None and module.options.rotary:
            query, key = rotate(query, rotation), rotate(key, rotation)
        shared = query.shape[2] // key.shape[2]
        key = key.double().repeat_interleave(shared, dim=2)
        found.append(torch.einsum("hd,shd->hs", query[0, -1].double(), key[0]) * module.head_dim**-0.5)

    handles = [m.register_forward_pre_hook(capture) for m in model.modules() if isinstance(m, Attention)]
    try:
        with torch.no_grad():
            model.eval()(input_ids=ids, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack(found)[..., -ids.shape[1] :]


def _choose(scores: Tensor, layer: int | None, head: int | None) -> tuple[int, int]:
    for name, given, size in (("layer", layer, scores.shape[0]), ("head", head, scores.shape[1])):
        if given is not None and not 0 <= given < size:
            raise ValueError(f"{name} {given}; this model has {name}s 0 to {size - 1}")
    weights = scores.softmax(dim=-1)
    evenness = -(weights * weights.clamp(min=1e-300).log()).sum(dim=-1)
    allowed = torch.full_like(evenness, math.inf)
    rows = slice(None) if layer is None else slice(layer, layer + 1)
    columns = slice(None) if head is None else slice(head, head + 1)
    allowed[rows, columns] = evenness[rows, columns]
    place = int(allowed.argmin())
    return place // scores.shape[1], place % scores.shape[1]


def taken_apart(model: str, scores: Tensor, place: tuple[int, int], tokens: tuple[str, ...]) -> Look:
    """The Look of one head, from the scores of all.

    >>> seen = taken_apart("", torch.zeros(1, 1, 2, dtype=torch.float64), (0, 0), ("a", "b"))
    >>> seen.softmax, seen.distances["zero", (0,)]
    ((0.5, 0.5), 0.0)
    """
    x = scores[place]
    softmax = x.softmax(dim=-1)
    weights = {(center, orders): truncated(x, orders, center) for center in CENTERS for orders in KEPT}
    total = x.logsumexp(dim=-1)
    terms = [(x**n / math.factorial(n)) / total.exp() for n in range(TERMS)]
    return Look(
        model=model, layer=place[0], head=place[1], num_layers=scores.shape[0], num_heads=scores.shape[1], tokens=tokens,
        scores=_numbers(x), softmax=_numbers(softmax),
        weights={key: _numbers(found) for key, found in weights.items()},
        distances={key: float((found - softmax).abs().sum() / 2) for key, found in weights.items()},
        terms=tuple(_numbers(term) for term in terms),
    )  # fmt: skip


def truncated(scores: Tensor, orders: tuple[int, ...], center: str) -> Tensor:
    """Weights of a truncated series over one row: sum_n (x - m)^n / n!, over their sum; m = 0 or the mean score."""
    from termwise.attention.kernels import Polynomial

    kernel = Polynomial(orders, center=center, allow_negative=True)
    raw = kernel.weights(scores - scores.mean(dim=-1, keepdim=True) if center == "mean" else scores)
    return raw / raw.sum(dim=-1, keepdim=True)


def _numbers(row: Tensor) -> tuple[float, ...]:
    return tuple(row.tolist())
