"""Cells of a matrix in classes of like density: the level of a cell's row plus the level of its column.

A level is the length of a count in bits: 0 for none, 1 for one, 2 for two or three, 3 for four to seven entries. Rows
and columns without entries have no cells. Where levels are not told all rows (columns) have level 1. The cells of a
class stand in the order of their row's level, and of those of one level row by row.
"""

from __future__ import annotations

import numpy as np

from fedbiad.arrays import IntArray
from fedbiad.coding.lengths import length
from fedbiad.coding.page import Marks
from fedbiad.coding.survey import LEVELS
from fedbiad.compiling import strict, strict_part


@strict_part
def _ranks(levels: IntArray) -> tuple[IntArray, IntArray]:
    """How many have each level, and the place of each among those of its level."""
    counts, ranks = np.zeros(LEVELS, dtype=np.int64), np.empty(len(levels), dtype=np.int64)
    for i in range(len(levels)):
        ranks[i] = counts[levels[i]]
        counts[levels[i]] += 1
    return counts, ranks


@strict_part
def _members(levels: IntArray) -> tuple[IntArray, IntArray]:
    """Those of level 0 in order, then those of level 1, and so on; and where each level begins."""
    counts, ranks = _ranks(levels)
    begins = np.cumsum(counts) - counts
    members = np.empty(len(levels), dtype=np.int64)
    for i in range(len(levels)):
        members[begins[levels[i]] + ranks[i]] = i
    return members, begins


@strict
def class_sizes(row_levels: IntArray, column_levels: IntArray) -> IntArray:
    """The number of cells of each class; class t has those of levels a + b = t + 2."""
    of_rows, of_columns = _ranks(row_levels)[0], _ranks(column_levels)[0]
    sizes = np.zeros(row_levels.max() + column_levels.max() - 1, dtype=np.int64)
    for a in range(1, row_levels.max() + 1):
        for b in range(1, column_levels.max() + 1):
            sizes[a + b - 2] += of_rows[a] * of_columns[b]
    return sizes


@strict
def cell_numbers(
    positions: IntArray, columns: int, row_levels: IntArray, column_levels: IntArray, classes: int
) -> tuple[IntArray, IntArray]:
    """How many of the cells are in each class; and their numbers within their classes, class by class, ascending."""
    if column_levels.min() == column_levels.max() == 1:
        return _numbers_by_row(positions, columns, row_levels, classes)
    (of_rows, row_ranks), (of_columns, column_ranks) = _ranks(row_levels), _ranks(column_levels)
    hits = np.zeros(classes, dtype=np.int64)
    pairs = np.zeros((classes, LEVELS), dtype=np.int64)  # by class and level of the row
    row = 0
    for position in positions:
        while position >= (row + 1) * columns:
            row += 1
        a = row_levels[row]
        total = a + column_levels[position - row * columns] - 2
        hits[total] += 1
        pairs[total, a] += 1
    begins, firsts = np.empty_like(pairs), np.zeros_like(pairs)  # among the entries, among the cells of the class
    before = 0
    for total in range(classes):
        cells = 0
        for a in range(1, min(total + 2, LEVELS)):
            begins[total, a], firsts[total, a] = before, cells
            before += pairs[total, a]
            if total + 2 - a < LEVELS:
                cells += of_rows[a] * of_columns[total + 2 - a]
    numbers = np.empty(len(positions), dtype=np.int64)
    row = 0
    for position in positions:  # row by row: within a pair of levels they ascend
        while position >= (row + 1) * columns:
            row += 1
        column = position - row * columns
        a, b = row_levels[row], column_levels[column]
        inside = row_ranks[row] * of_columns[b] + column_ranks[column]
        numbers[begins[a + b - 2, a]] = firsts[a + b - 2, a] + inside
        begins[a + b - 2, a] += 1
    return hits, numbers


