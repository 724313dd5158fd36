"""Columns of a matrix moved to rows of another and back: units that a client does not hold wait one after another.

A number of a column is a cache line of its own. So columns are read many numbers at a time, and stored as vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fedbiad.arrays import FloatArray
from fedbiad.compiling import strict, strict_part
from fedbiad.products import LANES, NUMBER, number, numbers, opened, place, shuffled, spread


def _some_of_column() -> Any:
    @intrinsic
    def some_of_column(context, matrix, first, column, into, row):  # type: ignore[no-untyped-def]
        """into[row, i] = matrix[i, column] for `LANES` of i from `first` on, or 0 where there is no such row."""
        return types.void(matrix, first, column, into, row), _write

    return some_of_column


some_of_column = _some_of_column()


def _turned_block() -> Any:
    @intrinsic
    def turned_block(context, matrix, row, last, column, into, rows):  # type: ignore[no-untyped-def]
        """into[column + n, row + m] = matrix[row + m, column + n] for n, m < `LANES`, as far as column + n < rows.

        Past row `last` of the matrix that one is taken again.
        """
        return types.void(matrix, row, last, column, into, rows), _write_block

    return turned_block


turned_block = _turned_block()


@strict_part
def turn(matrix: FloatArray, rows: int, columns: int, into: FloatArray) -> None:
    """into[j, i] = matrix[i, j] for i < rows and j < columns, block by block; beyond, `into` may get anything.

    A row of the one in which a whole vector has no room makes the last blocks overlap.
    """
    if min(matrix.shape[1], into.shape[1]) < LANES:
        for j in range(columns):
            for i in range(rows):
                into[j, i] = matrix[i, j]
        return
    for first in range(0, rows, LANES):
        row = min(first, into.shape[1] - LANES)
        for j in range(0, columns, LANES):
            turned_block(matrix, row, rows - 1, min(j, matrix.shape[1] - LANES), into, columns)


@strict
def turned(matrix: FloatArray) -> FloatArray:
    """Its transpose, written out."""
    into = np.empty((matrix.shape[1], matrix.shape[0]), matrix.dtype)
    turn(matrix, matrix.shape[0], matrix.shape[1], into)
    return into


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


def _write_block(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    matrix, row, last, column, into, rows = opened(context, builder, signature, arguments)
    _, vector, size = numbers(matrix, LANES)

    def vector_at(array: Any, row: Any, column: Any) -> Any:
        return builder.bitcast(place(builder, array, row, column), vector.as_pointer())

    lines = []
    for n in range(LANES):
        wanted = builder.add(row, ir.Constant(NUMBER, n))
        there = builder.select(builder.icmp_signed("<", wanted, last), wanted, last)
        lines.append(builder.load(vector_at(matrix, there, column), align=size))
    apart = 1
    while apart < LANES:  # blocks of so many lanes change places between lines so far apart
        for n in (n for n in range(LANES) if not n & apart):
            one, other = lines[n], lines[n + apart]
            firsts = [lane if not lane & apart else LANES + lane - apart for lane in range(LANES)]
            lines[n] = shuffled(builder, one, other, firsts)
            lines[n + apart] = shuffled(builder, one, other, [lane + apart for lane in firsts])
        apart *= 2
    for n, line in enumerate(lines):
        target = builder.add(column, ir.Constant(NUMBER, n))
        with builder.if_then(builder.icmp_signed("<", target, rows)):
            builder.store(line, vector_at(into, target, row), align=size)
    return context.get_dummy_value()
