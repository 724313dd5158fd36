"""Columns of a matrix moved to rows of another and back: units that a client does not hold wait one after another.

A number of a column is a cache line of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from fedbiad.arrays import FloatArray
from fedbiad.compiling import strict, strict_part
from fedbiad.products import LANES, NUMBER, loop, number, numbers, opened, place, shuffled

TOGETHER = 4
"""Numbers of a column that are moved at a time."""


def _moves() -> tuple[Any, Any]:
    @intrinsic
    def put_column(context, rows, row, matrix, column):  # type: ignore[no-untyped-def]
        """matrix[i, column] = rows[row, i] for all i."""
        return types.void(rows, row, matrix, column), _write_moves

    @intrinsic
    def exchange_column(context, rows, row, matrix, column, leaving):  # type: ignore[no-untyped-def]
        """rows[leaving, i] = matrix[i, column], and matrix[i, column] = rows[row, i], for all i."""
        return types.void(rows, row, matrix, column, leaving), _write_moves

    return put_column, exchange_column


put_column, exchange_column = _moves()


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


def _write_moves(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """By addresses, some at a time: a loop over arrays is guarded against what columns never are, side by side."""
    rows, row, matrix, column, *leaving = opened(context, builder, signature, arguments)
    _, _, size = numbers(matrix, LANES)
    bits, zero = ir.IntType(8 * size).as_pointer(), ir.Constant(NUMBER, 0)
    by_one = ir.Constant(NUMBER, size)
    by_row = builder.mul(number(builder, matrix, 1), by_one)
    row, column, *leaving = [
        value if value.type == NUMBER else builder.zext(value, NUMBER) for value in (row, column, *leaving)
    ]
    places = [place(builder, rows, row, zero), place(builder, matrix, zero, column)]
    places += [place(builder, rows, other, zero) for other in leaving]
    steps = [by_one, by_row, by_one][: len(places)]

    def some(count: int) -> Callable[[Any, list[Any]], list[Any]]:
        def following(_: Any, addresses: list[Any]) -> list[Any]:
            lists: list[list[Any]] = []
            for _ in range(count):
                lists.append([builder.inttoptr(address, bits) for address in addresses])
                addresses = [builder.add(*pair) for pair in zip(addresses, steps, strict=True)]
            coming, at, *away = zip(*lists, strict=True)
            new = [builder.load(source, align=size) for source in coming]
            old = [builder.load(target, align=size) for target in at] if away else []
            for value, target in [*zip(new, at, strict=True), *zip(old, *away, strict=True)]:
                builder.store(value, target, align=size)
            return addresses

        return following

    begun = [builder.ptrtoint(first, NUMBER) for first in places]
    total = number(builder, matrix, 0)
    left = builder.urem(total, ir.Constant(NUMBER, TOGETHER))
    loop(builder, left, 1, loop(builder, builder.sub(total, left), TOGETHER, begun, some(TOGETHER)), some(1))
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
