"""Running a form: outputs and every gradient of one fixed weighted sum of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from termwise.attention.forms import attend
from tests.attention import oracle
from tests.attention.values import leaves


def weights_like(out: Tensor, seed: int = 7) -> Tensor:
    """The gradient that is sent back through an output: fixed, of order one."""
    return torch.randn(out.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(out.dtype)


def gradients(out: Tensor, arguments: dict, where: Tensor | None = None) -> dict[str, Tensor | None]:
    """Gradients of every tensor handed in; `where` (B, T, H) leaves rows out."""
    weights = weights_like(out)
    weights = weights if where is None else weights * where[..., None]
    named = {name: t for name, t in leaves(arguments).items() if t.requires_grad}
    if not named:
        return {}
    found = torch.autograd.grad((out * weights).sum(), list(named.values()), allow_unused=True)
    return dict(zip(named, found, strict=True))


def run(
    function: Callable[..., Any], arguments: dict, where: Tensor | None = None, **options: Any
) -> tuple[Tensor, dict[str, Tensor | None]]:
    """(outputs, gradients) of `attend` or of the oracle."""
    out = function(**arguments, **options)
    out = out[0] if isinstance(out, tuple) else out
    return out.detach(), gradients(out, arguments, where)


def run_form(
    arguments: dict, spec: Any, form: str, chunk_size: int | None = None, where: Tensor | None = None, **options: Any
):
    return run(attend, arguments, where, spec=spec, form=form, chunk_size=chunk_size, **options)


def run_oracle(arguments: dict, spec: Any, where: Tensor | None = None, **options: Any):
    return run(oracle.attend, arguments, where, spec=spec, **options)


def clone(arguments: dict, dtype: torch.dtype, requires_grad: bool = True) -> dict:
    """The same numbers in another type, as leaves of their own."""

    def one(t: Tensor) -> Tensor:
        return t.detach().to(dtype).clone().requires_grad_(requires_grad)

    out = {name: one(t) if isinstance(t, Tensor) and t.is_floating_point() else t for name, t in arguments.items()}
    return {**out, "parameters": {name: one(t) for name, t in arguments.get("parameters", {}).items()}}
