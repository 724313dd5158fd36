"""Writing the two streams of a message: plain bytes, and one range-coded stream for all that is entropy-coded.

Probabilities come from integers (or products of ratios of integers) in float64, by one sum in order, one division and
one product an entry: IEEE operations that every machine rounds alike.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fedbiad.arrays import IntArray
from fedbiad.coding.page import AT, MAX_VARINT
from fedbiad.coding.range_coder import (
    KEPT,
    NO_WORDS,
    SENT,
    STATE,
    STATE_BITS,
    WORD_BITS,
    Table,
    Words,
    encode,
    end_of,
    new_coder,
)
from fedbiad.errors import WireError

Told = TypeVar("Told")
Chunk = bytes | memoryview
"""Bytes, or those of an array."""

FLOAT = struct.Struct("<f")
AT_ONCE = 1 << 16
"""Symbols coded at once: there is room for a word each before any is written."""


class Sink:
    """Where an encoder writes: `plain` chunks, in order, and the range coder."""

    def __init__(self) -> None:
        self.plain: list[Chunk] = []
        self._coder = new_coder()
        self._words: Words = NO_WORDS

    def branch(self) -> Sink:
        """A sink that goes on from here: to try one way of coding beside another."""
        other = Sink()
        other.plain, other._coder, other._words = list(self.plain), self._coder.copy(), self._words.copy()
        return other

    def take(self, branch: Sink) -> None:
        """Go on as a branch did."""
        self.plain, self._coder, self._words = branch.plain, branch._coder, branch._words

    def bits(self) -> float:
        """The size so far, up to the rounding at the end."""
        words, span = int(self._coder[2]), int(self._coder[1])
        return 8 * self.plain_size() + WORD_BITS * words + STATE_BITS - math.log2(span)

    def plain_size(self) -> int:
        """Plain bytes so far."""
        return sum(map(len, self.plain))

    def varint(self, *values: int) -> None:
        """Unsigned counts, 7 bits a byte, lowest first."""
        self.plain.append(b"".join(map(varint, values)))

    def put(self, data: bytes) -> None:
        """Bytes as they are."""
        self.plain.append(data)

    def float32(self, value: float | np.float32) -> None:
        """One float32."""
        self.plain.append(FLOAT.pack(value))

    def array(self, values: npt.NDArray[Any], dtype: str) -> None:
        """An array, little-endian; not copied where it lies so already."""
        self.plain.append(np.ascontiguousarray(values, dtype).reshape(-1).view(np.uint8).data)

    def code(self, symbols: npt.NDArray[Any], starts: Table) -> None:
        """Range-code symbols that share a table."""
        for first in range(0, len(symbols), AT_ONCE):
            some = symbols[first : first + AT_ONCE].astype(np.uint16)
            self.run(encode, len(some), some, starts)

    def run(self, encoder: Callable[..., None], most: int, *arguments: Any) -> None:
        """Have a compiled encoder write up to `most` symbols."""
        self._make_room(most)
        encoder(self._coder, self._words, *arguments)

    def write(self, writer: Callable[..., Told], most_plain: int, most: int, *arguments: Any) -> Told:
        """Have a compiled writer write up to so many plain bytes and symbols on a `Page`; what it tells."""
        self._make_room(most)
        self._coder[AT], plain = 0, np.empty(most_plain, dtype=np.uint8)
        told = writer(self._coder, self._words, plain, *arguments)
        self.plain.append(plain[: self._coder[AT]].tobytes())
        return told

    def _make_room(self, most: int) -> None:
        """For a word a symbol; a growing array doubles at least."""
        if self._words is NO_WORDS:
            self._words = np.empty(most, KEPT)
            return
        written, before = int(self._coder[2]), self._words
        if written + most > len(before):
            self._words = np.empty(max(written + most, 2 * len(before)), KEPT)
            self._words[:written] = before[:written]

    def coded(self) -> bytes:
        """The range-coded stream: the shortest that, with zeros behind it, decodes to its symbols."""
        lower, span, count = self._coder[:STATE].tolist()
        words: bytes = self._words[:count].astype(SENT).tobytes()
        end = end_of(lower, span)
        if end < 1 << STATE_BITS:
            return (words + end.to_bytes(8, "big")).rstrip(b"\0")
        size = len(words)  # one more in the words before, and nothing behind them
        return (int.from_bytes(words, "big") + 1).to_bytes(size, "big").rstrip(b"\0")


def varint_size(number: int) -> int:
    """len(varint(number))."""
    return max(1, -(-number.bit_length() // 7))


def varint_sizes(numbers: IntArray) -> IntArray:
    """The same of many."""
    sizes: IntArray = 1 + np.searchsorted(_LARGER, numbers, side="right")
    return sizes


_LARGER = 1 << np.arange(7, 63, 7, dtype=np.int64)
"""The first number of two bytes, of three, and so on."""


_SHORT = [bytes([value]) for value in range(0x80)]


def varint(value: int) -> bytes:
    """An unsigned count, 7 bits a byte, lowest first."""
    if 0 <= value <= 0x7F:
        return _SHORT[value]
    if not 0 <= value < 1 << 7 * MAX_VARINT:
        raise WireError(f"a count of {value} does not fit a message")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
