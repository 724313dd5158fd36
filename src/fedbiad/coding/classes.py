"""The cells of a matrix told by the levels of its rows and columns (`grids`): levels, entries of each class, places."""

from __future__ import annotations

import numpy as np

from fedbiad.arrays import IntArray
from fedbiad.coding.grids import cell_numbers, cell_places, class_sizes, levels_fit
from fedbiad.coding.lengths import length
from fedbiad.coding.page import (
    CELLS,
    CLASS,
    LEVEL,
    LEVELS,
    OFTEN,
    STREAM,
    UNFIT_LEVEL,
    Marks,
    Page,
    get_count,
    get_histogram,
    put_count,
    put_histogram,
    trouble,
)
from fedbiad.coding.range_coder import decode, encode, table
from fedbiad.coding.subsets import decode_subsets, encode_subsets
from fedbiad.compiling import strict

LONGEST_COUNT = 40
"""Bits of a count, at most."""


@strict
def write_classes(
    page: Page, positions: IntArray, row_levels: IntArray, column_levels: IntArray, by_columns: bool
) -> None:
    """Levels; how many entries each class of cells has, but for the last; where they are."""
    _write_levels(page, row_levels)
    if by_columns:
        _write_levels(page, column_levels)
    sizes = class_sizes(row_levels, column_levels)
    hits, numbers = cell_numbers(positions, len(column_levels), row_levels, column_levels, len(sizes))
    put_histogram(page, hits)
    encode_subsets(page.coder, page.words, numbers, _class_runs(hits, sizes))


@strict
def read_classes(
    page: Page, positions: IntArray, kinds: Marks, entries: IntArray, block: IntArray, by_columns: bool
) -> int:
    """Read ascending positions within a block, and how dense the cells of each are; -1: they cannot be."""
    row_levels, column_levels = np.ones(block[0], dtype=np.int64), np.ones(block[1], dtype=np.int64)
    if _read_levels(page, row_levels) < 0 or (by_columns and _read_levels(page, column_levels) < 0):
        return -1
    sizes = class_sizes(row_levels, column_levels)
    hits, rest = np.empty(len(sizes), dtype=np.int64), len(positions)
    for i in range(len(sizes) - 1):
        hits[i] = get_count(page, CLASS, min(sizes[i], rest))
        if hits[i] < 0:
            return -1
        rest -= hits[i]
    if rest > sizes[-1]:
        return trouble(page, CELLS, 0, rest, 0, sizes[-1])
    hits[-1] = rest
    if not decode_subsets(page.coder, page.words, positions, _class_runs(hits, sizes)):
        return trouble(page, STREAM)
    places, classes = cell_places(positions, hits, row_levels, column_levels)
    positions[:] = places
    if not levels_fit(positions, row_levels, column_levels, by_columns):
        return trouble(page, UNFIT_LEVEL)
    for i in range(len(hits)):
        if hits[i]:
            sizes[i] = length(sizes[i] // hits[i])
            entries[sizes[i]] += hits[i]
    for i in range(len(kinds)):
        kinds[i] = sizes[classes[i]]
    return 0


@strict
def _class_runs(hits: IntArray, sizes: IntArray) -> IntArray:
    runs, first = np.zeros((len(hits), 4), dtype=np.int64), 0
    for i in range(len(hits)):
        runs[i, 0], runs[i, 1], runs[i, 3] = first, hits[i], sizes[i]
        first += hits[i]
    return runs


@strict
def _write_levels(page: Page, levels: IntArray) -> None:
    counts = np.zeros(levels.max() + 1, dtype=np.int64)
    for level in levels:
        counts[level] += 1
    put_count(page, len(counts) - 1)
    put_histogram(page, counts)
    if len(counts) > 1:
        encode(page.coder, page.words, levels.astype(np.uint16), table(counts.astype(np.float64)))


@strict
def _read_levels(page: Page, levels: IntArray) -> int:
    greatest = get_count(page, LEVEL, LONGEST_COUNT, 1)
    if greatest < 0:
        return -1
    counts, found = np.zeros(greatest + 1, dtype=np.int64), np.zeros(greatest + 1, dtype=np.int64)
    if get_histogram(page, LEVELS, len(levels), counts) < 0:
        return -1
    symbols = np.empty(len(levels), dtype=np.uint16)
    if not decode(page.coder, page.words, symbols, table(counts.astype(np.float64))):
        return trouble(page, STREAM)
    for i in range(len(levels)):
        levels[i] = symbols[i]
        found[symbols[i]] += 1
    return 0 if np.array_equal(found, counts) else trouble(page, OFTEN, LEVELS)
