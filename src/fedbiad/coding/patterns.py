"""Dropping patterns in few bytes: packed labels or the rank among all patterns that hold as many rows."""

from __future__ import annotations

from functools import lru_cache
from math import comb
from typing import Literal

import numpy as np

from fedbiad.coding.sink import Sink, varint
from fedbiad.coding.source import Source
from fedbiad.coding.subsets import get_subset, put_subset
from fedbiad.errors import WireError
from fedbiad.messages import Rows

RANKED_ROWS = 4096
"""Up to here a subset is numbered exactly; above, long integers are slow and the range coder loses nothing."""

PatternMode = Literal[1, 2]
PACKED: PatternMode = 1
COUNTED: PatternMode = 2


def put_pattern(sink: Sink, pattern: Rows) -> PatternMode:
    """Write a pattern [rows] the shorter way; returns which."""
    rows, held = len(pattern), int(pattern.sum())
    packed = -(-rows // 8)
    if len(varint(held)) + (subsets(rows, held) - 1).bit_length() / 8 >= packed:
        sink.put(np.packbits(pattern, bitorder="little").tobytes())
        return PACKED
    sink.varint(held)
    if rows > RANKED_ROWS:
        put_subset(sink, np.flatnonzero(pattern), rows)
    else:
        sink.put(rank(np.flatnonzero(pattern).tolist()).to_bytes(_rank_bytes(rows, held), "little"))
    return COUNTED


def pattern_bytes(*patterns: Rows) -> int:
    """How many bytes `put_pattern` of each adds to a message whose coded stream is else empty."""
    if all(len(pattern) <= RANKED_ROWS for pattern in patterns):
        return sum(_ranked_bytes(len(pattern), int(pattern.sum())) for pattern in patterns)
    sink = Sink()
    for pattern in patterns:
        put_pattern(sink, pattern)
    coded = sink.coded()
    return sink.plain_size() + len(coded) + len(varint(len(coded))) - 1


@lru_cache
def _ranked_bytes(rows: int, held: int) -> int:
    packed = -(-rows // 8)
    if len(varint(held)) + (comb(rows, held) - 1).bit_length() / 8 >= packed:
        return packed
    return len(varint(held)) + _rank_bytes(rows, held)


def get_pattern(source: Source, rows: int, mode: int, of: str = "rows") -> Rows:
    """Read a pattern of `rows` labels of rows, or of words."""
    if mode == PACKED:
        packed = source.take(-(-rows // 8), "the packed pattern")
        bits = np.unpackbits(np.frombuffer(packed, dtype=np.uint8), bitorder="little")
        if bits[rows:].any():
            raise WireError(f"the packed pattern names {of} that do not exist")
        return bits[:rows].view(np.bool_)
    held = source.varint(f"the number of {of} held", rows)
    pattern = np.zeros(rows, dtype=np.bool_)
    if rows > RANKED_ROWS:
        pattern[get_subset(source, rows, held)] = True
        return pattern
    number = int.from_bytes(source.take(_rank_bytes(rows, held), "the pattern"), "little")
    if number >= comb(rows, held):
        raise WireError("the pattern's number is not one of a pattern")
    pattern[unrank(number, rows, held)] = True
    return pattern


def subsets(rows: int, held: int) -> int:
    """Choices of `held` of `rows`; above `RANKED_ROWS` a power of two that is as long."""
    if rows <= RANKED_ROWS:
        return comb(rows, held)
    share = held / rows
    entropy = 0.0 if share in (0.0, 1.0) else -share * np.log2(share) - (1 - share) * np.log2(1 - share)
    return 1 << int(entropy * rows)


def rank(members: list[int]) -> int:
    """The place of a subset in the combinatorial number system: the sum over i of C(c_i, i), c_1 < c_2 < ... from 0."""
    total, choices, at = 0, 0, 0  # choices = C(at, i)
    for i, member in enumerate(members, start=1):
        choices = choices * (at - i + 1) // i if choices else comb(at, i)  # C(at, i-1) -> C(at, i)
        while at < member:
            at += 1
            choices = choices * at // (at - i) if choices else comb(at, i)
        total += choices
    return total


def unrank(number: int, rows: int, held: int) -> list[int]:
    """The subset of `held` of `rows` with this rank: the greatest C(c, held) first."""
    members = []
    at, choices = rows, comb(rows, held)
    for i in range(held, 0, -1):
        while choices > number:
            choices = choices * (at - i) // at  # C(at, i) -> C(at - 1, i)
            at -= 1
        members.append(at)
        number -= choices
        # C(at, i) -> C(at, i - 1), and the next member is below `at`
        choices = choices * i // (at - i + 1) if choices else comb(at, i - 1)
    return members[::-1]


def _rank_bytes(rows: int, held: int) -> int:
    return -(-(comb(rows, held) - 1).bit_length() // 8)
