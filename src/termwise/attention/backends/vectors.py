"""The one loop that the compiler does not vectorise well by itself: sums of weighted rows, kept in registers from row to row.

Loaded together with the loops, since it needs numba.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

# (vectors, numbers in each) of columns at a time, the widest first; the processor has registers for these or splits them.
COLUMNS = ((4, 16), (2, 16), (1, 16), (1, 8), (1, 4), (1, 1))
UNDER_WAY = 4  # sums that do not wait for each other: with fewer vectors of columns, several rows at a time


def _typed(typing: Any, weights: Any, rows: Any, out: Any) -> tuple[Any, Any]:
    return types.void(weights, rows, out), _generate


def _generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    weights, rows, out = (
        context.make_array(kind)(context, builder, a) for kind, a in zip(signature.args, arguments, strict=True)
    )
    length, width = cgutils.unpack_tuple(builder, rows.shape)
    begin = _whole(0)
    for count, lanes in COLUMNS:
        code = _Code(builder, lanes, weights.data, rows.data, out.data, width)
        end = builder.sub(width, builder.srem(builder.sub(width, begin), _whole(count * lanes)))
        with cgutils.for_range_slice(builder, begin, end, _whole(count * lanes), inc=True) as (column, _):
            code.add_columns(count, length, column)
        begin = end
    return context.get_dummy_value()


# out (e,) += weights (F,) @ rows (F, e). Rows of uint16 are the bits of bfloat16, the upper half of an fp32 number.
add_weighted_rows: Any = intrinsic(_typed)


def _whole(value: int) -> Any:
    return ir.Constant(ir.IntType(8 * np.dtype(np.intp).itemsize), value)


class _Code:
    """Writes what is done with vectors of `lanes` numbers."""

    def __init__(self, builder: Any, lanes: int, weights: Any, rows: Any, out: Any, width: Any) -> None:
        self._builder, self._lanes, self._width = builder, lanes, width
        self._weights, self._rows, self._out = weights, rows, out
        self._vector = ir.VectorType(out.type.pointee, lanes)

    def add_columns(self, count: int, length: Any, column: Any) -> None:
        """`count` vectors of columns from `column` on, all rows."""
        builder, at_a_time = self._builder, UNDER_WAY // count
        totals = [[cgutils.alloca_once(builder, self._vector) for _ in range(count)] for _ in range(at_a_time)]
        for total in itertools.chain.from_iterable(totals):
            builder.store(ir.Constant(self._vector, None), total)
        whole = builder.sub(length, builder.srem(length, _whole(at_a_time)))
        with cgutils.for_range_slice(builder, _whole(0), whole, _whole(at_a_time), inc=True) as (first, _):
            for r, of_row in enumerate(totals):
                self._add_row(builder.add(first, _whole(r)), column, of_row)
        with cgutils.for_range_slice(builder, whole, length, _whole(1), inc=True) as (row, _):
            self._add_row(row, column, totals[0])
        for c in range(count):
            found = self._load(self._out, column, c)
            for of_row in totals:
                found = builder.fadd(found, builder.load(of_row[c]))
            builder.store(found, self._at(self._out, column, c), align=1)

    def _add_row(self, row: Any, column: Any, totals: list[Any]) -> None:
        builder = self._builder
        weight = self._everywhere(builder.load(builder.gep(self._weights, [row])))
        start = builder.add(builder.mul(row, self._width), column)
        for c, total in enumerate(totals):
            term = builder.fmul(self._load(self._rows, start, c), weight, flags=("contract",))
            builder.store(builder.fadd(builder.load(total), term, flags=("contract",)), total)

    def _at(self, array: Any, start: Any, c: int) -> Any:
        place = self._builder.gep(array, [self._builder.add(start, _whole(c * self._lanes))])
        return self._builder.bitcast(place, ir.VectorType(array.type.pointee, self._lanes).as_pointer())

    def _load(self, array: Any, start: Any, c: int) -> Any:
        found = self._builder.load(self._at(array, start, c), align=1)
        if isinstance(array.type.pointee, ir.IntType):
            whole = ir.VectorType(ir.IntType(32), self._lanes)
            upper = self._builder.shl(self._builder.zext(found, whole), ir.Constant(whole, [16] * self._lanes))
            found = self._builder.bitcast(upper, ir.VectorType(ir.FloatType(), self._lanes))
            return found if found.type == self._vector else self._builder.fpext(found, self._vector)
        return found

    def _everywhere(self, number: Any) -> Any:
        nothing, place = ir.Constant(self._vector, ir.Undefined), ir.IntType(32)
        first = self._builder.insert_element(nothing, number, ir.Constant(place, 0))
        zeros = ir.Constant(ir.VectorType(place, self._lanes), [0] * self._lanes)
        return self._builder.shuffle_vector(first, nothing, zeros)
