"""Training: forward and backward of one layer's attention, in chunks and quadratically, against fused attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from termwise.attention.forms import attend
from termwise.attention.spec import AttentionSpec
from termwise.bench import agreement
from termwise.bench.agreement import Agreement
from termwise.bench.baseline import fused
from termwise.bench.config import BASELINE, BenchConfig
from termwise.bench.inputs import PER_TOKEN, Shape, form_of, plain_tensors, tensors
from termwise.bench.memory import in_child
from termwise.bench.rows import Figure, Row
from termwise.bench.timing import interleaved, seconds

FORMS = ("chunked", "parallel")
# Up to here the gradients of one kv head are compared with all scores in float64, beyond with other chunks in float64.
ALL_SCORES = 4096
# The quadratic form is tried at this length first; its memory grows with the square of the length.
TRIED = 1024
SHARE = 0.7  # of the memory that is free
LEAVES = ("query", "key", "value")


def measure(specs: Mapping[str, AttentionSpec], config: BenchConfig, shape: Shape, length: int) -> list[Row]:
    """A row of the baseline and of every spec in every form it has."""
    plain = plain_tensors(shape, length, config.seed)
    towards = torch.randn(
        shape.batch, length, shape.heads, shape.value_width, generator=torch.Generator().manual_seed(1)
    )
    towards = towards.to(shape.device, shape.dtype)
    runs: dict[str, Callable[[], float]] = {BASELINE: lambda: seconds(lambda: gradients(fused, plain, towards), shape)}
    rows = {BASELINE: Row(BASELINE, "training", length, num_tokens=length, form="sdpa")}
    for name, spec in specs.items():
        given = tensors(spec, shape, length, config.seed, plain)
        for form, why in forms_of(spec, shape, length).items():
            row = Row(name, "training", length, num_tokens=length, form=form, why=why)
            missing = too_large(name, form, config, length)
            failed = None if missing else disagreement(spec, form, given, towards, shape).reason
            rows[f"{name} {form}"] = replace(row, failed=failed, missing=missing)
            if not missing and not failed:
                runs[f"{name} {form}"] = _run(spec, form, given, towards, shape)
    for run in runs.values():
        run()
    times = interleaved(runs, config.repeats)
    found = []
    for key, row in rows.items():
        if key in times:
            over = zip(times[BASELINE], times[key], strict=True)
            ratios = () if row.is_baseline else tuple(base / own for base, own in over)
            row = replace(row, samples=tuple(times[key]), ratios=ratios, figures=_memory(row, config))
        found.append(row)
    return found


def forms_of(spec: AttentionSpec, shape: Shape, length: int) -> dict[str, str]:
    """Form -> why it is measured: both of a finite kernel, else the one there is."""
    form, why = form_of(spec, shape, length, hands_back=False)
    if form not in FORMS or not spec.is_constant_size:
        return {form: why}
    return {one: why if one == form else f"for comparison; by itself it takes {form}" for one in FORMS}


def gradients(attention: Callable[..., Tensor], given: Mapping[str, Any], towards: Tensor) -> dict[str, Tensor]:
    """Output and gradients of query, key and value for the cotangent `towards` (B, T, H, e)."""
    leaves = {name: given[name].detach().requires_grad_() for name in LEAVES}
    out = attention(**{**given, **leaves})
    out = out if out.shape == towards.shape else out.transpose(1, 2)
    found = torch.autograd.grad(out, list(leaves.values()), towards)
    return {"out": out.detach()} | dict(zip(LEAVES, found, strict=True))


def _attention(spec: AttentionSpec, form: str, chunk_size: int | None = None) -> Callable[..., Tensor]:
    return lambda **given: attend(**given, spec=spec, form=form, chunk_size=chunk_size)[0]


def _run(spec: AttentionSpec, form: str, given: dict[str, Any], towards: Tensor, shape: Shape) -> Callable[[], float]:
    return lambda: seconds(lambda: gradients(_attention(spec, form), given, towards), shape)


def disagreement(spec: AttentionSpec, form: str, given: dict[str, Any], towards: Tensor, shape: Shape) -> Agreement:
    """The farthest of output and gradients from those in float64, for the first kv head and its query heads."""
    group, length = shape.heads // shape.kv_heads, towards.shape[1]
    ours = gradients(_attention(spec, form), given, towards)
    some = first_head(given, group)
    if length <= ALL_SCORES or not spec.is_constant_size:
        exact_form, chunk, how = "parallel", None, "form='parallel' in float64"
    else:
        exact_form, chunk, how = "chunked", 48, "chunks of 48 in float64"
    exact = gradients(_attention(spec, exact_form, chunk), agreement.in_float64(some), towards[:, :, :group].double())
    heads = {"out": group, "query": group, "key": 1, "value": 1}
    usual = rounding(given, towards) if agreement.is_low_precision(towards.dtype) else {}
    how = f"{how}, gradients of kv head 0"
    compared = [
        agreement.compared(ours[name][:, :, : heads[name]], exact[name], how, usual.get(name, 0.0)) for name in exact
    ]
    return max(compared, key=lambda one: one.error / one.tolerance)


def rounding(given: dict[str, Any], towards: Tensor) -> dict[str, float]:
    """What torch's fused attention loses in the same type: the yardstick of gradients, which are rounded on their way."""
    plain = {name: given[name] for name in LEAVES}
    rough = gradients(fused, plain, towards)
    exact = gradients(fused, agreement.in_float64(plain), towards.double())
    return {name: agreement.distance(rough[name], exact[name]) for name in exact}


def first_head(given: dict[str, Any], group: int) -> dict[str, Any]:
    """The arguments for kv head 0 and its `group` query heads."""
    ends = {name: group if name in ("query", "output_gate") else 1 for name in PER_TOKEN}
    found = {name: value[:, :, : ends[name]] for name, value in given.items() if name in PER_TOKEN}
    if "parameters" in given:
        found["parameters"] = {
            name: value[:, :, :1]
            if name == "running_gate_score"
            else value[:1]
            if value.dim() == 1 and "exponent" in name
            else value
            for name, value in given["parameters"].items()
        }
    return found


def too_large(name: str, form: str, config: BenchConfig, length: int) -> str | None:
    """Why the quadratic form is not run: its memory, extrapolated from a shorter length, is more than is free."""
    if form != "parallel" or length <= TRIED:
        return None
    needed = in_child(name, "training", config, TRIED, form)["extra"] * (length / TRIED) ** 2
    free = free_bytes()
    if free is None or needed <= SHARE * free:
        return None
    return f"all scores at once would need about {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"


def free_bytes() -> int | None:
    """Memory that can be had; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)


def _memory(row: Row, config: BenchConfig) -> tuple[Figure, ...]:
    """Peak memory of one step in a fresh process, beyond inputs, output and gradients."""
    try:
        told = in_child(row.variant, "training", config, row.length, None if row.is_baseline else row.form)
    except ValueError as error:
        return (Figure("memory", "training_memory", "B", None, reason=str(error)),)
    return (Figure("memory", "training_memory", "B", float(told["extra"]), method=told["method"]),)
