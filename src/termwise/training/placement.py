"""Where a run computes: device, precision and processes, by accelerate."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from termwise.training.configuration import TrainingConfig


def _leave_group() -> None:
    """Threads of a process group that is still open when the interpreter goes down may abort the process."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


class Placement:
    """The device of this process, its number among the others, and the precision of the forward pass.

    Weights and optimizer stay fp32; "bfloat16" is autocast. One process costs nothing: the model is not wrapped.
    """

    def __init__(self, config: TrainingConfig) -> None:
        device = _device(config.device)
        is_launched = "LOCAL_RANK" in os.environ
        # cpu=True only under torchrun: without it accelerate would run one process per copy, silently; in a single
        # process it would fix the device for every later run.
        self.accelerator = Accelerator(
            cpu=is_launched and device.type == "cpu", mixed_precision="no", device_placement=False
        )
        self.num_processes = self.accelerator.num_processes
        if self.num_processes > 1:
            atexit.register(_leave_group)
        self.rank = self.accelerator.process_index
        self.is_main = self.accelerator.is_main_process
        self.device = self.accelerator.device if self.num_processes > 1 else device
        self.dtype = _dtype(config.dtype, self.device)

    def prepare(self, model: nn.Module) -> nn.Module:
        """The model on the device, wrapped for several processes when there are several."""
        return self.accelerator.prepare_model(model.to(self.device))

    def tensor(self, array: np.ndarray) -> Tensor:
        """The array on the device."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, non_blocking=True)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The precision of a forward pass."""
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes."""
        return tensor if self.num_processes == 1 else self.accelerator.reduce(tensor, "sum")

    def gather(self, value: Any) -> list[Any]:
        """The JSON-like value of every process, in order."""
        return [value] if self.num_processes == 1 else gather_object([value])

    def wait(self) -> None:
        """Until every process is here."""
        self.accelerator.wait_for_everyone()


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    """torch computes with `number` threads inside, with as many as before outside."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device={name!r}: {torch.cuda.device_count()} CUDA cards are usable here; 'auto' takes what is"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device='mps': not usable here; 'auto' takes what is")
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    has_bfloat16 = device.type != "cuda" or torch.cuda.is_bf16_supported()
    if name == "bfloat16" and not has_bfloat16:
        raise ValueError("dtype='bfloat16': this card has none; use 'float32'")
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" and has_bfloat16 else torch.float32
    return torch.bfloat16 if name == "bfloat16" else torch.float32
