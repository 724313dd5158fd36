"""Positions in about as many bits as there is to tell: all alike, or by the rows and columns of a matrix.

The largest changes of trained matrices share rows (units that learn) and columns (inputs that are on). A grid names the
rows that occur, how many entries each has, and then each row's entries, with the columns of the rows before it, and
their neighbours, as the more likely ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fedbiad.arrays import IntArray
from fedbiad.coding.range_coder import Coder, Symbols, Words, decode_row, encode_row
from fedbiad.coding.sink import Sink
from fedbiad.coding.source import Source
from fedbiad.coding.subsets import get_subset, put_subset
from fedbiad.compiling import strict, strict_part
from fedbiad.errors import WireError

Blocks = Sequence[tuple[int, int]]
"""The matrices (rows, columns) whose entries, one after the other, the positions count; a vector is one row."""

SPARSEST = 512
"""Cells of a grid an entry, at most: each costs about 40 ns."""
LEARNT = 4
"""What a column weighs more for every row before that had an entry there; its neighbours weigh 1 more."""


def put_positions(sink: Sink, positions: IntArray, blocks: Blocks) -> bool:
    """Write strictly ascending positions, over all blocks at one density or block by block; True: by blocks."""
    size = sum(rows * columns for rows, columns in blocks)
    if len(positions) and (positions[0] < 0 or positions[-1] >= size or (np.diff(positions) <= 0).any()):
        raise WireError(f"positions must ascend strictly within 0 .. {size - 1}")
    flat, blocked = sink.branch(), sink.branch()
    flat.varint(len(positions))
    put_subset(flat, positions, size)
    for start, (rows, columns) in starts(blocks):
        inside = positions[np.searchsorted(positions, start) : np.searchsorted(positions, start + rows * columns)]
        _put_block(blocked, inside - start, rows, columns)
    by_blocks = blocked.bits() < flat.bits()
    sink.take(blocked if by_blocks else flat)
    return by_blocks


def get_positions(source: Source, blocks: Blocks, by_blocks: bool, room: int) -> IntArray:
    """Read positions over blocks; the message has room for the values of `room` of them."""
    if not by_blocks:
        size = sum(rows * columns for rows, columns in blocks)
        return get_subset(source, size, source.varint("the number of positions", min(size, room)))
    found: list[IntArray] = [np.zeros(0, dtype=np.int64)]
    for start, (rows, columns) in starts(blocks):
        found.append(start + _get_block(source, rows, columns, room))
        room -= len(found[-1])
    return np.concatenate(found)


def starts(blocks: Blocks) -> Iterator[tuple[int, tuple[int, int]]]:
    """Where each block begins among all entries, and its shape."""
    start = 0
    for rows, columns in blocks:
        yield start, (rows, columns)
        start += rows * columns


# ---------------------------------------------------------------------- rows and columns


def _put_block(sink: Sink, positions: IntArray, rows: int, columns: int) -> None:
    """Write the positions of one block: as a grid if that is shorter."""
    sink.varint(len(positions))
    if not len(positions):
        return
    if rows == 1 or columns == 1:
        put_subset(sink, positions, rows * columns)
        return
    flat, grid = sink.branch(), sink.branch()
    flat.varint(0)
    put_subset(flat, positions, rows * columns)
    tried = _put_grid(grid, positions, rows, columns)
    sink.take(grid if tried and grid.bits() < flat.bits() else flat)


def _get_block(source: Source, rows: int, columns: int, room: int) -> IntArray:
    count = source.varint("the number of positions", min(rows * columns, room))
    if not count:
        return np.zeros(0, dtype=np.int64)
    occupied = 0 if rows == 1 or columns == 1 else source.varint("the number of rows", min(rows, count))
    if not occupied:
        return get_subset(source, rows * columns, count)
    return _get_grid(source, rows, columns, count, occupied)


def _put_grid(sink: Sink, positions: IntArray, rows: int, columns: int) -> bool:
    """Rows that occur, entries in each (as the entries that begin a row), then row by row; False: too sparse for it."""
    row, column = np.divmod(positions, columns)
    first = np.flatnonzero(np.diff(row, prepend=-1))
    if len(first) * columns > SPARSEST * len(positions):
        return False
    sink.varint(len(first))
    put_subset(sink, row[first], rows)
    put_subset(sink, first[1:] - 1, len(positions) - 1)
    counts = np.diff(first, append=len(positions))
    sink.run(encode_rows, len(first) * columns, column, columns, first, counts, _fullest_first(counts))
    return True


def _get_grid(source: Source, rows: int, columns: int, count: int, occupied: int) -> IntArray:
    used_rows = get_subset(source, rows, occupied)
    first = np.concatenate([[0], get_subset(source, count - 1, occupied - 1) + 1])
    counts = np.diff(first, append=count)
    if counts.max() > columns:
        raise WireError("a row has more positions than columns")
    column = np.empty(count, dtype=np.int64)
    source.run(decode_rows, column, columns, first, counts, _fullest_first(counts))
    return np.repeat(used_rows, counts) * columns + column


def _fullest_first(counts: IntArray) -> IntArray:
    """Rows with many entries tell most about the columns."""
    return np.argsort(-counts, kind="stable")


@strict
def encode_rows(
    coder: Coder, words: Words, column: IntArray, columns: int, first: IntArray, counts: IntArray, order: IntArray
) -> None:
    """Write which of the `columns` each row's entries stand in; a row has `counts` entries from its `first` on."""
    cells, weights = np.zeros(columns, dtype=np.uint16), np.ones(columns, dtype=np.int64)
    for i in order:
        own = column[first[i] : first[i] + counts[i]]
        if counts[i] < columns:
            _fill(cells, own, 1)
            encode_row(coder, words, cells, weights, counts[i])
            _fill(cells, own, 0)
        _learn(weights, own)


@strict
def decode_rows(
    coder: Coder, words: Words, column: IntArray, columns: int, first: IntArray, counts: IntArray, order: IntArray
) -> bool:
    """Read them; False: the stream is none, or a row has not as many entries as were announced."""
    cells, weights = np.ones(columns, dtype=np.uint16), np.ones(columns, dtype=np.int64)
    for i in order:
        own = column[first[i] : first[i] + counts[i]]
        if counts[i] == columns:
            cells[:] = 1
        elif not decode_row(coder, words, cells, weights, counts[i]):
            return False
        found = 0
        for j in range(columns):
            if cells[j]:
                if found == len(own):
                    return False
                own[found] = j
                found += 1
        if found < len(own):
            return False
        _learn(weights, own)
    return True


@strict_part
def _fill(cells: Symbols, own: IntArray, value: int) -> None:
    for j in own:
        cells[j] = value


@strict_part
def _learn(weights: IntArray, own: IntArray) -> None:
    """Columns with an entry, and their neighbours, become more likely in the rows to come."""
    for j in own:
        weights[j] += LEARNT
        if j > 0:
            weights[j - 1] += 1
        if j < len(weights) - 1:
            weights[j + 1] += 1
