"""Columns of matrices: exchanged between two of them, or made rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from fedbiad.arrays import FloatArray
from fedbiad.compiling import strict, strict_part
from fedbiad.products import LANES, NUMBER, loop, number, numbers, opened, place, shuffled, spread

EXCHANGED = 8
"""Columns that are exchanged at a time; so many beyond the last one must belong to the same row."""


def _exchange() -> Any:
    @intrinsic
    def exchange_some(context, one, first, other, second, count):  # type: ignore[no-untyped-def]
        """Columns first .. first + count - 1 of one matrix change places with those of another from `second` on.

        At most `EXCHANGED` of them.
        """
        return types.void(one, first, other, second, count), _write_exchange

    return exchange_some


exchange_some = _exchange()


@strict_part
def exchange_columns(one: FloatArray, first: int, other: FloatArray, second: int, count: int) -> None:
    """Any number of them; rows of both have room beyond the last column that is exchanged."""
    for at in range(0, count, EXCHANGED):
        exchange_some(one, first + at, other, second + at, count - at)


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


def _write_exchange(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """By whole vectors, in which lanes that are not exchanged stay as they are: a store by a mask may take long."""
    one, first, other, second, count = opened(context, builder, signature, arguments)
    _, vector, size = numbers(one, EXCHANGED)
    lanes = ir.Constant(ir.VectorType(NUMBER, EXCHANGED), list(range(EXCHANGED)))
    exchanged = builder.icmp_signed("<", lanes, spread(builder, lanes.type, count))

    def following(i: Any, _: list[Any]) -> list[Any]:
        places = [
            builder.bitcast(place(builder, matrix, i, column), vector.as_pointer())
            for matrix, column in ((one, first), (other, second))
        ]
        own, others = (builder.load(at, align=size) for at in places)
        builder.store(builder.select(exchanged, others, own), places[0], align=size)
        builder.store(builder.select(exchanged, own, others), places[1], align=size)
        return []

    loop(builder, number(builder, one, 0), 1, [], following)
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
