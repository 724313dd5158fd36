"""Multiples of one step, most of them 0, in few bits: where they are, their signs, and how many steps the larger have.

Entries of a matrix are told with the density of their row and column (`grids`): levels of the rows, and of the columns,
come first. Signs are told by the signs before them (`survey.tell_signs`), magnitudes with the density of their cells.
What does not pay is left out, block by block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbiad.arrays import IntArray
from fedbiad.coding.grids import Axis, Grid, levels
from fedbiad.coding.magnitudes import get_magnitudes, magnitude_bits, put_magnitudes
from fedbiad.coding.positions import Blocks, starts
from fedbiad.coding.sink import Sink, table
from fedbiad.coding.source import Source
from fedbiad.coding.subsets import get_subset, put_subset
from fedbiad.coding.survey import BY_COLUMNS, BY_ROWS, BY_SIGNS, CONTEXTS, SURE, Marks, hear_signs, survey, varint_bits
from fedbiad.coding.values import get_symbols, put_symbols
from fedbiad.errors import WireError
from fedbiad.payloads import LARGEST, MOST_MULTIPLE, Multiples

MODES = (0, BY_ROWS, BY_ROWS | BY_COLUMNS)
MOST_A_BYTE = 128
"""Every sign takes 1/16 bit at least, so a message has no more entries a byte."""
LONGEST_COUNT = 40
"""Bits of a count, at most."""


@dataclass(frozen=True)
class Outline:
    """How the entries of one block are told."""

    positions: IntArray
    columns: int
    mode: int
    bits: float
    """About what that takes, but for the magnitudes."""
    row_levels: IntArray
    column_levels: IntArray
    kinds: Marks
    """How dense the cells of each entry are."""
    contexts: Marks
    agrees: Marks


def multiples_bits(part: Multiples, blocks: Blocks) -> float:
    """About how many bits `put_multiples` takes; no range coder is asked."""
    found = _outlines(part, blocks)
    bits = 32 + sum(varint_bits(len(one.positions)) + (8 + one.bits if len(one.positions) else 0.0) for one in found)
    return float(bits) + magnitude_bits(np.abs(part.multiples).astype(np.int64), _kinds(found))


def put_multiples(sink: Sink, part: Multiples, blocks: Blocks) -> None:
    """Write the step, each block's entries and signs, and all magnitudes."""
    _check(part)
    sink.float32(part.step)
    found = _outlines(part, blocks)
    start = 0
    for one in found:
        count = len(one.positions)
        sink.varint(count)
        if count:
            sink.put(bytes([one.mode]))
            _put_cells(sink, one)
            if one.mode & BY_SIGNS:
                _put_signs(sink, one)
            else:
                sink.put(np.packbits(part.multiples[start : start + count] > 0, bitorder="little").tobytes())
        start += count
    put_magnitudes(sink, np.abs(part.multiples).astype(np.int64), _kinds(found))


def get_multiples(source: Source, size: int, blocks: Blocks) -> Multiples:
    """Read the multiples of `size` entries."""
    step = source.float32("a step")
    room = MOST_A_BYTE * source.total
    positions, positive, kinds = [np.zeros(0, np.int64)], [np.zeros(0, np.uint8)], [np.zeros(0, np.uint8)]
    for start, (rows, columns) in starts(blocks):
        count = source.varint("the number of entries", min(rows * columns, room))
        room -= count
        if count:
            place, signs, kind = _get_block(source, rows, columns, count)
            positions.append(start + place)
            positive.append(signs)
            kinds.append(kind)
    magnitudes = get_magnitudes(source, np.concatenate(kinds))
    signed = np.where(np.concatenate(positive) == 1, magnitudes, -magnitudes).astype(np.int32)
    part = Multiples(size, step, np.concatenate(positions), signed)
    _check(part)
    return part


