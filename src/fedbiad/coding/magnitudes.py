"""How many steps an entry has, where most have one: by histogram, apart for cells of different density.

A magnitude m >= 1 is a symbol m - 1 up to 15; above, the length of m - 1 in bits is the symbol, and the bits below its
first follow, equally likely.
"""

from __future__ import annotations

import numpy as np

from fedbiad.arrays import IntArray
from fedbiad.coding.grids import levels
from fedbiad.coding.sink import Sink, uniform, varint
from fedbiad.coding.source import Source
from fedbiad.coding.survey import Marks
from fedbiad.coding.values import entropy_bits, get_symbols, put_symbols
from fedbiad.payloads import MOST_MULTIPLE

ALONE = 16
"""Magnitudes up to here have a symbol each."""
FIRST_BITS = ALONE.bit_length() - 1
"""Bits below the first of the smallest magnitude that shares its symbol."""
ALPHABET = ALONE + (MOST_MULTIPLE - 1).bit_length() - FIRST_BITS


def put_magnitudes(sink: Sink, magnitudes: IntArray, kinds: Marks) -> None:
    """Write magnitudes, kind by kind: the greatest symbol and, unless all are 1, a histogram; then the lower bits."""
    symbols = _symbols(magnitudes)
    for own in _by_kind(kinds):
        some = symbols[own]
        sink.varint(int(some.max()))
        put_symbols(sink, some, np.bincount(some).tolist())
    for symbol in range(ALONE, int(symbols.max(initial=0)) + 1):
        bits = symbol - ALONE + FIRST_BITS
        sink.code((magnitudes[symbols == symbol] - 1) & (1 << bits) - 1, uniform(1 << bits))


def get_magnitudes(source: Source, kinds: Marks) -> IntArray:
    """Read a magnitude for each entry, whose kinds are known."""
    symbols = np.zeros(len(kinds), dtype=np.int64)
    for own in _by_kind(kinds):
        alphabet = source.varint("the greatest magnitude", ALPHABET - 1) + 1
        symbols[own] = get_symbols(source, len(own), alphabet, "magnitudes")
    magnitudes = symbols + 1
    for symbol in range(ALONE, int(symbols.max(initial=0)) + 1):
        own, bits = np.flatnonzero(symbols == symbol), symbol - ALONE + FIRST_BITS
        magnitudes[own] = 1 + (1 << bits) + source.code(len(own), uniform(1 << bits))
    return magnitudes


def magnitude_bits(magnitudes: IntArray, kinds: Marks) -> float:
    """About how many bits that takes."""
    symbols = _symbols(magnitudes)
    if not symbols.any():
        return 8.0 * np.count_nonzero(np.bincount(kinds))
    alphabet = int(symbols.max()) + 1
    cells = (int(kinds.max()) + 1) * alphabet
    counts = np.bincount(kinds.astype(np.int64) * alphabet + symbols, minlength=cells).reshape(-1, alphabet)
    bits = 0.0
    for own in counts[counts.any(axis=1)]:
        greatest = int(np.flatnonzero(own)[-1])
        bits += entropy_bits(own) + 8 + 8 * sum(len(varint(count)) for count in own[:greatest].tolist())
    shared = symbols[symbols >= ALONE]
    return bits + float((shared - ALONE + FIRST_BITS).sum())


def _by_kind(kinds: Marks) -> list[IntArray]:
    """The entries of each kind that occurs."""
    return [np.flatnonzero(kinds == kind) for kind in np.flatnonzero(np.bincount(kinds)).tolist()]


def _symbols(magnitudes: IntArray) -> IntArray:
    above = magnitudes - 1
    if above.max(initial=0) < ALONE:
        return above
    return np.where(above < ALONE, above, ALONE + levels(above) - 1 - FIRST_BITS)
