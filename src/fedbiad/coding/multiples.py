"""Multiples of one step, most of them 0, in few bits: where they are, their signs, and how many steps the larger have.

Entries of a matrix are told with the density of their row and column (`grids`): levels of the rows, and of the columns,
come first. Signs are told by the signs before them (`signs`), magnitudes with the density of their cells.
What does not pay is left out, block by block (`survey`).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fedbiad.arrays import IntArray
from fedbiad.coding.classes import LONGEST_COUNT
from fedbiad.coding.magnitudes import ALPHABET, KINDS
from fedbiad.coding.multiples_streams import read_entries, write_entries
from fedbiad.coding.page import MAX_VARINT
from fedbiad.coding.positions import Blocks
from fedbiad.coding.range_coder import PIECE
from fedbiad.coding.signs import CONTEXTS
from fedbiad.coding.sink import Sink
from fedbiad.coding.source import Source
from fedbiad.coding.survey import Outline, outline
from fedbiad.errors import WireError
from fedbiad.payloads import LARGEST, MOST_MULTIPLE, Multiples

MOST_A_BYTE = 128
"""Every sign takes 1/16 bit at least, so a message has no more entries a byte."""
STEP_BITS = 32
COUNTS = 2 + 4 * LONGEST_COUNT + 2 * CONTEXTS + 2
"""Counts told of a block, at most: of entries, levels, classes and signs."""
CODED = 6
"""Symbols of an entry, at most: of the gap before it but for lower bits, its sign, its magnitude."""


def multiples_bits(part: Multiples, blocks: Blocks) -> float:
    """About how many bits `put_multiples` takes; no range coder is asked."""
    key = tuple(blocks)
    return STEP_BITS + _outlined(part, key, _frame(key)[0])[0]


def put_multiples(sink: Sink, part: Multiples, blocks: Blocks) -> None:
    """Write the step, how many entries each block has and how they are told, where they are, signs and magnitudes."""
    entries, key = len(part.positions), tuple(blocks)
    if len(part.multiples) != entries:
        raise WireError(f"{len(part.multiples)} multiples for {entries} positions")
    sink.float32(part.step)
    shapes, most_plain, most_levels = _frame(key)
    most_plain, most_coded = (
        most_plain + entries // 8 + 1,
        most_levels + (CODED + part.size.bit_length() // PIECE) * entries,
    )
    _, told = _outlined(part, key, shapes)
    sizes = sink.write(write_entries, most_plain, most_coded, part.positions, part.multiples, shapes, *told)
    _check(part, *sizes)


def get_multiples(source: Source, size: int, blocks: Blocks) -> Multiples:
    """Read the multiples of `size` entries."""
    step = source.float32("a step")
    room = MOST_A_BYTE * source.total
    positions, multiples, *sizes = source.read(read_entries, _frame(tuple(blocks))[0], room)
    part = Multiples(size, step, positions, multiples)
    _check(part, *sizes)
    return part


def _outlined(part: Multiples, key: tuple[tuple[int, int], ...], shapes: IntArray) -> tuple[float, Outline]:
    """Found once, by whoever asks first for the size or for the code."""
    found: tuple[float, Outline] | None = part.outlines.get(key)
    if found is None:
        found = part.outlines[key] = outline(part.positions, part.multiples, shapes)
    return found


@lru_cache(maxsize=64)
def _frame(blocks: tuple[tuple[int, int], ...]) -> tuple[IntArray, int, int]:
    """The blocks as an array; plain bytes but for signs, and symbols of levels and for long gaps, at most."""
    most_plain = MAX_VARINT * (COUNTS * len(blocks) + KINDS * ALPHABET)
    most_levels = sum(rows + columns + 4 * LONGEST_COUNT for rows, columns in blocks)
    return np.array(blocks, dtype=np.int64).reshape(-1, 2), most_plain, most_levels


def _check(part: Multiples, least: int, most: int) -> None:
    """Every multiple is a finite value other than 0; they have `least` to `most` steps."""
    count, step = len(part.multiples), float(part.step)
    if not 0 <= step <= LARGEST or (count and step == 0):
        raise WireError(f"a step of {part.step} for {count} entries: NaN, infinite, negative or nothing")
    if count and least == 0:
        raise WireError("a multiple of 0 steps is not sent")
    if most > MOST_MULTIPLE or step * most > LARGEST:
        raise WireError(f"infinite values: {most} steps of {part.step}, a message holds {MOST_MULTIPLE}")
