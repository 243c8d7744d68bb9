"""What `termwise bench` does not measure of the recurrences: figures of one run, each a ratio to something named.

    python benchmarks/recurrences.py [naive] [half] [steps] [error] [training] [--model FOLDER] [--out benchmarks/records/recurrences.json]

naive     one decoded token against the naive way: features by index, all products written out, one cumulated state
half      steps that read a bfloat16 copy, against the fp32 state and against fused attention over a bfloat16 cache
steps     a model of 0.8 M parameters, or that of FOLDER, writes 32k tokens: time of the last 1k over a fresh first 1k in turn
          with it, live bytes
error     fp32 chunks and steps against float64 at 16k tokens, scores of spread 2 about means up to 10
training  forward and backward of 8k tokens in chunks and with all scores, time and peak memory, a fresh process each

8 heads, batch 1, one thread, fp32. Repeats are interleaved, medians are shown; the first repeat is warm-up. Times are those of
the thread on its processor, so that other programs' turns do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from termwise.attention.catalogue import catalogue
from termwise.attention.forms import attend
from termwise.attention.monomials import exponents, multiplicities
from termwise.attention.reference import reference_rows
from termwise.attention.state import AttentionState
from termwise.models import TermwiseCache, build
from termwise.models.build import load
from termwise.results import machine, now, versions

HEADS, STRETCH = 8, 128
Step = Callable[[Tensor, Tensor, Tensor], Tensor]


def spec_of(name: str):
    return catalogue.variant(name).spec


def random_tokens(length: int, width: int, seed: int = 0) -> list[Tensor]:
    make = torch.Generator().manual_seed(seed)
    return [torch.randn(1, length, HEADS, width, generator=make) * 0.7 for _ in range(3)]


def medians(runs: dict[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """Median seconds of each, in turn round after round, the first round apart."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(repeats + 1):
        for name, run in runs.items():
            seconds = run()
            if number:
                found[name].append(seconds)
    return {name: statistics.median(samples) for name, samples in found.items()}


def state_after(name: str, width: int, length: int) -> AttentionState:
    _, state = attend(*random_tokens(length, width), spec_of(name), output_final_state=True)
    assert state is not None
    return state


def decode(name: str, state: AttentionState, width: int, count: int = STRETCH) -> Callable[[], float]:
    """Mean seconds of a token over a stretch that folds twice."""
    spec, tokens = spec_of(name), random_tokens(count, width, seed=1)
    cut = [[t[:, i : i + 1] for t in tokens] for i in range(count)]

    def run() -> float:
        now_, started = state, time.thread_time()
        for query, key, value in cut:
            _, now_ = attend(query, key, value, spec, initial_state=now_, output_final_state=True)
        return (time.thread_time() - started) / count

    return run


class Naive:
    """sum over orders of C(d + n - 1, n) features as products of gathered columns, times the value, added to one state."""

    def __init__(self, width: int, top: int) -> None:
        self.indices = [
            torch.tensor(exponents(width, n), dtype=torch.int64).reshape(-1 if n else 1, n) for n in range(top + 1)
        ]
        counts = [
            torch.from_numpy(multiplicities(width, n)) / torch.prod(torch.arange(1, n + 1)) for n in range(top + 1)
        ]
        self.coefficients = torch.cat(counts).float()
        self.scale, self.is_odd = width**-0.25, top % 2 == 1
        self.sums = torch.zeros(HEADS, len(self.coefficients), width + 1)

    def features(self, x: Tensor) -> Tensor:
        return torch.cat([(x * self.scale)[:, index].prod(dim=-1) for index in self.indices], dim=-1)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ones = torch.cat([value, torch.ones_like(value[:, :1])], dim=-1)
        self.sums = self.sums + self.features(key)[..., None] * ones[:, None, :]
        read = torch.einsum("hf,hfe->he", self.features(query) * self.coefficients, self.sums)
        # An odd top order has no positive row sum: the vector norm serves there.
        return torch.nn.functional.normalize(read[:, :-1], dim=-1) if self.is_odd else read[:, :-1] / read[:, -1:]


