"""Columns of a matrix moved to rows of another and back: units that a client does not hold wait one after another.

A number of a column is a cache line of its own. So columns are read many numbers at a time, and stored as vectors.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from fedbiad.arrays import FloatArray
from fedbiad.compiling import strict_part
from fedbiad.training.products import LANES, NUMBER, number, numbers, opened, place


def _some_of_column() -> Any:
    @intrinsic
    def some_of_column(context, matrix, first, column, into, row):  # type: ignore[no-untyped-def]
        """into[row, i] = matrix[i, column] for `LANES` of i from `first` on."""
        return types.void(matrix, first, column, into, row), _write

    return some_of_column


some_of_column = _some_of_column()


@strict_part
def take_column(matrix: FloatArray, column: int, into: FloatArray, row: int) -> None:
    """Row of `into` = column of `matrix`."""
    i = 0
    while i + LANES <= len(matrix):
        some_of_column(matrix, i, column, into, row)
        i += LANES
    for j in range(i, len(matrix)):
        into[row, j] = matrix[j, column]


@strict_part
def take_columns(matrix: FloatArray, into: FloatArray) -> None:
    """Rows of `into` = columns of `matrix`, all of them; some rows of it after others, as memory is read fastest."""
    i = 0
    while i + LANES <= len(matrix):
        for column in range(matrix.shape[1]):
            some_of_column(matrix, i, column, into, column)
        i += LANES
    for j in range(i, len(matrix)):
        for column in range(matrix.shape[1]):
            into[column, j] = matrix[j, column]


@strict_part
def put_column(rows: FloatArray, row: int, matrix: FloatArray, column: int) -> None:
    """Column of `matrix` = row of `rows`."""
    for i in range(len(matrix)):
        matrix[i, column] = rows[row, i]


def _write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    matrix, first, column, into, row = opened(context, builder, signature, arguments)
    _, vector, size = numbers(matrix, LANES)
    column, row = (value if value.type == NUMBER else builder.zext(value, NUMBER) for value in (column, row))
    at, stride = place(builder, matrix, first, column), number(builder, matrix, 1)
    found = ir.Constant(vector, ir.Undefined)
    for lane in range(LANES):
        found = builder.insert_element(found, builder.load(at), ir.Constant(ir.IntType(32), lane))
        at = builder.gep(at, [stride])
    target = builder.bitcast(place(builder, into, row, first), vector.as_pointer())
    builder.store(found, target, align=size)
    return context.get_dummy_value()
