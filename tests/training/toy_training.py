"""A tiny causal model, tiny batches, and child processes that train it, to be killed by tests."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

VOCAB, CONTEXT, ROWS = 17, 12, 8
TOKENS = CONTEXT * ROWS


def make_batch(step: int, seed: int = 0) -> SimpleNamespace:
    """Rows of CONTEXT tokens, some cut into two documents, with an uneven share of scored labels."""
    generator = np.random.default_rng([seed, step])
    ids = generator.integers(0, VOCAB, size=(1, TOKENS))
    labels = np.where(generator.random((1, TOKENS)) < 0.6, (ids + 1) % VOCAB, -100)
    labels[:, :CONTEXT] = -100
    starts = {row * CONTEXT for row in range(ROWS)} | {row * CONTEXT + 5 for row in range(0, ROWS, 3)}
    return SimpleNamespace(input_ids=ids, labels=labels, cu_seqlens=np.array([*sorted(starts), TOKENS], dtype=np.int32))


def make_model(dropout: float = 0.1) -> Any:
    import torch
    from safetensors.torch import save_file
    from torch import nn

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q_proj, self.k_proj = nn.Linear(8, 8, bias=False), nn.Linear(8, 4, bias=False)
            self.v_proj, self.o_proj = nn.Linear(8, 4, bias=False), nn.Linear(8, 8, bias=False)

        def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            query = self.q_proj(hidden).view(1, -1, 2, 4).transpose(1, 2)
            key, value = (p(hidden).view(1, -1, 1, 4).transpose(1, 2) for p in (self.k_proj, self.v_proj))
            scores = (query @ key.transpose(2, 3) / 2).masked_fill(~mask, -torch.inf)
            return self.o_proj((scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2))

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.input_norm, self.self_attn, self.mlp = nn.LayerNorm(8), Attention(), nn.Linear(8, 8)

        def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            hidden = hidden + self.self_attn(self.input_norm(hidden), mask)
            return hidden + torch.tanh(self.mlp(hidden))

    class Toy(nn.Module):
        config = SimpleNamespace(num_attention_heads=2, num_key_value_heads=1)

        def __init__(self) -> None:
            super().__init__()
            self.embed_tokens = nn.Embedding(VOCAB, 8)
            self.layers = nn.ModuleList([Layer(), Layer()])
            self.norm, self.dropout = nn.LayerNorm(8), nn.Dropout(dropout)
            self.lm_head = nn.Linear(8, VOCAB, bias=False)
            self.lm_head.weight = self.embed_tokens.weight

        def forward(self, input_ids: torch.Tensor, cu_seqlens: torch.Tensor) -> SimpleNamespace:
            length = input_ids.shape[1]
            position = torch.arange(length)
            document = torch.bucketize(position, cu_seqlens[1:], right=True)
            mask = (document[:, None] == document) & (position[:, None] >= position)
            hidden = self.dropout(self.embed_tokens(input_ids))
            if self.training and dropout:
                # Python's and numpy's generators take part, so that their states matter.
                hidden = hidden * (1 + 0.01 * random.random() + 0.01 * np.random.rand())
            for layer in self.layers:
                hidden = layer(hidden, mask)
            return SimpleNamespace(logits=self.lm_head(self.norm(hidden)))

        def save_pretrained(self, path: str | Path) -> None:
            Path(path).mkdir(parents=True)
            tensors = {name: tensor for name, tensor in self.state_dict().items() if name != "lm_head.weight"}
            save_file(tensors, Path(path) / "model.safetensors")

    torch.manual_seed(5)
    return Toy()


def make_config(**changes: Any) -> Any:
    from termwise.training.configuration import TrainingConfig

    return TrainingConfig(
        **{"steps": 40, "tokens_per_step": TOKENS, "context": CONTEXT, "lr": 3e-3, "checkpoint_every": 3} | changes
    )


def log_lines(folder: Path) -> list[dict[str, Any]]:
    """The lines of log.jsonl without their times."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def run(folder: Path, options: dict[str, Any]) -> None:
    """What a child does: train the toy with `options`, dying where they say."""
    from termwise.training.loop import train

    options = dict(options)
    if "die_at_rename" in options:
        _die_at_rename(**options.pop("die_at_rename"))
    file_limit, sleep = options.pop("file_limit", None), options.pop("sleep", 0)
    if file_limit:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    model = make_model(options.pop("dropout", 0.1))
    train(model, make_batch, make_config(**options), folder, on_step=lambda line: time.sleep(sleep))


def _die_at_rename(count: int, when: str) -> None:
    rename, seen = os.rename, [0]

    def dying(source: Any, target: Any) -> None:
        seen[0] += str(source).endswith(".tmp")
        if seen[0] == count and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target)
        if seen[0] == count:
            os.kill(os.getpid(), signal.SIGKILL)

    os.rename = dying


class Nursery:
    """A process with torch loaded that forks a child a run: real processes, without the seconds of the import."""

    def __init__(self) -> None:
        self._pid = 0
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def start(self, folder: Path, **options: Any) -> int:
        """Fork a child that trains in `folder`; its process id. Its stderr is in FOLDER.err."""
        assert self._process.stdin is not None
        if self._pid:
            self.send(signal.SIGKILL)
            self.wait()
        self._process.stdin.write(json.dumps([str(folder), options]) + "\n")
        self._process.stdin.flush()
        self._pid = self._answer()
        assert self._pid > 0
        return self._pid

    def send(self, number: int) -> None:
        """Send the child a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def wait(self) -> int:
        """The exit status of the child: the code, or minus the signal that killed it."""
        self._pid = 0
        return self._answer()

    def run(self, folder: Path, **options: Any) -> int:
        self.start(folder, **options)
        return self.wait()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=20)

    def _answer(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


def _nurse() -> None:
    # A first run loads what torch and accelerate load late.
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), {"steps": 1})
    for line in sys.stdin:
        folder, options = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os._exit(_child(Path(folder), options))
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _child(folder: Path, options: dict[str, Any]) -> int:
    errors = os.open(f"{folder}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(errors, 2)
    try:
        run(folder, options)
    except SystemExit as leave:
        return int(leave.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 3:
        run(Path(sys.argv[1]), json.loads(sys.argv[2]))
    else:
        _nurse()
