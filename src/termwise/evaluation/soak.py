"""A long text streamed through a cache: every attention beside its float64 twin, bytes, bad rows, time of a step.

The twin reads the very queries, keys and values that the layer was given, so that what it says is the error of this layer's
attention and state alone, however long ago it was made.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from termwise.attention.cost import cost
from termwise.attention.forms import attend
from termwise.attention.rows import RowCounts
from termwise.attention.state import FOLD, AttentionState
from termwise.evaluation.exam import forced, has_choices, reach, specs_of
from termwise.evaluation.judging import PROMISED

PIECE = 512
STEPS = 16  # timed single tokens at the start and at the end
PARTS = 8  # of the stream, for the drift over it
FAR, SCORES = 2048, 2**26  # tokens and scores a layer that a full pass over the beginning of the stream may have
SUMS = ("moments", "mass", "decayed_count", "key", "value")


@dataclass
class Twin:
    """Every attention of a model in float64, call by call. Errors are squared relative ones, summed over rows.

    A layer makes a call for each of its groups of heads: `rows` counts each apart.
    """

    rows: list[dict[int, RowCounts]]
    states: dict[tuple[int, int], AttentionState] = field(default_factory=dict)
    sums: dict[int, list[float]] = field(default_factory=dict)  # layer: squared errors, squared rounding, rows
    calls: list[int] = field(default_factory=list)
    apart: dict[int, tuple[float, str]] = field(default_factory=dict)  # layer: worst distance of a state's sums
    chosen: set[int] = field(default_factory=set)  # layers whose heavy slots chose otherwise than the twin's

    @classmethod
    def of(cls, num_layers: int) -> Twin:
        """A twin that has seen nothing."""
        return cls([{} for _ in range(num_layers)], apart=dict.fromkeys(range(num_layers), (0.0, "")))

    def begin(self) -> None:
        """A new call of the model."""
        self.calls = [0] * len(self.rows)

    def by(self, layer: int) -> Callable[..., Any]:
        """For `model.attending`."""

        def run(query: Tensor, key: Tensor, value: Tensor, spec: Any, **given: Any) -> Any:
            out, state = attend(query, key, value, spec, **given)
            number = self.calls[layer]
            self.calls[layer] += 1
            counts = self.rows[layer].setdefault(number, RowCounts())
            wide = _wide(given) | {"initial_state": self.states.get((layer, number)), "row_counts": counts}
            exact, twin = attend(query.double(), key.double(), value.double(), spec, **wide)
            assert twin is not None
            self.states[layer, number] = twin
            self._add(layer, out, exact)
            if has_choices(spec) and state is not None and not torch.equal(state.rank, twin.rank):
                self.chosen.add(layer)
            self._compare_states(layer, state, twin)
            return out, state

        return run

    def _add(self, layer: int, out: Tensor, exact: Tensor) -> None:
        size = exact.norm(dim=-1)
        size = size.maximum(size.median()).clamp(min=1e-300)
        kept = self.sums.setdefault(layer, [0.0, 0.0, 0.0])
        rounded = exact.to(out.dtype).double()
        for place, error in enumerate((out.double() - exact, rounded - exact)):
            kept[place] += float((error.norm(dim=-1) / size).square().sum())
        kept[2] += size.numel()

    def _compare_states(self, layer: int, state: AttentionState | None, twin: AttentionState) -> None:
        if state is None or state.key.shape != twin.key.shape:
            self.apart[layer] = (float("inf"), "the exact buffer")
            return
        for name in SUMS:
            one, two = getattr(state, name), getattr(twin, name)
            if one is None or not one.numel():
                continue
            distance = float((one.double() - two).norm() / two.norm().clamp(min=1e-300))
            distance = distance if distance == distance else float("inf")
            if distance > self.apart[layer][0]:
                self.apart[layer] = (distance, name)

    def take(self) -> dict[int, tuple[float, float]]:
        """Of each layer since the last call of this: error, and the error of rounding the exact output once."""
        found = {layer: ((a / n) ** 0.5, (b / n) ** 0.5) for layer, (a, b, n) in self.sums.items()}
        self.sums = {}
        return found


def _wide(given: dict[str, Any]) -> dict[str, Any]:
    def widen(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: widen(held) for name, held in value.items()}
        return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

    return {name: value if name == "initial_state" else widen(value) for name, value in given.items()}


@dataclass(frozen=True)
class Part:
    """One part of the stream: where it ends, errors by layer, bytes of the cache, and of its states without room for keys to come."""

    stop: int
    errors: dict[int, tuple[float, float]]
    nbytes: int
    held: int
    formula: int


@dataclass(frozen=True)
class Stream:
    """What was seen on the way."""

    parts: list[Part]
    apart: dict[int, tuple[float, str]]
    chosen: frozenset[int]
    rows: list[list[RowCounts]]  # of the groups of each layer
    first_step: float
    last_step: float
    not_finite: int | None
    is_constant: bool
    full_from: int  # tokens after which every exact slot is taken and keys have left
    has_states_alone: bool
    may_be_negative: bool
    dtype: torch.dtype
    far: tuple[list[int], Tensor] | None  # places, and by how much the logits there differ from a full pass


@torch.no_grad()
def stream(model: Any, text: Tensor, length: int, tick: Callable[[int], None]) -> Stream:
    """`length` tokens, in pieces of 512 and single tokens between; `tick` is told how many are done."""
    cache, twin = model.model.new_cache(), Twin.of(model.config.num_hidden_layers)
    parts: list[Part] = []
    not_finite: int | None = None
    clock: dict[int, list[float]] = {}
    done, compared = 0, min(length, FAR, math.isqrt(SCORES // model.config.num_attention_heads))
    ends: dict[int, Tensor] = {}
    unit = _phase(specs_of(model.config), length)
    stops = [round(length * (i + 1) / PARTS) // unit * unit for i in range(PARTS)]
    with model.attending(twin.by):
        for size in _pieces(length, stops):
            twin.begin()
            logits = model(text[done : done + size][None], cache=cache, logits_to_keep=1).logits
            if not_finite is None and not bool(logits.isfinite().all()):
                not_finite = done + size - 1
            done += size
            if done <= compared:
                ends[done - 1] = logits[0, -1].double().cpu()
            tick(done)
            if done in stops:
                parts.append(Part(done, twin.take(), cache.nbytes, _held(cache), _formula(model, cache, done)))
            if done in (stops[0], stops[-1]):
                clock[done] = _timed(model, text, cache, done)
    specs = specs_of(model.config)
    first, last = (statistics.median(clock[stop]) for stop in (stops[0], stops[-1]))
    return Stream(
        parts, twin.apart, frozenset(twin.chosen), [list(groups.values()) for groups in twin.rows], first, last, not_finite,
        all(spec.is_constant_size for spec in specs),
        max(map(reach, specs)) + 2 * FOLD,
        not any(layer.past for layer in cache.layers),
        any(getattr(spec.kernel, "allow_negative", False) for spec in specs),
        next(model.parameters()).dtype,
        _far(model, text, ends),
    )  # fmt: skip


def _far(model: Any, text: Tensor, ends: dict[int, Tensor]) -> tuple[list[int], Tensor] | None:
    """The logits at the ends of pieces against one pass that sees every score: what the twin shares with the stream is not in it."""
    if model.dtype not in PROMISED or not ends:
        return None
    places = list(ends)
    with model.attending(forced("parallel")):
        given = {"use_cache": False, "logits_to_keep": torch.tensor(places, device=text.device)}
        whole = model(text[None, : places[-1] + 1], **given).logits[0].double().cpu()
    return places, (torch.stack(list(ends.values())) - whole).norm(dim=1) / whole.norm(dim=1)


def _phase(specs: list[Any], length: int) -> int:
    """Tokens after which buffers are as long as before: folds, and where keys leave at positions of their own."""
    waits = [spec.local.evict_every for spec in specs if spec.local is not None and spec.local.evict_every]
    unit = math.lcm(FOLD, *waits)
    return unit if unit <= length // PARTS else FOLD


def _pieces(length: int, stops: list[int]) -> Iterator[int]:
    """Pieces with a few single tokens after each, that end at the stops."""
    done = 0
    for stop in stops:
        while done < stop:
            size = min(PIECE, stop - done)
            yield from (size - 3, 1, 1, 1) if size > 8 else (size,)
            done += size


def _timed(model: Any, text: Tensor, cache: Any, start: int) -> list[float]:
    """Seconds of single tokens on a branch, the model alone."""
    branch, times = cache.copy(), []
    watched = [layer.self_attn.attend_by for layer in model.model.layers]
    for layer in model.model.layers:
        layer.self_attn.attend_by = None
    for i in range(STEPS):
        place = (start + i) % len(text)
        began = time.perf_counter()
        model(text[place : place + 1][None], cache=branch)
        times.append(time.perf_counter() - began)
    for layer, by in zip(model.model.layers, watched, strict=True):
        layer.self_attn.attend_by = by
    return times


def _held(cache: Any) -> int:
    """Bytes of what the states hold."""
    tensors = (t for layer in cache.layers for state in layer.states for t in state.tensors.values())
    return sum(t.numel() * t.element_size() for t in tensors)


def _formula(model: Any, cache: Any, length: int) -> int:
    """Bytes that the states of all layers should have."""
    width = model.config.head_dim
    return sum(
        cost(state.spec, width, width, length, kv_heads=state.key.shape[1]).state_bytes
        for layer in cache.layers
        for state in layer.states
    )
