"""How many steps an entry has, where most have one: by histogram, apart for cells of different density.

A magnitude m >= 1 is a symbol m - 1 up to 15; above, the length of m - 1 in bits is the symbol, and the bits below its
first follow, equally likely.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedbiad.arrays import IntArray
from fedbiad.coding.lengths import length, varint_bits
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
from fedbiad.coding.signs import Marks
from fedbiad.coding.sink import Sink
from fedbiad.coding.source import Source
from fedbiad.coding.values import entropy_bits, get_counts
from fedbiad.compiling import strict, strict_part
from fedbiad.errors import WireError
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


def put_magnitudes(sink: Sink, multiples: Multiple, kinds: Marks) -> None:
    """Write, for each kind, the greatest symbol and, unless all are 1, a histogram; then the entries in order."""
    greatest = _greatest(multiples, kinds).tolist()
    if max(greatest) < 1:
        sink.varint(*(symbol for symbol in greatest if symbol == 0))
        return
    counts = _histograms(multiples, kinds)
    for symbol, own in zip(greatest, counts.tolist(), strict=True):
        if symbol >= 0:
            sink.varint(symbol, *own[:symbol])
    sink.run(_encode, 2 * len(multiples), multiples, kinds, counts)


def get_magnitudes(source: Source, kinds: Marks) -> Multiple:
    """Read a magnitude for each entry, whose kinds are known."""
    told = []
    for kind, entries in enumerate(_entries(kinds).tolist()):
        if entries:
            alphabet = source.varint("the greatest magnitude", ALPHABET - 1) + 1
            told.append((kind, get_counts(source, entries, alphabet, "magnitudes")))
    magnitudes = np.ones(len(kinds), dtype=np.int32)
    if any(len(own) > 1 for _, own in told):
        counts = np.zeros((KINDS, ALPHABET), dtype=np.int64)
        for kind, own in told:
            counts[kind, : len(own)] = own
        source.run(_decode, magnitudes, kinds, counts)
        if not np.array_equal(_histograms(magnitudes, kinds), counts):
            raise WireError("magnitudes do not occur as often as was announced")
    return magnitudes


def magnitude_bits(multiples: Multiple, kinds: Marks) -> float:
    """About how many bits that takes."""
    greatest: list[int] = _greatest(multiples, kinds).tolist()
    if max(greatest) < 1:
        return 8.0 * sum(symbol == 0 for symbol in greatest)
    bits, counts = 0.0, _histograms(multiples, kinds)
    for symbol, own in zip(greatest, counts, strict=True):
        if symbol >= 0:
            bits += entropy_bits(own) + 8 + sum(varint_bits(count) for count in own[:symbol].tolist())
    shared = np.arange(FIRST_BITS, FIRST_BITS + ALPHABET - ALONE)
    return bits + float(counts[:, ALONE:].sum(axis=0) @ shared)


@strict
def _greatest(multiples: Multiple, kinds: Marks) -> IntArray:
    """The greatest symbol of the entries of each kind; -1: there are none."""
    largest = np.zeros(KINDS, dtype=np.int64)
    for i in range(len(multiples)):
        largest[kinds[i]] = max(largest[kinds[i]], abs(multiples[i]))
    for kind in range(KINDS):
        largest[kind] = _symbol(largest[kind]) if largest[kind] else -1
    return largest


@strict
def _entries(kinds: Marks) -> IntArray:
    """How many entries each kind has."""
    counts = np.zeros(KINDS, dtype=np.int64)
    for kind in kinds:
        counts[kind] += 1
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
    above = magnitude - 1
    return above if above < ALONE else ALONE + length(above) - 1 - FIRST_BITS


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
