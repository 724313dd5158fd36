"""Looking at the entries of a block before they are written: what the signs tell, which levels pay, what it all takes.

Lengths are estimates in floating point: they choose how a block is written, and the reader is told what was chosen.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedbiad.arrays import IntArray
from fedbiad.compiled import compiled

Marks = npt.NDArray[np.uint8]

CONTEXTS = 15
"""What the signs before tell about the next one: five kinds of evidence, each for, without or against the row's."""
SUREST = 3
HEAVIEST = 8
"""Votes beyond these count as these."""
SURE = 16
"""No sign is taken to be more likely than 16 to 1."""
BY_ROWS, BY_COLUMNS, BY_SIGNS = 1, 2, 4
"""How a block is coded: with levels of its rows; of its columns, too; signs by those before."""
WORTH = 16
"""Entries of a block from which on levels are tried."""
SAVED = 0.98
"""Levels, and signs by those before, take time: each must save 2 %."""
LEVELS = 48
"""More than a count has bits."""
ENDS = 4.0
"""Bits that the gaps of a subset take beyond the number of choices, about."""


@compiled
def survey(
    positions: IntArray, positive: Marks, rows: int, columns: int
) -> tuple[int, float, IntArray, IntArray, Marks, Marks, Marks]:
    """How to write the entries of a block, and about how many bits they take but for their magnitudes.

    Also the levels of rows and columns (1 where they are not told), for each entry the density of its cells as the
    length in bits of cells an entry, and the contexts and agreements of the signs.
    """
    count = len(positions)
    row, column = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    by_row, by_column = np.zeros(rows, dtype=np.int64), np.zeros(columns, dtype=np.int64)
    for i in range(count):
        row[i] = positions[i] // columns
        column[i] = positions[i] - row[i] * columns
        by_row[row[i]] += 1
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
    signs = _signs_bits(contexts, agrees)
    if bits + signs < SAVED * (bits + count):
        mode |= BY_SIGNS
    else:
        signs = float(count)
    return mode, bits + signs, row_levels, column_levels, kinds, contexts, agrees


@compiled
def length(count: int) -> int:
    """How many bits a count has."""
    bits = 0
    while count > 0:
        count >>= 1
        bits += 1
    return bits


@compiled
def varint_bits(count: int) -> int:
    """How many bits a count takes when written: whole bytes of 7."""
    return 8 * max(-(-length(count) // 7), 1)


@compiled
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


@compiled
def _subset_bits(size: int, count: int) -> float:
    """About log2 of the choices of `count` of `size`, and what the gaps take beyond it."""
    if count in (0, size):
        return 0.0
    n, k, rest = float(size), float(count), float(size - count)
    choices = k * np.log2(n / k) + rest * np.log2(n / rest) - 0.5 * np.log2(2 * np.pi * k * rest / n)
    return float(max(choices, 0.0)) + ENDS


@compiled
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


@compiled
def _signs_bits(contexts: Marks, agrees: Marks) -> float:
    counts = np.zeros((CONTEXTS, 2), dtype=np.int64)
    for i in range(len(contexts)):
        counts[contexts[i], 1 - agrees[i]] += 1
    bits = 0.0
    for expected, other in counts:
        weights = max(expected, other // SURE + 1), max(other, expected // SURE + 1)
        total = float(weights[0] + weights[1])
        bits += expected * np.log2(total / weights[0]) + other * np.log2(total / weights[1])
        bits += varint_bits(expected) + varint_bits(other)
    return bits


# ---------------------------------------------------------------------- signs


@compiled
def _context(vote: int, row: int, column: int) -> tuple[int, bool]:
    """The context of the next sign and whether plus is expected.

    `vote`: how often the row so far agreed with the signs its columns had, less how often not; `row` and `column`: the
    sums of signs so far. What was learned of the column counts first, then the row.
    """
    told = np.sign(column) * (np.sign(vote) if vote != 0 else 1)
    strength = 0 if told == 0 else 1 + min(abs(vote), SUREST)
    expected = told if told != 0 else np.sign(row)
    if expected == 0:
        return 1, True
    return 3 * strength + int(np.sign(row) * expected) + 1, expected > 0


@compiled
def tell_signs(rows: IntArray, columns: IntArray, positive: Marks, width: int) -> tuple[Marks, Marks]:
    """For every entry of a matrix, in order, its context and whether its sign is the expected one.

    After each row its signs are added to the columns' votes, turned around if the row disagrees with them: changes of
    a layer are mostly one number a row times one a column.
    """
    contexts, agrees = np.zeros(len(rows), dtype=np.uint8), np.zeros(len(rows), dtype=np.uint8)
    votes = np.zeros(width, dtype=np.int64)
    first = 0
    while first < len(rows):
        last, vote, row = first, 0, 0
        while last < len(rows) and rows[last] == rows[first]:
            column = votes[columns[last]]
            context, plus = _context(vote, row, column)
            contexts[last], agrees[last] = context, plus == (positive[last] == 1)
            sign = 1 if positive[last] else -1
            vote += sign * np.sign(column)
            row += sign
            last += 1
        _learn(columns[first:last], positive[first:last], votes)
        first = last
    return contexts, agrees


@compiled
def hear_signs(rows: IntArray, columns: IntArray, agrees: Marks, ends: IntArray, width: int) -> tuple[Marks, bool]:
    """The inverse: agreements come context by context, context c's up to `ends`[c]; False: they do not fit."""
    positive = np.zeros(len(rows), dtype=np.uint8)
    votes, at = np.zeros(width, dtype=np.int64), np.zeros(CONTEXTS, dtype=np.int64)
    at[1:] = ends[:-1]
    first = 0
    while first < len(rows):
        last, vote, row = first, 0, 0
        while last < len(rows) and rows[last] == rows[first]:
            column = votes[columns[last]]
            context, plus = _context(vote, row, column)
            if at[context] == ends[context]:
                return positive, False
            positive[last] = plus == (agrees[at[context]] == 1)
            at[context] += 1
            sign = 1 if positive[last] else -1
            vote += sign * np.sign(column)
            row += sign
            last += 1
        _learn(columns[first:last], positive[first:last], votes)
        first = last
    return positive, True


@compiled
def _learn(columns: IntArray, positive: Marks, votes: IntArray) -> None:
    agreement = 0
    for i in range(len(columns)):
        vote = min(max(votes[columns[i]], -HEAVIEST), HEAVIEST)
        agreement += vote if positive[i] else -vote
    turned = agreement < 0
    for i in range(len(columns)):
        votes[columns[i]] += 1 if (positive[i] == 1) != turned else -1
