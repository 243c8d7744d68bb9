"""Folding and reading with gradients: the features are made anew in the backward pass, head by head, and nothing of their size is kept.

N sequences times kv heads, F features, C or S columns, d key width, e value width; products are torch's, loops are compiled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from termwise.attention.backends import Loops, wants_gradient
from termwise.attention.backends.products import block_of, features_of, fold_into, parts_of, read_from
from termwise.attention.backends.tables import Tables


def folded(
    loops: Loops, tables: Tables, moments: Tensor, mass: Tensor, key: Tensor, value: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """New moments and mass with these keys in them: see products.fold_into."""
    moments, mass = _Fold.apply(moments, mass, key, value, weight, loops, tables)
    return moments, mass


def reading(
    loops: Loops, tables: Tables, moments: Tensor, mass: Tensor, query: Tensor, coefficients: Tensor
) -> tuple[Tensor, Tensor]:
    """U and Z of the folded keys, with gradients where they are wanted: see products.read_from."""
    if wants_gradient(moments, mass, query, coefficients):
        weighted, masses = _Read.apply(moments, mass, query, coefficients, loops, tables)
        return weighted, masses
    return read_from(loops, tables, moments, mass, query, coefficients)


class _Fold(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        moments: Tensor,
        mass: Tensor,
        key: Tensor,
        value: Tensor,
        weight: Tensor,
        loops: Loops,
        tables: Tables,
    ) -> tuple[Tensor, Tensor]:
        new = torch.empty_like(moments), torch.empty_like(mass)
        fold_into(loops, tables, moments, mass, key, value, weight, new)
        ctx.save_for_backward(key, value, weight)
        ctx.loops, ctx.tables = loops, tables
        return new

    @staticmethod
    def backward(ctx: Any, grad_moments: Tensor, grad_mass: Tensor) -> tuple[Any, ...]:
        with _plainly():
            return *_Fold.gradients(ctx, grad_moments, grad_mass), None, None

    @staticmethod
    def gradients(ctx: Any, grad_moments: Tensor, grad_mass: Tensor) -> tuple[Tensor, ...]:
        (key, value, weight), loops, tables = ctx.saved_tensors, ctx.loops, ctx.tables
        grad_key, grad_value, grad_weight = torch.empty_like(key), torch.empty_like(value), torch.empty_like(weight)
        keys, weighed = key.transpose(1, 2).contiguous(), value * weight[..., None]
        for n in range(key.shape[0]):
            for columns in parts_of(tables, key.shape[1]):
                x = keys[n, :, columns].contiguous()
                phi, grad = features_of(loops, tables, x), block_of("gradients", tables, x).zero_()
                read, mass = value.new_zeros(x.shape[1], value.shape[2]), value.new_zeros(x.shape[1])
                for first, start, length in tables.runs:
                    rows, kept = slice(first, first + length), slice(start, start + length)
                    torch.mm(grad_moments[n, kept], weighed[n, columns].T, out=grad[rows])
                    grad[rows].addr_(grad_mass[n, kept], weight[n, columns])
                    read.addmm_(phi[rows].T, grad_moments[n, kept])
                    mass.addmv_(phi[rows].T, grad_mass[n, kept])
                grad_value[n, columns] = read * weight[n, columns, None]
                grad_weight[n, columns] = (read * value[n, columns]).sum(dim=1) + mass
                grad_key[n, columns] = _through_monomials(loops, tables, x, phi, grad)
        return grad_moments, grad_mass, grad_key, grad_value, grad_weight


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, moments: Tensor, mass: Tensor, query: Tensor, coefficients: Tensor, loops: Loops, tables: Tables
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(moments, mass, query, coefficients)
        ctx.loops, ctx.tables = loops, tables
        return read_from(loops, tables, moments, mass, query, coefficients)

    @staticmethod
    def backward(ctx: Any, grad_weighted: Tensor, grad_masses: Tensor) -> tuple[Any, ...]:
        with _plainly():
            return *_Read.gradients(ctx, grad_weighted, grad_masses), None, None

    @staticmethod
    def gradients(ctx: Any, grad_weighted: Tensor, grad_masses: Tensor) -> tuple[Tensor | None, ...]:
        (moments, mass, query, coefficients), loops, tables = ctx.saved_tensors, ctx.loops, ctx.tables
        grad_moments, grad_mass, grad_query = torch.zeros_like(moments), torch.zeros_like(mass), torch.empty_like(query)
        grad_coefficients = torch.empty_like(coefficients) if ctx.needs_input_grad[3] else None
        queries, grad_weighted = query.transpose(1, 2).contiguous(), grad_weighted.contiguous()
        for n in range(query.shape[0]):
            gains = coefficients[n if coefficients.shape[0] > 1 else 0]
            for columns in parts_of(tables, query.shape[1]):
                x, grad_u, grad_z = (
                    queries[n, :, columns].contiguous(),
                    grad_weighted[n, columns],
                    grad_masses[n, columns],
                )
                phi, grad = features_of(loops, tables, x), block_of("gradients", tables, x)
                weighed, per_order = block_of("weighed", tables, x), x.new_empty(gains.shape[0], x.shape[1])
                for first, start, length in tables.runs:
                    rows, kept = slice(first, first + length), slice(start, start + length)
                    torch.mm(moments[n, kept], grad_u.T, out=grad[rows])
                    grad[rows].addr_(mass[n, kept], grad_z)
                loops.weigh_backward(
                    phi.numpy(), tables.offsets, tables.widths, tables.starts, tables.multiplicities,
                    gains[:, columns].contiguous().numpy(), grad.numpy(), weighed.numpy(), per_order.numpy(),
                )  # fmt: skip
                for first, start, length in tables.runs:
                    rows, kept = slice(first, first + length), slice(start, start + length)
                    grad_moments[n, kept].addmm_(weighed[rows], grad_u)
                    grad_mass[n, kept].addmv_(weighed[rows], grad_z)
                if grad_coefficients is not None:
                    grad_coefficients[n, :, columns] = per_order
                grad_query[n, columns] = _through_monomials(loops, tables, x, phi, grad)
        return grad_moments, grad_mass, grad_query, grad_coefficients


@contextlib.contextmanager
def _plainly() -> Iterator[None]:
    """A gradient of a gradient is refused: left alone, it would lack what runs through here, without a word.

    No autocast either: backward() may stand inside one, which would turn the products into bfloat16.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "create_graph=True asks for a gradient of a gradient, which states with folded keys do not offer in compiled form; "
            "set TERMWISE_COMPILED=off, or use form='parallel' without an initial_state"
        )
    with torch.autocast("cpu", enabled=False):
        yield


def _through_monomials(loops: Loops, tables: Tables, x: Tensor, phi: Tensor, grad: Tensor) -> Tensor:
    """Gradient (C, d) of the columns of x (d, C) from that of their monomials, which is written over."""
    grad_x = torch.empty_like(x)
    loops.monomials_backward(x.numpy(), tables.offsets, phi.numpy(), grad.numpy(), grad_x.numpy())
    return grad_x.T
