"""Looking at the entries of a block before they are written: what the signs tell, which levels pay, what it all takes.

Lengths are estimates in floating point: they choose how a block is written, and the reader is told what was chosen.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedbiad.arrays import IntArray
from fedbiad.coding.lengths import length, varint_bits
from fedbiad.coding.magnitudes import Multiple, histograms, magnitude_bits
from fedbiad.coding.page import Marks
from fedbiad.coding.signs import Bits, signs_bits, tell_signs
from fedbiad.compiling import strict

BY_ROWS, BY_COLUMNS, BY_SIGNS = 1, 2, 4
"""How a block is coded: with levels of its rows; of its columns, too; signs by those before."""
WORTH = 16
"""Entries of a block from which on levels are tried."""
SAVED = 0.98
"""Levels, and signs by those before, take time: each must save 2 %."""
LEVELS = 48
"""More than a count has bits."""
BEHIND = 1.2
"""Bits that cells behind the last entry would take, about; nothing is said of them."""


class Outline(NamedTuple):
    """How the entries of all blocks are told."""

    firsts: IntArray
    """Where the entries of each block begin [blocks + 1]."""
    modes: Marks
    levels: IntArray
    """Of rows and columns, block by block; 1 where they are not told."""
    marks: Marks
    """Of each entry [3, entries]: how dense its cells are, as the length in bits of cells an entry; the context of
    its sign, and whether it is the expected one."""
    magnitudes: IntArray
    """How often they occur among the entries of each kind [kinds, symbols]."""


@strict
def outline(positions: IntArray, multiples: Multiple, blocks: IntArray) -> tuple[float, Outline]:
    """How to write the entries of `blocks` [blocks, (rows, columns)], and about how many bits they take."""
    firsts, modes = np.zeros(len(blocks) + 1, dtype=np.int64), np.zeros(len(blocks), dtype=np.uint8)
    levels, marks = np.empty(blocks.sum(), dtype=np.int64), np.empty((3, len(positions)), dtype=np.uint8)
    positive, bits, start, first, line = multiples > 0, 0.0, 0, 0, 0
    for n in range(len(blocks)):
        rows, columns = blocks[n]
        last = first + np.searchsorted(positions[first:], start + rows * columns)
        own = survey(positions[first:last] - start, positive[first:last], rows, columns)
        levels[line : line + rows], levels[line + rows : line + rows + columns] = own[2], own[3]
        marks[0, first:last], marks[1, first:last], marks[2, first:last] = own[4], own[5], own[6]
        bits += varint_bits(last - first)
        if last > first:
            modes[n] = own[0]
            bits += 8 + own[1]
        firsts[n + 1] = last
        start, first, line = start + rows * columns, last, line + rows + columns
    magnitudes = histograms(multiples, marks[0])
    return bits + magnitude_bits(magnitudes), Outline(firsts, modes, levels, marks, magnitudes)


@strict
def survey(
    positions: IntArray, positive: Bits, rows: int, columns: int
) -> tuple[int, float, IntArray, IntArray, Marks, Marks, Marks]:
    """The same of one block, but for the magnitudes: how, bits, levels of rows and columns, marks."""
    count = len(positions)
    row, column = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    by_row, by_column = np.zeros(rows, dtype=np.int64), np.zeros(columns, dtype=np.int64)
    here = 0
    for i in range(count):
        while positions[i] >= (here + 1) * columns:
            here += 1
        row[i], column[i] = here, positions[i] - here * columns
        by_row[here] += 1
        by_column[column[i]] += 1
    alike_rows, alike_columns = np.ones(rows, dtype=np.int64), np.ones(columns, dtype=np.int64)
    mode, row_levels, column_levels = 0, alike_rows, alike_columns
    bits, density = _classes(row, column, row_levels, column_levels)
    if rows > 1 and columns > 1 and count >= WORTH:
        for i in range(rows):
            by_row[i] = length(by_row[i])
        for i in range(columns):
            by_column[i] = length(by_column[i])
        told = _levels_bits(by_row)
        more, found = _classes(row, column, by_row, alike_columns)
        if more + told < SAVED * bits:
            mode, row_levels, bits, density = BY_ROWS, by_row, more + told, found
        told += _levels_bits(by_column)
        more, found = _classes(row, column, by_row, by_column)
        if more + told < SAVED * bits:
            mode, row_levels, column_levels = BY_ROWS | BY_COLUMNS, by_row, by_column
            bits, density = more + told, found
    kinds = np.empty(count, dtype=np.uint8)
    for i in range(count):
        kinds[i] = density[row_levels[row[i]] + column_levels[column[i]] - 2]
    contexts, agrees = tell_signs(row, column, positive, columns)
    signs = signs_bits(contexts, agrees)
    if bits + signs < SAVED * (bits + count):
        mode |= BY_SIGNS
    else:
        signs = float(count)
    return mode, bits + signs, row_levels, column_levels, kinds, contexts, agrees


@strict
def _classes(row: IntArray, column: IntArray, row_levels: IntArray, column_levels: IntArray) -> tuple[float, IntArray]:
    """Bits of the entries' places where cells of equal sums of levels are alike; and the density of each class."""
    of_rows, of_columns = np.zeros(LEVELS, dtype=np.int64), np.zeros(LEVELS, dtype=np.int64)
    for level in row_levels:
        of_rows[level] += 1
    for level in column_levels:
        of_columns[level] += 1
    cells, hits = np.zeros(2 * LEVELS, dtype=np.int64), np.zeros(2 * LEVELS, dtype=np.int64)
    for a in range(1, LEVELS):
        if of_rows[a]:
            for b in range(1, LEVELS):
                cells[a + b - 2] += of_rows[a] * of_columns[b]
    for i in range(len(row)):
        hits[row_levels[row[i]] + column_levels[column[i]] - 2] += 1
    bits, density = 0.0, np.zeros(2 * LEVELS, dtype=np.int64)
    for i in range(2 * LEVELS):
        if cells[i]:
            bits += _subset_bits(cells[i], hits[i]) + varint_bits(hits[i])
            density[i] = length(cells[i] // max(hits[i], 1))
    return bits - 8, density  # of the last class the count is known


@strict
def _subset_bits(size: int, count: int) -> float:
    """About what the gaps of a subset take: every cell at the density of all, but for those behind the last entry."""
    if count in (0, size):
        return 0.0
    n, k, rest = float(size), float(count), float(size - count)
    return float(max(k * np.log2(n / k) + rest * np.log2(n / rest) - BEHIND, 0.0))


@strict
def _levels_bits(levels: IntArray) -> float:
    """Bits of levels by their histogram."""
    counts = np.zeros(LEVELS, dtype=np.int64)
    for level in levels:
        counts[level] += 1
    last = LEVELS - 1
    while counts[last] == 0:
        last -= 1
    bits = 8.0 - varint_bits(counts[last])
    for count in counts[: last + 1]:
        bits += varint_bits(count)
        if count:
            bits += count * np.log2(len(levels) / count)
    return bits
