"""Cells of a matrix in classes of like density: the level of a cell's row plus the level of its column.

A level is the length of a count in bits: 0 for none, 1 for one, 2 for two or three, 3 for four to seven entries. Rows
and columns without entries have no cells. Where levels are not told all rows (columns) have level 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedbiad.arrays import IntArray


def levels(counts: IntArray) -> IntArray:
    """The length of every count in bits."""
    return np.frexp(counts.astype(np.float64))[1].astype(np.int64)


@dataclass(frozen=True)
class Axis:
    """The rows, or the columns, by their levels."""

    levels: IntArray

    @cached_property
    def counts(self) -> IntArray:
        """How many have level 1, 2, ..."""
        return np.bincount(self.levels, minlength=2)[1:]

    @cached_property
    def members(self) -> IntArray:
        """Those of level 1 in order, then those of level 2, ..."""
        return np.argsort(self.levels, kind="stable")[np.count_nonzero(self.levels == 0) :]

    @cached_property
    def firsts(self) -> IntArray:
        """Where each level begins among the members."""
        return np.cumsum(self.counts) - self.counts

    @cached_property
    def ranks(self) -> IntArray:
        """The place of each within its level."""
        found = np.zeros(len(self.levels), dtype=np.int64)
        found[self.members] = np.arange(len(self.members)) - self.firsts[self.levels[self.members] - 1]
        return found


@dataclass(frozen=True)
class Grid:
    """The cells of a matrix by class; within a class by the level of the row, then row by row."""

    rows: Axis
    columns: Axis

    @cached_property
    def cells(self) -> IntArray:
        """How many cells each class has: class t has those of levels a + b = t + 2."""
        return np.convolve(self.rows.counts, self.columns.counts)

    @cached_property
    def starts(self) -> IntArray:
        """Where the cells of row level a and column level b begin among all [a - 1, b - 1]."""
        blocks = np.outer(self.rows.counts, self.columns.counts)
        before = np.cumsum(self.cells) - self.cells
        starts = np.zeros_like(blocks)
        for total in range(len(self.cells)):
            start = before[total]
            for a in range(max(0, total + 1 - blocks.shape[1]), min(total + 1, blocks.shape[0])):
                starts[a, total - a] = start
                start += blocks[a, total - a]
        return starts

    def classes(self, row: IntArray, column: IntArray) -> IntArray:
        """The class of each cell."""
        found: IntArray = self.rows.levels[row] + self.columns.levels[column] - 2
        return found

    def numbers(self, row: IntArray, column: IntArray) -> IntArray:
        """The number of each cell among all, class by class."""
        a, b = self.rows.levels[row] - 1, self.columns.levels[column] - 1
        found: IntArray = self.starts[a, b] + self.rows.ranks[row] * self.columns.counts[b] + self.columns.ranks[column]
        return found

    def places(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        """The row and column of cells by their number: the inverse."""
        starts = self.starts.ravel()
        filled = np.flatnonzero(np.outer(self.rows.counts, self.columns.counts))
        filled = filled[np.argsort(starts[filled])]
        pair = filled[np.searchsorted(starts[filled], numbers, side="right") - 1]
        a, b = np.divmod(pair, len(self.columns.counts))
        rank, inside = np.divmod(numbers - starts[pair], self.columns.counts[b])
        row = self.rows.members[self.rows.firsts[a] + rank]
        return row, self.columns.members[self.columns.firsts[b] + inside]
