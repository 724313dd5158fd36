"""Entries of a matrix by levels of its rows and columns: the levels, how many entries a class has, where they are."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from fedbiad.arrays import IntArray
from fedbiad.coding.grids import cell_numbers, cell_places, class_sizes, levels_fit
from fedbiad.coding.signs import Marks
from fedbiad.coding.sink import Sink
from fedbiad.coding.source import Source
from fedbiad.coding.subsets import Runs, get_subsets, put_subsets
from fedbiad.coding.values import get_symbols, put_symbols
from fedbiad.errors import WireError

LONGEST_COUNT = 40
"""Bits of a count, at most."""


def put_classes(sink: Sink, positions: IntArray, row_levels: IntArray, column_levels: IntArray, told: bool) -> None:
    """Write the levels of the rows and, if they are told, of the columns, the entries of all classes but the last."""
    for levels in (row_levels, column_levels) if told else (row_levels,):
        counts = np.bincount(levels).tolist()
        sink.varint(len(counts) - 1)
        put_symbols(sink, levels, counts)
    sizes = class_sizes(row_levels, column_levels)
    hits, numbers = cell_numbers(positions, len(column_levels), row_levels, column_levels, len(sizes))
    sink.varint(*hits[:-1].tolist())
    put_subsets(sink, numbers, _runs(hits.tolist(), sizes.tolist()))


def get_classes(source: Source, rows: int, columns: int, count: int, told: bool) -> tuple[IntArray, Marks]:
    """Read `count` ascending positions, and how dense the cells of each are."""
    row_levels, column_levels = _get_levels(source, rows, True), _get_levels(source, columns, told)
    sizes, hits, left = class_sizes(row_levels, column_levels).tolist(), [], count
    for size in sizes[:-1]:
        hits.append(source.varint("the entries of a class", min(size, left)))
        left -= hits[-1]
    if left > sizes[-1]:
        raise WireError(f"{left} entries in {sizes[-1]} cells")
    hits.append(left)
    numbers = np.empty(count, dtype=np.int64)
    get_subsets(source, numbers, _runs(hits, sizes))
    positions, classes = cell_places(numbers, np.array(hits), row_levels, column_levels)
    if not levels_fit(positions, row_levels, column_levels, told):
        raise WireError("a row or column has more or fewer entries than its level says")
    density = [(size // max(hit, 1)).bit_length() for size, hit in zip(sizes, hits, strict=True)]
    return positions, np.array(density, dtype=np.uint8)[classes]


def _runs(hits: list[int], sizes: list[int]) -> Runs:
    """The entries of each class as a subset of its cells."""
    firsts = accumulate(hits, initial=0)
    return [(first, hit, 0, size) for first, hit, size in zip(firsts, hits, sizes, strict=False)]


def _get_levels(source: Source, size: int, told: bool) -> IntArray:
    if not told:
        return np.ones(size, dtype=np.int64)
    alphabet = source.varint("the greatest level", LONGEST_COUNT, 1) + 1
    return get_symbols(source, size, alphabet, "levels").astype(np.int64)
