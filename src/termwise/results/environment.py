"""What a figure was measured with and when: time, machine, versions."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

_PACKAGES = ("termwise", "torch", "numpy", "transformers", "accelerate", "tokenizers", "safetensors", "triton")


def now() -> str:
    """The time now, UTC, ISO 8601, to the millisecond.

    >>> now().endswith("+00:00")
    True
    """
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def versions() -> dict[str, str]:
    """Versions of the installed packages that numbers depend on, read without importing them."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def machine() -> dict[str, Any]:
    """Processor, cores this process may use, memory in bytes (None where the system does not say), platform, python."""
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, IndexError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = None
    with contextlib.suppress(AttributeError, ValueError, OSError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu,
        "cores": cores,
        "memory": memory,
        "platform": platform.platform(),
        "python": platform.python_version(),
    }
