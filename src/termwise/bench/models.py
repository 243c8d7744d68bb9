"""Whole models: one step at depth, and generate(), against transformers' Llama of the same size with a static cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache
from transformers.generation.streamers import BaseStreamer

from termwise.bench import agreement
from termwise.bench.config import BASELINE, BenchConfig
from termwise.bench.decode import CHECKED, PIECE, Times
from termwise.bench.estimate import STRETCH
from termwise.bench.inputs import Shape
from termwise.bench.rows import Figure, Row
from termwise.bench.timing import Spread, interleaved, synchronize
from termwise.models.build import build, load
from termwise.models.cache import CACHE_FIELD
from termwise.models.causal_lm import TermwiseForCausalLM
from termwise.models.naming import Named

SYMBOLS = 257
NUM_GENERATED = 64
# Logits after all layers of a model: the promise for one layer, times ten.
TOLERANCE = 1e-4
# Beyond, the mask of a static cache for a whole prompt is larger than a gibibyte.
LONGEST_MASK = 32768


def open_model(named: Named, config: BenchConfig, shape: Shape) -> TermwiseForCausalLM:
    """The model of a folder, or one of a variant in the size "tiny" with random weights."""
    longest = max(config.lengths) + STRETCH
    if named.folder is not None:
        model, _ = load(named.folder)
    else:
        model = build(named.name, preset="tiny", vocab_size=SYMBOLS, seed=config.seed, max_position_embeddings=longest)
    return placed(model, shape.device, shape.dtype)


def llama_like(model: TermwiseForCausalLM, longest: int) -> Any:
    """Llama with the sizes of a model and random weights."""
    names = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "rms_norm_eps", "tie_word_embeddings",
    )  # fmt: skip
    sizes = {name: getattr(model.config, name) for name in names}
    config: Any = LlamaConfig(**sizes, max_position_embeddings=longest)
    config._attn_implementation = "sdpa"
    return placed(LlamaForCausalLM(config), model.device, model.dtype)


def placed(model: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """A model ready to be read with."""
    return model.to(device, dtype).eval()


@torch.no_grad()
def measure_step(named: Sequence[Named], config: BenchConfig, shape: Shape, length: int) -> list[Row]:
    """One token at a time after `length` tokens, logits included."""
    runs: dict[str, Callable[[], Times]] = {}
    rows = [Row(BASELINE, "step", length, num_tokens=STRETCH, form="sdpa")]
    for one in named:
        model = open_model(one, config, shape)
        ids = some_ids(model, config, length + STRETCH)
        if BASELINE not in runs:
            runs[BASELINE] = _llama_steps(llama_like(model, length + STRETCH), ids, length)
        row = Row(
            one.name,
            "step",
            length,
            num_tokens=STRETCH,
            form="recurrent",
            why="one token against the states of all layers",
        )
        try:
            cache = cache_after(model, ids, length)
        except ValueError as error:
            rows.append(replace(row, missing=str(error)))
            continue
        failed = _step_disagreement(model, cache, ids, length)
        figures = (Figure("memory", "state", "B", cache.nbytes, method="all layers"),)
        rows.append(replace(row, failed=failed, figures=figures))
        if failed is None:
            runs[one.name] = _steps(model, cache, ids, length)
    for run in runs.values():
        run()
    times = interleaved(runs, config.repeats)
    samples = {name: tuple(sum(clock) / len(clock) for clock in rounds) for name, rounds in times.items()}
    return [_timed(row, samples) for row in rows]


def _timed(row: Row, samples: dict[str, tuple[float, ...]], figures: tuple[Figure, ...] = ()) -> Row:
    if row.variant not in samples:
        return row
    over = zip(samples.get(BASELINE, ()), samples[row.variant], strict=False)
    ratios = () if row.is_baseline else tuple(base / own for base, own in over)
    return replace(row, samples=samples[row.variant], ratios=ratios, figures=(*row.figures, *figures))


def some_ids(model: TermwiseForCausalLM, config: BenchConfig, length: int) -> Tensor:
    """(B, T) random tokens."""
    make = torch.Generator().manual_seed(config.seed)
    return torch.randint(model.config.vocab_size, (config.batch, length), generator=make).to(model.device)


def cache_after(model: TermwiseForCausalLM, ids: Tensor, length: int) -> Any:
    """The states after the first `length` tokens, made piece by piece."""
    cache = model.model.new_cache()
    for start in range(0, length, PIECE):
        model(ids[:, start : min(start + PIECE, length)], cache=cache, logits_to_keep=1)
    return cache


def _steps(model: TermwiseForCausalLM, cache: Any, ids: Tensor, start: int) -> Callable[[], Times]:
    def run() -> Times:
        now, clock = cache.copy(), []
        with torch.no_grad():
            for i in range(start, start + STRETCH):
                started = time.perf_counter()
                model(ids[:, i : i + 1], cache=now)
                synchronize(model.device)
                clock.append(time.perf_counter() - started)
        return clock

    return run


def _llama_steps(llama: Any, ids: Tensor, start: int) -> Callable[[], Times]:
    """The same with keys and values of `start` tokens in a cache that is allocated once; what they are does not change the time."""
    cache = StaticCache(config=llama.config, max_cache_len=start + STRETCH)
    width, heads = llama.config.head_dim, llama.config.num_key_value_heads
    layers: list[Any] = cache.layers
    for layer in layers:
        pair = torch.randn(2, ids.shape[0], heads, start, width, dtype=llama.dtype, device=llama.device)
        layer.lazy_initialization(pair[0], pair[1])
        layer.keys[:, :, :start], layer.values[:, :, :start] = pair[0], pair[1]

    def run() -> Times:
        for layer in layers:
            layer.cumulative_length.fill_(start)
        clock = []
        with torch.no_grad():
            for i in range(start, start + STRETCH):
                started = time.perf_counter()
                llama(ids[:, i : i + 1], use_cache=True, **{CACHE_FIELD: cache})
                synchronize(llama.device)
                clock.append(time.perf_counter() - started)
        return clock

    return run


def _step_disagreement(model: TermwiseForCausalLM, cache: Any, ids: Tensor, start: int) -> str | None:
    """Logits of single steps against one forward pass over the whole text."""
    now, kept = cache.copy(), []
    for i in range(start, start + STRETCH):
        kept.append(model(ids[:, i : i + 1], cache=now).logits)
    whole = model(ids[:, : start + STRETCH], use_cache=False, logits_to_keep=STRETCH).logits
    places = list(CHECKED)
    error = agreement.distance(torch.cat(kept, dim=1)[:, places], whole[:, places])
    return agreement.Agreement(error, TOLERANCE, "a forward pass over the whole text").reason


class Clock(BaseStreamer):
    """When each token came."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        return None


