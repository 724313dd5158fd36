"""Multiples of one step, most of them 0, in few bits: where they are, their signs, and how many steps the larger have.

Entries of a matrix are told with the density of their row and column (`classes`): levels of the rows, and of the
columns, come first. Signs are told by the signs before them (`signs`), magnitudes with the density of their cells.
What does not pay is left out, block by block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fedbiad.arrays import IntArray
from fedbiad.coding.classes import get_classes, put_classes
from fedbiad.coding.lengths import varint_bits
from fedbiad.coding.magnitudes import Multiple, get_magnitudes, magnitude_bits, put_magnitudes
from fedbiad.coding.positions import Blocks, starts
from fedbiad.coding.signs import Marks, get_signs, put_signs
from fedbiad.coding.sink import Sink, varint
from fedbiad.coding.source import Source
from fedbiad.coding.subsets import get_subsets, put_subsets
from fedbiad.coding.survey import BY_COLUMNS, BY_ROWS, BY_SIGNS, survey
from fedbiad.coding.values import Bits, get_bits
from fedbiad.compiling import strict
from fedbiad.errors import WireError
from fedbiad.payloads import LARGEST, MOST_MULTIPLE, Multiples

Entry = TypeVar("Entry", bound=np.generic)

MODES = (0, BY_ROWS, BY_ROWS | BY_COLUMNS)
MOST_A_BYTE = 128
"""Every sign takes 1/16 bit at least, so a message has no more entries a byte."""


@dataclass(frozen=True)
class Run:
    """The entries of one block among all: from `first` on; the block begins at position `start`."""

    first: int
    count: int
    start: int
    rows: int
    columns: int
    mode: int

    @property
    def size(self) -> int:
        """Positions of the block."""
        return self.rows * self.columns

    @property
    def run(self) -> tuple[int, int, int, int]:
        """As a subset of the block's positions."""
        return self.first, self.count, self.start, self.size

    def of(self, entries: npt.NDArray[Entry]) -> npt.NDArray[Entry]:
        """The block's own part of an array of all entries."""
        return entries[self.first : self.first + self.count]


@dataclass(frozen=True)
class Outline(Run):
    """How the entries of one block are told."""

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
    bits = 32 + sum(varint_bits(one.count) + (8 + one.bits if one.count else 0.0) for one in found)
    return float(bits) + magnitude_bits(part.multiples, _kinds(found))


def put_multiples(sink: Sink, part: Multiples, blocks: Blocks) -> None:
    """Write the step, how many entries each block has and how they are told, where they are, signs and magnitudes."""
    _check(part)
    sink.float32(part.step)
    found = _outlines(part, blocks)
    sink.put(b"".join(varint(one.count) + bytes([one.mode]) if one.count else b"\0" for one in found))
    put_subsets(sink, part.positions, [one.run for one in found if not one.mode & BY_ROWS])
    for one in found:
        if one.mode & BY_ROWS:
            own = one.of(part.positions) - one.start
            put_classes(sink, own, one.row_levels, one.column_levels, bool(one.mode & BY_COLUMNS))
    for one in found:
        if one.mode & BY_SIGNS:
            put_signs(sink, one.contexts, one.agrees)
    sink.put(np.packbits(part.multiples[_alone(found)] > 0, bitorder="little").tobytes())
    put_magnitudes(sink, part.multiples, _kinds(found))


def get_multiples(source: Source, size: int, blocks: Blocks) -> Multiples:
    """Read the multiples of `size` entries."""
    step = source.float32("a step")
    found = _get_runs(source, blocks)
    total = sum(one.count for one in found)
    positions = np.empty(total, dtype=np.int64)
    get_subsets(source, positions, [one.run for one in found if not one.mode & BY_ROWS])
    density = [(one.size // max(one.count, 1)).bit_length() for one in found]
    kinds = np.array(density, dtype=np.uint8).repeat([one.count for one in found])
    for one in found:
        if one.mode & BY_ROWS:
            told = bool(one.mode & BY_COLUMNS)
            own, one.of(kinds)[:] = get_classes(source, one.rows, one.columns, one.count, told)
            one.of(positions)[:] = one.start + own
    positive = _get_signs(source, found, positions)
    magnitudes = get_magnitudes(source, kinds)
    _signed(magnitudes, positive)
    part = Multiples(size, step, positions, magnitudes)
    _check(part)
    return part


def _get_runs(source: Source, blocks: Blocks) -> list[Run]:
    """How many entries each block has, and how they are told."""
    room, first, found = MOST_A_BYTE * source.total, 0, []
    for start, (rows, columns) in starts(blocks):
        count = source.varint("the number of entries", min(rows * columns, room - first))
        mode = source.take(1, "how a block is coded")[0] if count else 0
        if mode & ~BY_SIGNS not in MODES or (mode & BY_ROWS and min(rows, columns) == 1):
            raise WireError(f"unknown way of coding a block {mode:#04x}")
        found.append(Run(first, count, start, rows, columns, mode))
        first += count
    return found


def _get_signs(source: Source, found: list[Run], positions: IntArray) -> Bits:
    """Those told by the signs before them, block by block, and the others, a bit each."""
    positive, alone = np.empty(len(positions), dtype=np.bool_), _alone(found)
    for one in found:
        if one.mode & BY_SIGNS:
            one.of(positive)[:] = get_signs(source, one.of(positions) - one.start, one.columns)
    positive[alone] = get_bits(source, len(positive[alone]), False, "signs")
    return positive


def _alone(found: Sequence[Run]) -> slice | Bits:
    """The entries whose signs are not told by those before."""
    if not any(one.mode & BY_SIGNS for one in found):
        return slice(None)
    return np.array([not one.mode & BY_SIGNS for one in found]).repeat([one.count for one in found])


# ---------------------------------------------------------------------- outlines


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
        first, last = np.searchsorted(part.positions, (start, start + rows * columns)).tolist()
        told = survey(part.positions[first:last] - start, positive[first:last], rows, columns)
        found.append(Outline(first, last - first, start, rows, columns, *told))
    return found


def _kinds(outlines: list[Outline]) -> Marks:
    return np.concatenate([one.kinds for one in outlines])


def _check(part: Multiples) -> None:
    """Every multiple is a finite value other than 0."""
    count = len(part.multiples)
    if len(part.positions) != count:
        raise WireError(f"{count} multiples for {len(part.positions)} positions")
    if not 0 <= float(part.step) <= LARGEST or (count and part.step == 0):
        raise WireError(f"a step of {part.step} for {count} entries: NaN, infinite, negative or nothing")
    least, most = _sizes(part.multiples)
    if count and least == 0:
        raise WireError("a multiple of 0 steps is not sent")
    if most > MOST_MULTIPLE or float(part.step) * most > LARGEST:
        raise WireError(f"infinite values: {most} steps of {part.step}, a message holds {MOST_MULTIPLE}")


@strict
def _sizes(multiples: Multiple) -> tuple[int, int]:
    """The least and the largest size."""
    sizes = np.abs(multiples.astype(np.int64))
    least, most = MOST_MULTIPLE, 0
    for size in sizes:
        least, most = min(least, size), max(most, size)
    return least, most


@strict
def _signed(magnitudes: Multiple, positive: Bits) -> None:
    for i in range(len(magnitudes)):
        if not positive[i]:
            magnitudes[i] = -magnitudes[i]
