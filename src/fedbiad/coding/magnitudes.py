"""How many steps an entry has, where most have one: by histogram, apart for cells of different density.

A magnitude m >= 1 is a symbol m - 1 up to 15; above, the length of m - 1 in bits is the symbol, and the bits below its
first follow, equally likely.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedbiad.arrays import IntArray
from fedbiad.coding.lengths import length, varint_bits
from fedbiad.coding.page import (
    GREATEST,
    MAGNITUDES,
    OFTEN,
    STREAM,
    Marks,
    Page,
    get_count,
    get_histogram,
    put_count,
    put_histogram,
    trouble,
)
from fedbiad.coding.range_coder import (
    NONE,
    WHOLE,
    Coder,
    Table,
    Words,
    put,
    put_low_bits,
    reaches,
    state_of,
    table,
    take,
    take_low_bits,
)
from fedbiad.compiling import strict, strict_part
from fedbiad.payloads import MOST_MULTIPLE

Multiple = npt.NDArray[np.int32]

ALONE = 16
"""Magnitudes up to here have a symbol each."""
FIRST_BITS = ALONE.bit_length() - 1
"""Bits below the first of the smallest magnitude that shares its symbol."""
ALPHABET = ALONE + (MOST_MULTIPLE - 1).bit_length() - FIRST_BITS
KINDS = 64
"""A kind is the length of a count in bits."""
_WHOLE = np.uint64(WHOLE)


@strict
def write_magnitudes(page: Page, multiples: Multiple, kinds: Marks, counts: IntArray) -> None:
    """Write, for each kind, the greatest symbol and, unless all are 1, a histogram; then the entries in order."""
    all_one = True
    for kind in range(KINDS):
        symbols = _symbols(counts[kind])
        if symbols:
            put_count(page, symbols - 1)
            put_histogram(page, counts[kind, :symbols])
            all_one &= symbols == 1
    if not all_one:
        _encode(page.coder, page.words, multiples, kinds, counts)


@strict
def read_magnitudes(page: Page, kinds: Marks, entries: IntArray, magnitudes: Multiple) -> int:
    """Read a magnitude for each entry; kinds, and how many entries each has, are known. -1: they cannot be."""
    counts, all_one = np.zeros((KINDS, ALPHABET), dtype=np.int64), True
    for kind in range(KINDS):
        if entries[kind]:
            greatest = get_count(page, GREATEST, ALPHABET - 1)
            if greatest < 0 or get_histogram(page, MAGNITUDES, entries[kind], counts[kind, : greatest + 1]) < 0:
                return -1
            all_one &= greatest == 0
    magnitudes[:] = 1
    return 0 if all_one else _decode(page, magnitudes, kinds, counts)


@strict
def magnitude_bits(counts: IntArray) -> float:
    """About how many bits magnitudes with these histograms take."""
    bits = 0.0
    for kind in range(KINDS):
        symbols, total = _symbols(counts[kind]), counts[kind].sum()
        for symbol in range(symbols):
            count = counts[kind, symbol]
            if count:
                bits += count * (np.log2(total / count) + max(symbol - ALONE + FIRST_BITS, 0) * (symbol >= ALONE))
            bits += varint_bits(count) if symbol < symbols - 1 else 8
    return bits


@strict
def histograms(multiples: Multiple, kinds: Marks) -> IntArray:
    """How often each symbol occurs among the entries of each kind [kinds, symbols]."""
    counts = np.zeros((KINDS, ALPHABET), dtype=np.int64)
    first = 0
    while first < len(kinds):  # neighbours are mostly of one kind
        last = _same(kinds, first)
        larger = np.int32(0)
        for i in range(first, last):
            larger += np.int32(abs(multiples[i]) > 1)
        counts[kinds[first], 0] += last - first - larger
        for i in range(first, last if larger else first):
            if abs(multiples[i]) > 1:
                counts[kinds[first], _symbol(abs(multiples[i]))] += 1
        first = last
    return counts


@strict_part
def _same(kinds: Marks, first: int) -> int:
    """Where the entries of one kind that begin at `first` end."""
    last = first + 1
    while last < len(kinds) and kinds[last] == kinds[first]:
        last += 1
    return last


@strict_part
def _symbols(counts: IntArray) -> int:
    """How many symbols there are, up to the greatest that occurs."""
    symbols = len(counts)
    while symbols > 0 and counts[symbols - 1] == 0:
        symbols -= 1
    return symbols


@strict_part
def _symbol(magnitude: int) -> int:
    """Of a magnitude that no message holds some other one, within bounds: it is refused later."""
    above = max(magnitude - 1, 0)
    return above if above < ALONE else min(ALONE + length(above) - 1 - FIRST_BITS, ALPHABET - 1)


@strict_part
def _tables(counts: IntArray) -> tuple[npt.NDArray[np.bool_], Table]:
    """Of every kind whether it has more than one symbol, and its table: only the symbols up to its greatest."""
    told, starts = np.zeros(KINDS, dtype=np.bool_), np.full((KINDS, ALPHABET + 1), WHOLE, dtype=np.uint32)
    for kind in range(KINDS):
        symbols = _symbols(counts[kind])
        if symbols > 1:
            told[kind] = True
            starts[kind, : symbols + 1] = table(counts[kind, :symbols].astype(np.float64))
    return told, starts


@strict
def _encode(coder: Coder, words: Words, multiples: Multiple, kinds: Marks, counts: IntArray) -> None:
    lower, span, count = state_of(coder)
    told, tables = _tables(counts)
    for i in range(len(multiples)):
        if told[kinds[i]]:
            magnitude, starts = abs(multiples[i]), tables[kinds[i]]
            symbol = _symbol(magnitude)
            lower, span, count = put(lower, span, count, words, starts[symbol], starts[symbol + 1] - starts[symbol])
            if symbol >= ALONE:
                bits = symbol - ALONE + FIRST_BITS
                lower, span, count = put_low_bits(lower, span, count, words, np.uint64(magnitude - 1), bits)
    coder[0], coder[1], coder[2] = lower, span, count


@strict
def _decode(page: Page, magnitudes: Multiple, kinds: Marks, counts: IntArray) -> int:
    """Those of kinds with more than one symbol; -1: they cannot be, or do not occur as often as was announced."""
    above, span, count = state_of(page.coder)
    told, tables = _tables(counts)
    rest = counts.copy()
    for i in range(len(magnitudes)):
        if told[kinds[i]]:
            starts, symbol = tables[kinds[i]], 0
            if reaches(above, span, _WHOLE):
                return trouble(page, STREAM)
            while reaches(above, span, np.uint64(starts[symbol + 1])):
                symbol += 1
            above, span, count = take(
                above, span, count, page.words, starts[symbol], starts[symbol + 1] - starts[symbol]
            )
            rest[kinds[i], symbol] -= 1
            magnitudes[i] = symbol + 1
            if symbol >= ALONE:
                bits = symbol - ALONE + FIRST_BITS
                above, span, count, low = take_low_bits(above, span, count, page.words, bits)
                if low == NONE:
                    return trouble(page, STREAM)
                magnitudes[i] = 1 + (1 << bits) + np.int64(low)
    page.coder[0], page.coder[1], page.coder[2] = above, span, count
    for kind in range(KINDS):
        if told[kind] and rest[kind].any():
            return trouble(page, OFTEN, MAGNITUDES)
    return 0