@torch.no_grad()
def measure_generate(named: Sequence[Named], config: BenchConfig, shape: Shape, length: int) -> list[Row]:
    """generate() from a prompt of `length` tokens: a new token, and the wait for the first one apart."""
    runs: dict[str, Callable[[], tuple[float, float]]] = {}
    rows = [Row(BASELINE, "generate", length, num_tokens=NUM_GENERATED, form="sdpa")]
    if length > LONGEST_MASK:
        rows = [replace(rows[0], missing=f"a static cache makes a mask of {length:,} x {length:,}")]
    for one in named:
        model = open_model(one, config, shape)
        ids = some_ids(model, config, length)
        if BASELINE not in runs and length <= LONGEST_MASK:
            llama = llama_like(model, length + NUM_GENERATED)
            runs[BASELINE] = _generation(llama, ids, cache_implementation="static")
        row = Row(one.name, "generate", length, num_tokens=NUM_GENERATED, form="recurrent", why="states of all layers")
        try:
            failed = _generate_disagreement(model, ids)
        except ValueError as error:
            rows.append(replace(row, missing=str(error)))
            continue
        rows.append(replace(row, failed=failed))
        if failed is None:
            runs[one.name] = _generation(model, ids)
    for run in runs.values():
        run()
    times = interleaved(runs, config.repeats)
    samples = {name: tuple(each for _, each in rounds) for name, rounds in times.items()}
    found = []
    for row in rows:
        first = [wait for wait, _ in times.get(row.variant, [])]
        wait = (_first(Spread.of(first)),) if first else ()
        found.append(_timed(row, samples, wait))
    return found


def _first(spread: Spread) -> Figure:
    return Figure("speed", "first_token", "s", spread.median, spread, "from the call to the first new token")


def _generation(model: Any, ids: Tensor, **options: Any) -> Callable[[], tuple[float, float]]:
    """Seconds until the first new token, and of each further one."""

    def run() -> tuple[float, float]:
        clock, started = Clock(), time.perf_counter()
        generate(model, ids, streamer=clock, **options)
        _, *new = clock.times  # the prompt comes first
        return new[0] - started, (new[-1] - new[0]) / (len(new) - 1)

    return run


def generate(model: Any, ids: Tensor, **options: Any) -> Tensor:
    """The prompts (B, T) with their likeliest continuation of a fixed length."""
    mask = torch.ones_like(ids)
    sizes = {"min_new_tokens": NUM_GENERATED, "max_new_tokens": NUM_GENERATED, "do_sample": False, "pad_token_id": 0}
    return model.generate(ids, attention_mask=mask, **sizes, **options)


def _generate_disagreement(model: TermwiseForCausalLM, ids: Tensor) -> str | None:
    """Each token that came must be the likeliest by a forward pass over the whole text, up to rounding."""
    whole = generate(model, ids)
    logits = model(whole[:, :-1], use_cache=False, logits_to_keep=NUM_GENERATED).logits.double()
    if model.config.eos_token_id is not None:
        # generate() may not end before its length, so it never takes these.
        ends = model.config.eos_token_id
        logits[..., ends if isinstance(ends, list) else [ends]] = -torch.inf
    taken = logits.gather(2, whole[:, -NUM_GENERATED:, None])[..., 0]
    short = (logits.amax(dim=2) - taken).amax() / logits[logits.isfinite()].abs().amax()
    return agreement.Agreement(float(short), TOLERANCE, "a forward pass over the whole text").reason
