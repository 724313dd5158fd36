"""Which k of n alike positions: the gaps between them at density k / n, in log2 C(n, k) bits and a few."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedbiad.arrays import IntArray
from fedbiad.coding.sink import Sink, table, uniform
from fedbiad.coding.source import Source
from fedbiad.errors import WireError

LONGEST = 4096
"""Symbols of the table of gaps; the last one stands for a longer gap and is followed by the rest of it."""
FINE = 8
"""Bits of a mean gap that have a probability each; the bits below are equally likely to 5e-6 bits."""


def put_subset(sink: Sink, members: IntArray, size: int) -> None:
    """Write which of `size` alike positions are members; their number is known to the reader."""
    model, shift, symbols = _gap_model(size, len(members))
    if model is None:
        return
    gaps = members.copy()
    gaps[1:] -= members[:-1] + 1
    longest = symbols - 1
    high = gaps >> shift if shift else gaps
    if symbols == LONGEST and int(high.max()) >= longest:
        escapes = high // longest
        coded = np.full(len(gaps) + int(escapes.sum()), longest, dtype=np.int32)
        coded[np.cumsum(escapes + 1) - 1] = high - escapes * longest
        high = coded
    sink.code(high, model)
    if shift:
        sink.code(gaps & (1 << shift) - 1, uniform(1 << shift))


def get_subset(source: Source, size: int, count: int) -> IntArray:
    """Read `count` members of `size` positions."""
    model, shift, symbols = _gap_model(size, count)
    if model is None:
        return np.arange(count)
    longest = symbols - 1
    gaps = source.code(count, model).astype(np.int64)
    if symbols == LONGEST and (gaps == longest).any():
        while missing := int((gaps == longest).sum()) + count - len(gaps):
            if (len(gaps) + missing - count) * longest << shift > size:
                raise WireError("positions run past the end")
            gaps = np.concatenate([gaps, source.code(missing, model)])
        ends = np.flatnonzero(gaps != longest)
        gaps = np.diff(np.cumsum(gaps)[ends], prepend=0)
    if shift:
        gaps <<= shift
        gaps += source.code(count, uniform(1 << shift))
    gaps += 1
    members = np.cumsum(gaps, out=gaps)
    members -= 1
    if members[-1] >= size:
        raise WireError("positions run past the end")
    return members


def _gap_model(size: int, count: int) -> tuple[Any, int, int]:
    """The model of a gap's upper bits, how many lower bits there are, and the model's symbols; None: nothing to tell.

    Geometric: each position is a member with probability count / size.
    """
    if count in (0, size):
        return None, 0, 0
    shift = max((size // count).bit_length() - FINE, 0)
    symbols = min(((size - count) >> shift) + 1, LONGEST)
    ratio = (size - count) / size
    for _ in range(shift):
        ratio *= ratio
    weights = np.full(symbols, ratio)
    weights[0] = 1.0
    return table(np.multiply.accumulate(weights)), shift, symbols
