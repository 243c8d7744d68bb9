"""Training speed of termwise's loop and model against a bare hand-written PyTorch loop of the same shape.

    python benchmarks/training_speed.py [--repeats 9] [--steps 12] [--out benchmarks/records/training_speed.json]

Both train 0.81 M parameters (4 layers, width 128, 4 heads, 257 symbols) on 2,048 bytes a step in rows of 256, one thread, fp32,
AdamW, clipping. The baseline is what a careful person writes in one file: torch's fused attention, SwiGLU, RMSNorm, rotary,
tied embeddings, fused AdamW; no packing, no log, no checkpoint. Repeats are interleaved; the first of each is warm-up.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from termwise.models import build, num_parameters
from termwise.results import machine, versions
from termwise.training.configuration import TrainingConfig
from termwise.training.loop import train

LAYERS, WIDTH, HEADS, MLP, SYMBOLS, ROWS, CONTEXT = 4, 128, 4, 336, 257, 8, 256


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_a, self.norm_m = nn.RMSNorm(WIDTH, eps=1e-5), nn.RMSNorm(WIDTH, eps=1e-5)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 2 * MLP, bias=False), nn.Linear(MLP, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm_a(x)).view(ROWS, CONTEXT, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        q, k = q * cos + turned(q) * sin, k * cos + turned(k) * sin
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(ROWS, CONTEXT, WIDTH))
        gate, up = self.up(self.norm_m(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def turned(x: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([-b, a], dim=-1)


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5)
        width = WIDTH // HEADS
        angle = torch.arange(CONTEXT)[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)
        self.cos, self.sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.norm(x) @ self.embed.weight.T


def batch(step: int) -> SimpleNamespace:
    rng = np.random.default_rng(step)
    rows = rng.integers(0, 256, (ROWS, CONTEXT + 1))
    boundaries = np.arange(0, ROWS * CONTEXT + 1, CONTEXT, dtype=np.int32)
    return SimpleNamespace(
        input_ids=rows[:, :-1].reshape(1, -1), labels=rows[:, 1:].reshape(1, -1), cu_seqlens=boundaries
    )


def bare_seconds(steps: int) -> float:
    torch.manual_seed(0)
    model = Bare()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    started = time.perf_counter()
    for step in range(steps):
        data = batch(step)
        ids, labels = torch.from_numpy(data.input_ids).view(ROWS, CONTEXT), torch.from_numpy(data.labels).view(-1)
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
    return (time.perf_counter() - started) / steps


def our_seconds(steps: int, variant: str) -> float:
    model = build(variant, preset="tiny", vocab_size=SYMBOLS)
    config = TrainingConfig(
        steps=steps, tokens_per_step=ROWS * CONTEXT, context=CONTEXT, checkpoint_every=steps, device="cpu"
    )
    with tempfile.TemporaryDirectory() as folder:
        return train(model, batch, config, folder).seconds / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/records/training_speed.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = {"bare": bare_seconds} | {
        name: (lambda steps, name=name: our_seconds(steps, name)) for name in ("softmax", "linear_elu", "taylor:0..2")
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(options.repeats + 1):
        for name, run in runs.items():
            value = run(options.steps)
            if repeat:
                seconds[name].append(value)
    rows = {}
    for name, values in seconds.items():
        ratios = sorted(b / v for b, v in zip(seconds["bare"], values, strict=True))
        rows[name] = {
            "seconds_per_step": statistics.median(values), "low": min(values), "high": max(values),
            "speed_against_bare": statistics.median(ratios), "ratio_low": ratios[0], "ratio_high": ratios[-1],
        }  # fmt: skip
        each, share = rows[name]["seconds_per_step"] * 1e3, rows[name]["speed_against_bare"]
        print(
            f"{name:12s} {each:8.1f} ms/step   {share:.3f} of the bare loop's speed ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        )
    record = {
        "what": "training speed, tiny preset, against a bare PyTorch loop of the same shape", "command": "python benchmarks/training_speed.py",
        "parameters": {"bare": num_parameters(Bare()), "softmax": num_parameters(build("softmax", preset="tiny", vocab_size=SYMBOLS))},
        "repeats": options.repeats, "steps": options.steps, "threads": 1, "rows": rows, "machine": machine(), "versions": versions(),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