def _get_block(source: Source, rows: int, columns: int, count: int) -> tuple[IntArray, Marks, Marks]:
    """Positions within the block, signs and kinds."""
    (mode,) = source.take(1, "how a block is coded")
    if mode & ~BY_SIGNS not in MODES or (mode & BY_ROWS and min(rows, columns) == 1):
        raise WireError(f"unknown way of coding a block {mode:#04x}")
    positions, kinds = _get_cells(source, rows, columns, count, mode)
    if mode & BY_SIGNS:
        return positions, _get_signs(source, positions, columns), kinds
    bits = np.frombuffer(source.take(-(-count // 8), "signs"), dtype=np.uint8)
    positive = np.unpackbits(bits, bitorder="little")
    if positive[count:].any():
        raise WireError("signs are followed by bits that mean nothing")
    return positions, positive[:count], kinds


# ---------------------------------------------------------------------- cells


def _outlines(part: Multiples, blocks: Blocks) -> list[Outline]:
    """Of each block; found once, by whoever asks first for the size or for the code."""
    key = tuple(blocks)
    if key not in part.outlines:
        part.outlines[key] = _found_outlines(part, blocks)
    found: list[Outline] = part.outlines[key]
    return found


def _found_outlines(part: Multiples, blocks: Blocks) -> list[Outline]:
    positive = (part.multiples > 0).view(np.uint8)
    found = []
    for start, (rows, columns) in starts(blocks):
        first, last = np.searchsorted(part.positions, (start, start + rows * columns))
        own = part.positions[first:last] - start
        found.append(Outline(own, columns, *survey(own, positive[first:last], rows, columns)))
    return found


def _kinds(outlines: list[Outline]) -> Marks:
    return np.concatenate([one.kinds for one in outlines])


def _put_cells(sink: Sink, one: Outline) -> None:
    """Levels, if they are told; how many entries each class of cells has, but for the last; where they are."""
    if not one.mode & BY_ROWS:
        put_subset(sink, one.positions, len(one.row_levels) * one.columns)
        return
    for told, levels_ in ((BY_ROWS, one.row_levels), (BY_COLUMNS, one.column_levels)):
        if one.mode & told:
            sink.varint(int(levels_.max()))
            put_symbols(sink, levels_, np.bincount(levels_).tolist())
    grid, (row, column) = Grid(Axis(one.row_levels), Axis(one.column_levels)), np.divmod(one.positions, one.columns)
    hits = np.bincount(grid.classes(row, column), minlength=len(grid.cells)).tolist()
    sink.varint(*hits[:-1])
    numbers = np.sort(grid.numbers(row, column))
    start = before = 0
    for cells, own in zip(grid.cells.tolist(), hits, strict=True):
        put_subset(sink, numbers[start : start + own] - before, cells)
        start, before = start + own, before + cells


def _get_cells(source: Source, rows: int, columns: int, count: int, mode: int) -> tuple[IntArray, Marks]:
    """Positions of the entries, and how dense the cells of each are."""
    if not mode & BY_ROWS:
        kind = levels(np.array([rows * columns // count]))
        return get_subset(source, rows * columns, count), np.full(count, kind[0], dtype=np.uint8)
    grid = Grid(_get_axis(source, rows, True), _get_axis(source, columns, bool(mode & BY_COLUMNS)))
    hits, numbers, left, before = [], [], count, 0
    for i, cells in enumerate(grid.cells.tolist()):
        own = source.varint("the entries of a class", min(cells, left)) if i < len(grid.cells) - 1 else left
        hits.append(own)
        left -= own
    for cells, own in zip(grid.cells.tolist(), hits, strict=True):
        if own > cells:
            raise WireError(f"{own} entries in {cells} cells")
        numbers.append(before + get_subset(source, cells, own))
        before += cells
    row, column = grid.places(np.concatenate(numbers))
    for told, axis, places in ((BY_ROWS, grid.rows, row), (BY_COLUMNS, grid.columns, column)):
        if mode & told and not np.array_equal(levels(np.bincount(places, minlength=len(axis.levels))), axis.levels):
            raise WireError("a row or column has more or fewer entries than its level says")
    positions = row * columns + column
    order = np.argsort(positions)
    density = levels(grid.cells // np.maximum(hits, 1)).astype(np.uint8)
    return positions[order], density[grid.classes(row, column)][order]


def _get_axis(source: Source, size: int, told: bool) -> Axis:
    if not told:
        return Axis(np.ones(size, dtype=np.int64))
    alphabet = source.varint("the greatest level", LONGEST_COUNT, 1) + 1
    return Axis(get_symbols(source, size, alphabet, "levels").astype(np.int64))


# ---------------------------------------------------------------------- signs


def _agreements(contexts: Marks, agrees: Marks) -> IntArray:
    """How often the expected sign came in each context, and how often the other [contexts, 2]."""
    counts = np.bincount(2 * contexts.astype(np.int64) + (1 - agrees), minlength=2 * CONTEXTS)
    return counts.reshape(CONTEXTS, 2)


def _chances(counts: IntArray) -> IntArray:
    """Weights of the expected and the other sign in every context [contexts, 2], none below a sixteenth."""
    return np.maximum(counts, counts[:, ::-1] // SURE + 1)


def _put_signs(sink: Sink, one: Outline) -> None:
    """How often each context agrees and not, then its agreements."""
    counts = _agreements(one.contexts, one.agrees)
    sink.varint(*counts.ravel().tolist())
    others = 1 - one.agrees[np.argsort(one.contexts, kind="stable")]
    ends = np.cumsum(counts.sum(axis=1)).tolist()
    for chances, start, end in zip(_chances(counts), [0, *ends], ends, strict=False):
        sink.code(others[start:end], table(chances.astype(np.float64)))


def _get_signs(source: Source, positions: IntArray, columns: int) -> Marks:
    left, counts = len(positions), np.zeros((CONTEXTS, 2), dtype=np.int64)
    for context in range(CONTEXTS):
        for other in range(2):
            counts[context, other] = source.varint("the signs of a context", left)
            left -= int(counts[context, other])
    if left:
        raise WireError(f"{left} signs are missing")
    agrees = []
    for own, chances in zip(counts, _chances(counts), strict=True):
        others = source.code(int(own.sum()), table(chances.astype(np.float64)))
        if int(others.sum()) != own[1]:
            raise WireError("signs do not agree as often as was announced")
        agrees.append((1 - others).astype(np.uint8))
    ends = np.cumsum(counts.sum(axis=1))
    positive, fits = hear_signs(*np.divmod(positions, columns), np.concatenate(agrees), ends, columns)
    if not fits:
        raise WireError("signs do not fit their contexts")
    return positive


def _check(part: Multiples) -> None:
    """Every multiple is a finite value other than 0."""
    sizes = np.abs(part.multiples.astype(np.int64))
    most = int(sizes.max(initial=0))
    if len(part.positions) != len(sizes):
        raise WireError(f"{len(sizes)} multiples for {len(part.positions)} positions")
    if not 0 <= float(part.step) <= LARGEST or (len(sizes) and part.step == 0):
        raise WireError(f"a step of {part.step} for {len(sizes)} entries: NaN, infinite, negative or nothing")
    if len(sizes) and int(sizes.min()) == 0:
        raise WireError("a multiple of 0 steps is not sent")
    if most > MOST_MULTIPLE or float(part.step) * most > LARGEST:
        raise WireError(f"infinite values: {most} steps of {part.step}, a message holds {MOST_MULTIPLE}")
