"""Columns of a matrix moved to rows of another and back: units that a client does not hold wait one after another.

A number of a column is a cache line of its own. So columns are read many numbers at a time, and stored as vectors.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fedbiad.arrays import FloatArray
from fedbiad.compiling import strict_part
from fedbiad.products import LANES, NUMBER, number, numbers, opened, place, spread


def _some_of_column() -> Any:
    @intrinsic
    def some_of_column(context, matrix, first, column, into, row):  # type: ignore[no-untyped-def]
        """into[row, i] = matrix[i, column] for `LANES` of i from `first` on, or 0 where there is no such row."""
        return types.void(matrix, first, column, into, row), _write

    return some_of_column


some_of_column = _some_of_column()


@strict_part
def take_column(matrix: FloatArray, column: int, into: FloatArray, row: int) -> None:
    """Row of `into` = column of `matrix`, and 0 up to a multiple of `LANES`."""
    for i in range(0, len(matrix), LANES):
        some_of_column(matrix, i, column, into, row)


@strict_part
def put_column(rows: FloatArray, row: int, matrix: FloatArray, column: int) -> None:
    """Column of `matrix` = row of `rows`."""
    for i in range(len(matrix)):
        matrix[i, column] = rows[row, i]


def _write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    matrix, first, column, into, row = opened(context, builder, signature, arguments)
    scalar, vector, size = numbers(matrix, LANES)
    column, row = (value if value.type == NUMBER else builder.zext(value, NUMBER) for value in (column, row))
    counted = ir.VectorType(NUMBER, LANES)
    lanes = ir.Constant(counted, list(range(LANES)))
    step = builder.mul(number(builder, matrix, 1), ir.Constant(NUMBER, size))
    begin = builder.ptrtoint(place(builder, matrix, first, column), NUMBER)
    addresses = builder.add(spread(builder, counted, begin), builder.mul(lanes, spread(builder, counted, step)))
    left = builder.sub(number(builder, matrix, 0), first)
    there = builder.icmp_signed("<", lanes, spread(builder, counted, left))
    pointers = ir.VectorType(scalar.as_pointer(), LANES)
    gather = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
        builder.module,
        ir.FunctionType(vector, [pointers, ir.IntType(32), there.type, vector]),
        f"llvm.masked.gather.v{LANES}f{8 * size}.v{LANES}p0f{8 * size}",
    )
    nothing = ir.Constant(vector, [0.0] * LANES)
    found = builder.call(
        gather, [builder.inttoptr(addresses, pointers), ir.Constant(ir.IntType(32), size), there, nothing]
    )
    target = builder.bitcast(place(builder, into, row, first), vector.as_pointer())
    builder.store(found, target, align=size)
    return context.get_dummy_value()
