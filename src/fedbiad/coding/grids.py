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
    by_row = np.zeros(len(row_levels), dtype=np.int64)
    by_column = np.zeros(len(column_levels), dtype=np.int64)
    row = 0
    for position in positions:
        while position >= (row + 1) * len(column_levels):
            row += 1
        by_row[row] += 1
        by_column[position - row * len(column_levels)] += 1
    fit = True
    for i in range(len(by_row)):
        fit &= length(by_row[i]) == row_levels[i]
    if columns_told:
        for i in range(len(by_column)):
            fit &= length(by_column[i]) == column_levels[i]
    return fit