def naive() -> list[dict]:
    rows = []
    for width, top in ((16, 4), (32, 3), (64, 2)):
        name = f"taylor:0..{top}" + ("|l2" if top % 2 else "")
        tokens = [t[0] for t in random_tokens(300, width)]
        step, spec = Naive(width, top), spec_of(name)
        slow = torch.stack([step(*(t[i] for t in tokens)) for i in range(200)])
        fast, _ = attend(*(t[None, :200] for t in tokens), spec)
        error = float((slow - fast[0]).norm() / fast.norm())
        assert error < 1e-5, f"{name}: the two ways differ by {error:.2g}"

        def slow_run(step: Naive = step, tokens: list[Tensor] = tokens) -> float:
            started = time.thread_time()
            for i in range(8):
                step(*(t[200 + i] for t in tokens))
            return (time.thread_time() - started) / 8

        found = medians({"naive": slow_run, "termwise": decode(name, state_after(name, width, 300), width)}, 7)
        rows.append(
            {"variant": name, "key_width": width, **found, "ratio": found["naive"] / found["termwise"], "error": error}
        )
    return rows


def half() -> list[dict]:
    rows = []
    for name, width, length in (("taylor:0..2", 64, 2048), ("taylor:0..3|l2", 64, 24576)):
        state = state_after(name, width, 400)
        copy = state.reading_half()
        cache = [torch.randn(1, HEADS, length, width).bfloat16() for _ in range(2)]
        query = torch.randn(1, HEADS, 1, width).bfloat16()
        tokens = random_tokens(1, width, seed=2)
        exact, rough = (attend(*tokens, spec_of(name), initial_state=s)[0] for s in (state, copy))

        def fused(query: Tensor = query, cache: list[Tensor] = cache) -> float:
            started = time.thread_time()
            for _ in range(8):
                scaled_dot_product_attention(query, *cache)
            return (time.thread_time() - started) / 8

        count = 32 if length > 4096 else STRETCH
        runs = {
            "fp32": decode(name, state, width, count),
            "half": decode(name, copy, width, count),
            "fused_bf16": fused,
        }
        found = medians(runs, 5)
        error = float((rough - exact).norm() / exact.norm())
        rows.append(
            {"variant": name, "key_width": width, "cache_length": length, **found, "error": error, "fp32_bytes": state.nbytes,
             "bytes": copy.nbytes, "cache_bytes": sum(t.nbytes for t in cache), "half_over_fp32": found["half"] / found["fp32"]}
        )  # fmt: skip
    return rows


@torch.inference_mode()
def steps(folder: str | None = None, length: int = 32768, counted: int = 1024) -> list[dict]:
    """A cache that holds nearly all tokens and a fresh one, in turn: what the machine does meanwhile hits both."""
    rows = []
    for name in (folder,) if folder else ("taylor:0..2", "linear_elu"):
        model = (load(folder)[0] if folder else build(name, vocab_size=257, max_position_embeddings=length)).eval()
        deep = Writer(model)
        deep.write(length - 256 - counted)
        fresh, found = Writer(model), {"first_1k": [], "last_1k": []}
        for _ in range(counted // STRETCH):
            found["first_1k"] += fresh.write(STRETCH)
            found["last_1k"] += deep.write(STRETCH)
        means = {part: statistics.mean(times) for part, times in found.items()}
        middles = {part: statistics.median(times) for part, times in found.items()}
        rows.append(
            {"variant": name, "tokens": length, **means, "ratio": means["last_1k"] / means["first_1k"],
             "median_ratio": middles["last_1k"] / middles["first_1k"],
             "most_bytes_first_1k": max(fresh.sizes[-counted:]), "most_bytes_last_1k": max(deep.sizes[-counted:])}
        )  # fmt: skip
    return rows


class Writer:
    """A model that writes token after token behind a prompt of 256."""

    def __init__(self, model: Any) -> None:
        self.model, self.cache = model, TermwiseCache(model.config.num_hidden_layers)
        self.token, self.sizes = torch.zeros(1, 1, dtype=torch.int64), []
        model(torch.zeros(1, 256, dtype=torch.int64), cache=self.cache)

    def write(self, count: int) -> list[float]:
        """Seconds of each token."""
        times = []
        for _ in range(count):
            started = time.thread_time()
            self.token = self.model(self.token, cache=self.cache).logits[:, -1:].argmax(dim=-1)
            times.append(time.thread_time() - started)
            self.sizes.append(self.cache.nbytes)
        return times


def scores_about(mean: float, length: int, width: int) -> list[Tensor]:
    """Scores of spread 2 about `mean` for every query, from keys that share a large vector."""
    make = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, length, 1, width, generator=make) for _ in range(3))
    query, key = query * 2**0.5, key * 2**0.5
    if mean:
        shared = (mean * width**0.5) ** 0.5
        query[..., 0], key[..., 0] = shared, shared
    return [query, key, value]


