"""Peak memory of `attend` in a fresh process, beside its inputs (Linux)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from tests.attention.compare import equal

MIB = 2**20
# (value's name, tokens, width, options of attend)
Case = tuple[str, int, int, dict[str, Any]]

CHILD = """
import ctypes, json, sys, torch
torch.set_num_threads(1)
from termwise.attention.forms import attend
from termwise.attention.names import parse

def now(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field)) * 1024

def peak(trains, name, length, width, options):
    make = torch.Generator().manual_seed(0)
    given = [(torch.randn(1, length, 1, width, generator=make) / width**0.25).requires_grad_(trains) for _ in range(3)]

    def run(count):
        out, _ = attend(*(t[:, :count] for t in given), parse(name), form="chunked", output_final_state=not trains, **options)
        if trains:
            torch.autograd.grad(out.sum(), given)

    run(200)
    ctypes.CDLL(None).malloc_trim(0)
    open("/proc/self/clear_refs", "w").write("5")
    before = now("VmRSS")
    run(length)
    return now("VmHWM") - before

trains, cases = json.loads(sys.argv[1])
print(json.dumps([peak(trains, *case) for case in cases]))
"""


def peaks_of(cases: Mapping[str, Case], *, trains: bool) -> dict[str, int]:
    """Bytes of the chunked form beside its inputs, one case after another; `trains`: forward and backward."""
    child = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps([trains, list(cases.values())])],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    equal(child.returncode, 0, child.stderr[-2000:])
    return dict(zip(cases, json.loads(child.stdout), strict=True))
