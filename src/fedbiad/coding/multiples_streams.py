"""The entries of all blocks, written and read in one go, compiled: a message has few, and a library call costs as much.

What is called from outside takes arrays one by one: tuples of them take as long to pass as some thousand symbols.

Reading checks every count before memory is taken for it; what cannot be is noted on the page.
"""

from __future__ import annotations

import numpy as np

from fedbiad.arrays import IntArray
from fedbiad.coding.classes import read_classes, write_classes
from fedbiad.coding.lengths import length
from fedbiad.coding.magnitudes import KINDS, Multiple, read_magnitudes, write_magnitudes
from fedbiad.coding.page import (
    AT,
    ENTRIES,
    MODE,
    MODES,
    SIGNS,
    SPARE,
    STREAM,
    TRUNCATED,
    Marks,
    Page,
    get_byte,
    get_count,
    left,
    place_of,
    put_byte,
    put_count,
    trouble,
)
from fedbiad.coding.range_coder import Coder, Words
from fedbiad.coding.signs import Bits, read_signs, write_signs
from fedbiad.coding.subsets import decode_subsets, encode_subsets
from fedbiad.coding.survey import BY_COLUMNS, BY_ROWS, BY_SIGNS
from fedbiad.compiling import strict
from fedbiad.payloads import MOST_MULTIPLE

Sizes = tuple[int, int]


@strict
def write_entries(
    coder: Coder, words: Words, plain: Marks, positions: IntArray, multiples: Multiple, blocks: IntArray,
    firsts: IntArray, modes: Marks, levels: IntArray, marks: Marks, magnitudes: IntArray,
) -> Sizes:  # fmt: skip
    """Write how many entries each block has and how they are told (`Outline`), where they are, signs and magnitudes."""
    page, sizes = Page(coder, words, plain), _sizes(multiples)
    if sizes[0] == 0 or sizes[1] > MOST_MULTIPLE:
        return sizes  # which no message holds
    for n in range(len(blocks)):
        put_count(page, firsts[n + 1] - firsts[n])
        if firsts[n + 1] > firsts[n]:
            put_byte(page, modes[n])
    encode_subsets(coder, words, positions, _runs(blocks, firsts, modes))
    start, line = 0, 0
    for n in range(len(blocks)):
        rows, columns = blocks[n]
        if modes[n] & BY_ROWS:
            own, by_columns = positions[firsts[n] : firsts[n + 1]] - start, modes[n] & BY_COLUMNS != 0
            row_levels, column_levels = levels[line : line + rows], levels[line + rows : line + rows + columns]
            write_classes(page, own, row_levels, column_levels, by_columns)
        start, line = start + rows * columns, line + rows + columns
    positive, alone = np.empty(len(positions), dtype=np.bool_), 0
    for n in range(len(blocks)):
        first, last = firsts[n], firsts[n + 1]
        if modes[n] & BY_SIGNS:
            write_signs(page, marks[1, first:last], marks[2, first:last])
        else:
            for i in range(first, last):
                positive[alone + i - first] = multiples[i] > 0
            alone += last - first
    _write_bits(page, positive[:alone])
    write_magnitudes(page, multiples, marks[0], magnitudes)
    return sizes


@strict
def read_entries(
    coder: Coder, words: Words, plain: Marks, blocks: IntArray, room: int
) -> tuple[IntArray, Multiple, int, int]:
    """Read positions and multiples of at most `room` entries, and how many steps these have, at least and at most."""
    page = Page(coder, words, plain)
    modes, firsts = np.zeros(len(blocks), dtype=np.uint8), np.zeros(len(blocks) + 1, dtype=np.int64)
    nothing = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32), 0, 0
    for n in range(len(blocks)):
        count = get_count(page, ENTRIES, min(blocks[n, 0] * blocks[n, 1], room - firsts[n]))
        mode = get_byte(page, MODES) if count > 0 else 0
        if count < 0 or mode < 0 or not _is_mode(page, mode, blocks[n]):
            return nothing
        modes[n], firsts[n + 1] = mode, firsts[n] + count
    positions, kinds = np.empty(firsts[-1], dtype=np.int64), np.empty(firsts[-1], dtype=np.uint8)
    positive, multiples = np.empty(len(positions), dtype=np.bool_), np.empty(len(positions), dtype=np.int32)
    entries = np.zeros(KINDS, dtype=np.int64)
    if (
        _read_cells(page, blocks, firsts, modes, positions, kinds, entries) < 0
        or _read_signs(page, blocks, firsts, modes, positions, positive) < 0
        or read_magnitudes(page, kinds, entries, multiples) < 0
    ):
        return nothing
    least, most = _sizes(multiples)
    for i in range(len(multiples)):
        multiples[i] = multiples[i] if positive[i] else -multiples[i]
    return positions, multiples, least, most


