"""One case in a process of its own, started by `memory`: JSON on standard input, bytes on standard output.

Peaks of a process never fall, and what an earlier case left in the allocator would hide what the next one needs.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from termwise.attention.catalogue import catalogue
from termwise.attention.forms import attend
from termwise.attention.spec import AttentionSpec
from termwise.bench.baseline import FusedAttention, fused
from termwise.bench.config import BASELINE, BenchConfig
from termwise.bench.inputs import Shape, form_of, piece, tensors

# Tokens of the call before: it loads libraries and compiles, and folds at least once.
WARM = 200
Case = Callable[[dict[str, Any]], list[Tensor]]


def main() -> None:
    """Read a case, run it, print its bytes."""
    asked = json.load(sys.stdin)
    config = BenchConfig(**asked["config"])
    torch.set_num_threads(config.threads)
    shape = Shape.of(config)
    is_training = asked["measure"] == "training"
    spec = AttentionSpec() if asked["variant"] == BASELINE else catalogue.variant(asked["variant"]).spec
    form = asked["form"] or form_of(spec, shape, asked["length"])[0]
    given = tensors(spec, shape, asked["length"], config.seed)
    run = training_case(asked["variant"], spec, form) if is_training else prefill_case(asked, spec, form, shape)
    run(piece(given, 0, min(WARM, asked["length"])))
    extra, how = extra_bytes(lambda: run(given), shape.device)
    print(json.dumps({"extra": extra, "method": how, "form": "sdpa" if asked["variant"] == BASELINE else form}))


def prefill_case(asked: dict[str, Any], spec: AttentionSpec, form: str, shape: Shape) -> Case:
    """A prompt; what it hands back is its output and its state."""
    if asked["variant"] == BASELINE:
        attention = FusedAttention(shape, asked["length"])
        return lambda given: [attention.prefill(given["query"], given["key"], given["value"])]

    def run(given: dict[str, Any]) -> list[Tensor]:
        with torch.no_grad():
            out, state = attend(**given, spec=spec, form=form, output_final_state=True)
        assert state is not None
        return [out, *state.tensors.values()]

    return run


def training_case(variant: str, spec: AttentionSpec, form: str) -> Case:
    """Forward and backward; what they hand back is the output and the gradients."""

    def run(given: dict[str, Any]) -> list[Tensor]:
        leaves = {name: given[name].detach().requires_grad_() for name in ("query", "key", "value")}
        if variant == BASELINE:
            out = fused(**leaves)
        else:
            out, _ = attend(**given | leaves, spec=spec, form=form)
        out.sum().backward()
        return [out.detach(), *(leaf.grad for leaf in leaves.values() if leaf.grad is not None)]

    return run


def extra_bytes(run: Callable[[], list[Tensor]], device: torch.device) -> tuple[int, str]:
    """Bytes beyond what there was before and what is handed back, and how they were measured."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        held = run()
        peak, how = torch.cuda.max_memory_allocated(device), "torch's allocator on the card"
    elif sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        held = run()
        peak, how = _status("VmHWM"), "peak resident memory of a fresh process"
    else:
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        held = run()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        how = "peak resident memory of a fresh process, beyond its peak before"
    returned = sum(t.numel() * t.element_size() for t in held)
    return max(0, peak - before - returned), how


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


if __name__ == "__main__":
    main()