@torch.no_grad()
def error(length: int = 16384) -> list[dict]:
    rows, places = [], [1000, 4000, 9999, 16000, 16383]
    for width, top in ((64, 2), (16, 4)):
        for mean in (0.0, 3.6, 10.0):
            name = f"taylor:0..{top}@mean"
            tokens, spec = scores_about(mean, length, width), spec_of(name)
            exact = reference_rows(*tokens, spec=spec, rows=places)
            chunks, _ = attend(*tokens, spec, form="chunked")
            before = length - 64
            _, state = attend(*(t[:, :before] for t in tokens), spec, form="chunked", output_final_state=True)
            for i in range(before, length):
                last, state = attend(
                    *(t[:, i : i + 1] for t in tokens), spec, initial_state=state, output_final_state=True
                )
            found = {"chunked": chunks[:, places], "step": last}
            wanted = {"chunked": exact, "step": exact[:, -1:]}
            rows.append(
                {"variant": name, "key_width": width, "mean": mean}
                | {
                    form: float((out.double() - wanted[form]).norm() / wanted[form].norm())
                    for form, out in found.items()
                }
            )
    return rows


def resident(field: str) -> int:
    """VmRSS or VmHWM (the peak) of this process, bytes (Linux)."""
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(field))
    return 1024 * int(line.split()[1])


def train_once(form: str, length: int) -> dict:
    """Seconds and peak bytes beyond the inputs of one forward and backward pass, in this process, after a warm-up."""
    warm = [t.requires_grad_() for t in random_tokens(600, 16)]
    attend(*warm, spec_of("taylor:0..2"), form=form)[0].sum().backward()
    tokens = [t.requires_grad_() for t in random_tokens(length, 16)]
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    before, started = resident("VmRSS"), time.thread_time()
    attend(*tokens, spec_of("taylor:0..2"), form=form)[0].sum().backward()
    seconds = time.thread_time() - started
    return {"seconds": seconds, "bytes": resident("VmHWM") - before}


def training(length: int = 8192) -> list[dict]:
    rows = []
    for form in ("chunked", "parallel", "chunked"):
        program = f"import json, recurrences; print(json.dumps(recurrences.train_once({form!r}, {length})))"
        child = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
        )
        rows.append(
            {"variant": "taylor:0..2", "key_width": 16, "tokens": length, "form": form} | json.loads(child.stdout)
        )
    return rows


PARTS = {"naive": naive, "half": half, "steps": steps, "error": error, "training": training}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "records" / "recurrences.json")
    parser.add_argument("--model", metavar="FOLDER", help="a converted model for `steps`")
    given = parser.parse_args()
    if given.model and given.parts != ["steps"]:
        parser.error("--model goes with steps alone")
    torch.set_num_threads(1)
    found = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    for part in given.parts or list(PARTS):
        with torch.set_grad_enabled(part == "training"):
            rows = steps(given.model) if given.model else PARTS[part]()
        found[part] = {"measured": now(), "versions": versions(), "machine": machine(), "rows": rows}
        for row in rows:
            print(part, json.dumps(row))
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