@strict
def _read_cells(
    page: Page, blocks: IntArray, firsts: IntArray, modes: Marks, positions: IntArray, kinds: Marks, entries: IntArray
) -> int:
    """Where the entries are, how dense their cells, and how many entries each density has; -1: it cannot be."""
    if not decode_subsets(page.coder, page.words, positions, _runs(blocks, firsts, modes)):
        return trouble(page, STREAM)
    start = 0
    for n in range(len(blocks)):
        first, last, size = firsts[n], firsts[n + 1], blocks[n, 0] * blocks[n, 1]
        if modes[n] & BY_ROWS:
            own, by_columns = kinds[first:last], modes[n] & BY_COLUMNS != 0
            if read_classes(page, positions[first:last], own, entries, blocks[n], by_columns) < 0:
                return -1
            positions[first:last] += start
        elif last > first:
            kind = length(size // (last - first))
            kinds[first:last] = kind
            entries[kind] += last - first
        start += size
    return 0


@strict
def _read_signs(
    page: Page, blocks: IntArray, firsts: IntArray, modes: Marks, positions: IntArray, positive: Bits
) -> int:
    """Those told by the signs before them, block by block, then all others; -1: they cannot be."""
    alone, start = 0, 0
    for n in range(len(blocks)):
        first, last = firsts[n], firsts[n + 1]
        if not modes[n] & BY_SIGNS:
            alone += last - first
        elif read_signs(page, positions[first:last] - start, blocks[n, 1], positive[first:last]) < 0:
            return -1
        start += blocks[n, 0] * blocks[n, 1]
    if alone == len(positive):
        return _read_bits(page, positive)
    others = np.empty(alone, dtype=np.bool_)
    read, alone = _read_bits(page, others), 0
    for n in range(len(blocks)):
        first, last = firsts[n], firsts[n + 1]
        if not modes[n] & BY_SIGNS:
            positive[first:last] = others[alone : alone + last - first]
            alone += last - first
    return read


@strict
def _sizes(multiples: Multiple) -> Sizes:
    """The least and the largest size; 1 and 0 if there are none."""
    least, most = np.int32(MOST_MULTIPLE + 1 if len(multiples) else 1), np.int32(0)
    for i in range(len(multiples)):
        size = np.int32(abs(multiples[i]))  # 32 bits at every step: so it becomes vector instructions
        least, most = np.int32(min(least, size)), np.int32(max(most, size))
    return int(least), int(most)


@strict
def _is_mode(page: Page, mode: int, block: IntArray) -> bool:
    """Levels of columns are not told without those of rows, and neither in a vector; there are no other bits."""
    of_cells, vector = mode & ~BY_SIGNS, min(block[0], block[1]) == 1
    if of_cells in (0, BY_ROWS, BY_ROWS | BY_COLUMNS) and not (of_cells and vector):
        return True
    trouble(page, MODE, 0, mode)
    return False


@strict
def _runs(blocks: IntArray, firsts: IntArray, modes: Marks) -> IntArray:
    """The entries of blocks without levels as subsets of their cells (`subsets.Runs`)."""
    runs, start = np.zeros((len(blocks), 4), dtype=np.int64), 0
    for n in range(len(blocks)):
        size = blocks[n, 0] * blocks[n, 1]
        if not modes[n] & BY_ROWS:
            runs[n, 0], runs[n, 1], runs[n, 2], runs[n, 3] = firsts[n], firsts[n + 1] - firsts[n], start, size
        start += size
    return runs


# ---------------------------------------------------------------------- signs that stand alone


@strict
def _write_bits(page: Page, positive: Bits) -> None:
    """A packed bit each, 1: plus."""
    size = (len(positive) + 7) // 8
    place = place_of(page)
    packed = page.plain[place[AT] : place[AT] + size]
    for n in range(len(positive) // 8):
        byte = 0
        for bit in range(8):
            byte |= positive[8 * n + bit] << bit
        packed[n] = byte
    if len(positive) % 8:
        packed[size - 1] = 0
        for bit in range(len(positive) % 8):
            packed[size - 1] |= positive[8 * (size - 1) + bit] << bit
    place[AT] += size


@strict
def _read_bits(page: Page, positive: Bits) -> int:
    """Read as many bits as there is room for; -1: they cannot be."""
    size = (len(positive) + 7) // 8
    if size > left(page):
        return trouble(page, TRUNCATED, SIGNS, size, 0, left(page))
    place = place_of(page)
    packed = page.plain[place[AT] : place[AT] + size]
    for n in range(len(positive) // 8):
        for bit in range(8):
            positive[8 * n + bit] = packed[n] >> bit & 1 == 1
    over = len(positive) % 8
    for bit in range(over):
        positive[len(positive) - over + bit] = packed[size - 1] >> bit & 1 == 1
    place[AT] += size
    return trouble(page, SPARE) if over and packed[size - 1] >> over else 0
