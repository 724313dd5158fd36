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
    put_byte,
    put_count,
    put_histogram,
    trouble,
)
from fedbiad.coding.range_coder import (
    WHOLE,
    Coder,
    Words,
    part_at,
    put,
    put_low_bits,
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
def write_magnitudes(page: Page, multiples: Multiple, kinds: Marks) -> None:
    """Write, for each kind, the greatest symbol and, unless all are 1, a histogram; then the entries in order."""
    greatest = _greatest(multiples, kinds)
    if greatest.max() < 1:
        for symbol in greatest:
            if symbol == 0:
                put_byte(page, 0)
        return
    counts = _histograms(multiples, kinds)
    for kind in range(KINDS):
        if greatest[kind] >= 0:
            put_count(page, greatest[kind])
            put_histogram(page, counts[kind, : greatest[kind] + 1])
    _encode(page.coder, page.words, multiples, kinds, counts)


@strict
def read_magnitudes(page: Page, kinds: Marks, magnitudes: Multiple) -> int:
    """Read a magnitude for each entry, whose kinds are known; -1: they cannot be."""
    counts, entries, all_one = np.zeros((KINDS, ALPHABET), dtype=np.int64), _entries(kinds), True
    for kind in range(KINDS):
        if entries[kind]:
            greatest = get_count(page, GREATEST, ALPHABET - 1)
            if greatest < 0 or get_histogram(page, MAGNITUDES, entries[kind], counts[kind, : greatest + 1]) < 0:
                return -1
            all_one &= greatest == 0
    magnitudes[:] = 1
    if all_one:
        return 0
    if not _decode(page.coder, page.words, magnitudes, kinds, counts):
        return trouble(page, STREAM)
    return 0 if np.array_equal(_histograms(magnitudes, kinds), counts) else trouble(page, OFTEN, MAGNITUDES)


@strict
def magnitude_bits(multiples: Multiple, kinds: Marks) -> float:
    """About how many bits that takes."""
    greatest, bits = _greatest(multiples, kinds), 0.0
    if greatest.max() < 1:
        return 8.0 * float((greatest == 0).sum())
    counts = _histograms(multiples, kinds)
    for kind in range(KINDS):
        total = counts[kind].sum()
        for symbol in range(greatest[kind] + 1):
            count = counts[kind, symbol]
            if count:
                bits += count * (np.log2(total / count) + max(symbol - ALONE + FIRST_BITS, 0) * (symbol >= ALONE))
            bits += varint_bits(count) if symbol < greatest[kind] else 8
    return bits


@strict
def _greatest(multiples: Multiple, kinds: Marks) -> IntArray:
    """The greatest symbol of the entries of each kind; -1: there are none."""
    greatest = np.full(KINDS, -1, dtype=np.int64)
    first = 0
    while first < len(kinds):  # neighbours are mostly of one kind
        last = _same(kinds, first)
        largest = 0
        for i in range(first, last):
            largest = max(largest, abs(multiples[i]))
        greatest[kinds[first]] = max(greatest[kinds[first]], _symbol(largest))
        first = last
    return greatest


@strict_part
def _same(kinds: Marks, first: int) -> int:
    """Where the entries of one kind that begin at `first` end."""
    last = first + 1
    while last < len(kinds) and kinds[last] == kinds[first]:
        last += 1
    return last


@strict
def _entries(kinds: Marks) -> IntArray:
    """How many entries each kind has."""
    counts = np.zeros(KINDS, dtype=np.int64)
    first = 0
    while first < len(kinds):
        last = _same(kinds, first)
        counts[kinds[first]] += last - first
        first = last
    return counts


@strict
def _histograms(multiples: Multiple, kinds: Marks) -> IntArray:
    """How often each symbol occurs among the entries of each kind [kinds, symbols]."""
    counts = np.zeros((KINDS, ALPHABET), dtype=np.int64)
    for i in range(len(multiples)):
        counts[kinds[i], _symbol(abs(multiples[i]))] += 1
    return counts


@strict_part
def _symbol(magnitude: int) -> int:
    """Of a magnitude that no message holds some other one, within bounds: it is refused later."""
    above = max(magnitude - 1, 0)
    return above if above < ALONE else min(ALONE + length(above) - 1 - FIRST_BITS, ALPHABET - 1)


@strict_part
def _tables(counts: IntArray) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.uint64]]:
    """Of every kind whether it has more than one symbol, and its table: only the symbols up to its greatest."""
    told, starts = np.zeros(KINDS, dtype=np.bool_), np.full((KINDS, ALPHABET + 1), _WHOLE, dtype=np.uint64)
    for kind in range(KINDS):
        symbols = ALPHABET
        while symbols > 0 and counts[kind, symbols - 1] == 0:
            symbols -= 1
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
def _decode(coder: Coder, words: Words, magnitudes: Multiple, kinds: Marks, counts: IntArray) -> bool:
    above, span, count = state_of(coder)
    told, tables = _tables(counts)
    for i in range(len(magnitudes)):
        if told[kinds[i]]:
            starts, symbol = tables[kinds[i]], 0
            part = part_at(above, span)
            if part >= _WHOLE:
                return False
            while starts[symbol + 1] <= part:
                symbol += 1
            above, span, count = take(above, span, count, words, starts[symbol], starts[symbol + 1] - starts[symbol])
            magnitudes[i] = symbol + 1
            if symbol >= ALONE:
                bits = symbol - ALONE + FIRST_BITS
                above, span, count, low = take_low_bits(above, span, count, words, bits)
                if low >= _WHOLE:
                    return False
                magnitudes[i] = 1 + (1 << bits) + np.int64(low)
    coder[0], coder[1], coder[2] = above, span, count
    return True
