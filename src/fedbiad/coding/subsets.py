"""Which k of n alike positions: the gaps between them at density k / n, in log2 C(n, k) bits and a few."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedbiad.arrays import IntArray
from fedbiad.coding.lengths import length
from fedbiad.coding.range_coder import (
    PIECE,
    WHOLE,
    Coder,
    Table,
    Words,
    buckets,
    part_at,
    put,
    put_low_bits,
    state_of,
    symbol_at,
    table_of,
    take,
    take_low_bits,
)
from fedbiad.coding.sink import Sink
from fedbiad.coding.source import Source
from fedbiad.compiling import strict

LONGEST = 1024
"""Symbols of the table of gaps; the last one stands for a longer gap and is followed by the rest of it."""
FINE = 6
"""Bits of a mean gap that have a probability each; the bits below are equally likely to 6e-5 bits."""
_WHOLE, _ONE, _LONGEST = np.uint64(WHOLE), np.uint64(1), np.uint64(LONGEST - 1)


def put_subset(sink: Sink, members: IntArray, size: int) -> None:
    """Write which of `size` alike positions are members; their number is known to the reader."""
    put_subsets(sink, members, [(0, len(members), 0, size)])


def get_subset(source: Source, size: int, count: int) -> IntArray:
    """Read `count` members of `size` positions."""
    members = np.empty(count, dtype=np.int64)
    get_subsets(source, members, [(0, count, 0, size)])
    return members


Runs = Sequence[tuple[int, int, int, int]]
"""Of each subset: where its members begin in an array and how many they are; the first position, how many there are."""


def put_subsets(sink: Sink, members: IntArray, runs: Runs) -> None:
    """Write several subsets, one after the other."""
    most = sum(_most_symbols(size, count) for _, count, _, size in runs if count)
    sink.run(encode_subsets, most, members, np.array(runs, dtype=np.int64).reshape(-1, 4))


def get_subsets(source: Source, members: IntArray, runs: Runs) -> None:
    """Read them into an array."""
    source.run(decode_subsets, members, np.array(runs, dtype=np.int64).reshape(-1, 4))


def _most_symbols(size: int, count: int) -> int:
    """Symbols that a subset takes at most: a gap's upper bits, its lower ones, and what stands for long gaps."""
    shift = max((size // count).bit_length() - FINE, 0)
    return count * (1 + -(-shift // PIECE)) + (size >> shift) // (LONGEST - 1) + 1


@strict
def _gap_table(size: int, count: int) -> tuple[Table, int]:
    """Of a gap's upper bits: geometric, each position is a member with probability count / size; and its lower bits."""
    shift = max(length(size // count) - FINE, 0)
    before = np.empty(min(((size - count) >> shift) + 1, LONGEST), dtype=np.float64)
    ratio, weight, total, i = (size - count) / size, 1.0, 0.0, 0
    for _ in range(shift):
        ratio *= ratio
    while i < len(before) and total + weight > total:
        before[i] = total
        total, weight, i = total + weight, weight * ratio, i + 1
    before[i:] = total  # weights that vanish beside the sum
    return table_of(before, total), shift


@strict
def encode_subsets(coder: Coder, words: Words, members: IntArray, runs: IntArray) -> None:
    """Write several subsets, one after the other: rows of `runs` are as in `Runs`."""
    lower, span, count = state_of(coder)
    for n in range(len(runs)):
        first, many, expected, size = runs[n]
        if many == 0 or many == size:  # noqa: PLR1714 - for the compiler
            continue
        starts, shift = _gap_table(size, many)
        longest = len(starts) - 2
        for i in range(first, first + many):
            gap, expected = members[i] - expected, members[i] + 1
            upper = gap >> shift
            while longest == LONGEST - 1 and upper >= longest:
                lower, span, count = put(lower, span, count, words, starts[longest], _WHOLE - starts[longest])
                upper -= longest
            lower, span, count = put(lower, span, count, words, starts[upper], starts[upper + 1] - starts[upper])
            lower, span, count = put_low_bits(lower, span, count, words, np.uint64(gap), shift)
    coder[0], coder[1], coder[2] = lower, span, count


@strict
def decode_subsets(coder: Coder, words: Words, members: IntArray, runs: IntArray) -> bool:
    """Read them; False: the stream is none, or members run past the end."""
    above, span, count = state_of(coder)
    for n in range(len(runs)):
        first, many, expected, size = runs[n]
        end = expected + size
        if many == size:
            for i in range(size):
                members[first + i] = expected + i
            continue
        if many == 0:
            continue
        starts, shift = _gap_table(size, many)
        (firsts, parts), longest = buckets(starts, many), np.uint64(len(starts) - 2)
        for i in range(first, first + many):
            symbol = longest
            while symbol == longest:
                part = part_at(above, span)
                if part >= _WHOLE:
                    return False
                symbol = symbol_at(starts, firsts, parts, part)
                start = starts[symbol]
                above, span, count = take(above, span, count, words, start, starts[symbol + _ONE] - start)
                expected += np.int64(symbol) << shift
                if expected >= end:
                    return False
                if longest < _LONGEST:
                    break
            if shift:
                above, span, count, low = take_low_bits(above, span, count, words, shift)
                if low >= np.uint64(end - expected):
                    return False
                expected += np.int64(low)
            members[i] = expected
            expected += 1
    coder[0], coder[1], coder[2] = above, span, count
    return True