@strict
def cell_places(
    numbers: IntArray, hits: IntArray, row_levels: IntArray, column_levels: IntArray
) -> tuple[IntArray, Marks]:
    """The inverse: ascending positions, and the class of each."""
    if column_levels.min() == column_levels.max() == 1:
        return _places_by_row(numbers, hits, row_levels, len(column_levels))
    (rows, row_begins), (columns, column_begins) = _members(row_levels), _members(column_levels)
    of_rows, of_columns = _ranks(row_levels)[0], _ranks(column_levels)[0]
    row, column = np.empty(len(numbers), dtype=np.int64), np.empty(len(numbers), dtype=np.int64)
    kinds = np.empty(len(numbers), dtype=np.uint8)
    at = 0
    for total in range(len(hits)):
        a, first, cells, rank, width = 0, 0, 0, 0, 0  # of the pair of levels that the number lies in
        for _ in range(hits[total]):
            while numbers[at] >= first + cells:
                first, rank = first + cells, 0
                a += 1
                width = of_columns[total + 2 - a] if 0 < total + 2 - a < LEVELS else 0
                cells = of_rows[a] * width
            inside = numbers[at] - first
            while inside >= (rank + 1) * width:
                rank += 1
            row[at] = rows[row_begins[a] + rank]
            column[at] = columns[column_begins[total + 2 - a] + inside - rank * width]
            kinds[at] = total
            at += 1
    order = _by(row, _by(column, np.arange(len(numbers)), len(column_levels)), len(row_levels))
    return row[order] * len(column_levels) + column[order], kinds[order]


@strict_part
def _numbers_by_row(positions: IntArray, columns: int, row_levels: IntArray, classes: int) -> tuple[IntArray, IntArray]:
    """`cell_numbers` where columns have no levels of their own: the rows of a level are a class, one after another."""
    ranks, ends = _ranks(row_levels)[1], _ends(positions, len(row_levels), columns)
    hits, first = np.zeros(classes, dtype=np.int64), 0
    for row in range(len(ends)):
        if ends[row] > first:
            hits[row_levels[row] - 1] += ends[row] - first
        first = ends[row]
    at, numbers, first = np.cumsum(hits) - hits, np.empty(len(positions), dtype=np.int64), 0
    for row in range(len(ends)):
        if ends[row] > first:
            begin, moved = at[row_levels[row] - 1], (row - ranks[row]) * columns
            for i in range(first, ends[row]):
                numbers[begin + i - first] = positions[i] - moved
            at[row_levels[row] - 1] += ends[row] - first
        first = ends[row]
    return hits, numbers


@strict_part
def _ends(positions: IntArray, rows: int, columns: int) -> IntArray:
    """Of ascending positions in a matrix, where those of each row end."""
    ends, row = np.zeros(rows, dtype=np.int64), 0
    for i in range(len(positions)):
        while positions[i] >= (row + 1) * columns:
            row += 1
            ends[row] = i
        ends[row] = i + 1
    ends[row + 1 :] = len(positions)
    return ends


@strict_part
def _places_by_row(numbers: IntArray, hits: IntArray, row_levels: IntArray, columns: int) -> tuple[IntArray, Marks]:
    """The inverse: who comes next in a row comes next in the class of its level."""
    ranks, ends = _ranks(row_levels)[1], np.cumsum(hits)
    nexts, places, kinds = ends - hits, np.empty(len(numbers), dtype=np.int64), np.empty(len(numbers), dtype=np.uint8)
    at = 0
    for row in range(len(row_levels)):
        own = row_levels[row] - 1
        if own < 0:
            continue
        first, end, behind, moved = nexts[own], ends[own], (ranks[row] + 1) * columns, (row - ranks[row]) * columns
        while first < end and numbers[first] < behind:
            places[at], kinds[at] = numbers[first] + moved, own
            first, at = first + 1, at + 1
        nexts[own] = first
    return places, kinds


@strict_part
def _by(keys: IntArray, order: IntArray, size: int) -> IntArray:
    """The entries of `order` by their keys below `size`; equal ones stay in order."""
    begins, found = np.zeros(size + 1, dtype=np.int64), np.empty_like(order)
    for i in order:
        begins[keys[i] + 1] += 1
    for key in range(size):
        begins[key + 1] += begins[key]
    for i in order:
        found[begins[keys[i]]] = i
        begins[keys[i]] += 1
    return found


@strict
def levels_fit(positions: IntArray, row_levels: IntArray, column_levels: IntArray, columns_told: bool) -> bool:
    """Whether rows, and columns if theirs are told, have as many entries as their levels say."""
    ends, fit = _ends(positions, len(row_levels), len(column_levels)), True
    for i in range(len(ends)):
        fit &= length(ends[i] - (ends[i - 1] if i else 0)) == row_levels[i]
    if columns_told:
        by_column, first = np.zeros(len(column_levels), dtype=np.int64), 0
        for row in range(len(ends)):
            for i in range(first, ends[row]):
                by_column[positions[i] - row * len(column_levels)] += 1
            first = ends[row]
        for i in range(len(by_column)):
            fit &= length(by_column[i]) == column_levels[i]
    return fit
