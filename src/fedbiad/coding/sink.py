"""Writing the two streams of a message: plain bytes, and one range-coded stream for all that is entropy-coded.

Probability tables reach the range coder as integers (or as products of ratios of integers) in float64. It normalises
them with one sum in order, one division and one product an entry: IEEE operations that every machine rounds alike.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import constriction  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt

from fedbiad.arrays import FloatArray, IntArray
from fedbiad.errors import WireError

Symbols = npt.NDArray[np.int32]
Chunk = bytes | npt.NDArray[Any]
"""Bytes, or an array whose bytes are meant."""

QUEUE: Any = constriction.stream.queue
_model: Any = constriction.stream.model
EACH: Any = _model.Categorical(perfect=False)
"""The model of symbols with a table of their own each."""

WORD_BITS = 32
STATE_BITS = 64
MAX_VARINT = 9
"""Bytes; 7 bits each: counts below 2^63."""


def table(weights: FloatArray) -> Any:
    """The model of symbols 0, 1, ... with these weights, at least two; a weight of 0 counts as the smallest."""
    return _model.Categorical(weights, perfect=False)


def uniform(size: int) -> Any:
    """The model of equally likely symbols 0 .. size - 1; 2 <= size < 2^24."""
    return _model.Uniform(size)


def chunk_size(chunk: Chunk) -> int:
    """Bytes of a chunk."""
    return len(chunk) if isinstance(chunk, bytes) else chunk.nbytes


class Sink:
    """Where an encoder writes: `plain` chunks, in order, and the range coder."""

    def __init__(self) -> None:
        self.plain: list[Chunk] = []
        self._coder = QUEUE.RangeEncoder()

    def branch(self) -> Sink:
        """A sink that goes on from here: to try one way of coding beside another."""
        other = Sink()
        other.plain = list(self.plain)
        other._coder = self._coder.clone()
        return other

    def take(self, branch: Sink) -> None:
        """Go on as a branch did."""
        self.plain, self._coder = branch.plain, branch._coder

    def bits(self) -> float:
        """The size so far, up to the rounding at the end."""
        words, (_, span) = self._coder.pos()
        coded: float = WORD_BITS * words + STATE_BITS - math.log2(span)
        return 8 * self.plain_size() + coded

    def plain_size(self) -> int:
        """Plain bytes so far."""
        return sum(map(chunk_size, self.plain))

    def varint(self, *values: int) -> None:
        """Unsigned counts, 7 bits a byte, lowest first."""
        for value in values:
            self.plain.append(varint(value))

    def put(self, data: bytes) -> None:
        """Bytes as they are."""
        self.plain.append(data)

    def float32(self, value: float | np.float32) -> None:
        """One float32."""
        self.plain.append(struct.pack("<f", value))

    def array(self, values: npt.NDArray[Any], dtype: str) -> None:
        """An array, little-endian; not copied where it lies so already."""
        self.plain.append(values.astype(dtype, copy=False))

    def code(self, symbols: npt.NDArray[Any], model: Any) -> None:
        """Range-code symbols that share a model."""
        if len(symbols):
            self._coder.encode(np.ascontiguousarray(symbols, dtype=np.int32), model)

    def code_each(self, symbols: npt.NDArray[Any], weights: FloatArray) -> None:
        """Range-code symbols with a row of weights [symbols, alphabet] each."""
        if len(symbols):
            self._coder.encode(np.ascontiguousarray(symbols, dtype=np.int32), EACH, weights)

    def coded(self) -> bytes:
        """The range-coded stream, without the bytes at its end that any choice of them would do for."""
        words = self._coder.get_compressed()
        if not len(words):
            return b""
        done, (lower, span) = self._coder.pos()
        data: bytes = words.astype(">u4").tobytes()
        head, tail = data[: 4 * done], int.from_bytes(data[4 * done :].ljust(8, b"\0"), "big")
        return (head + _shortest(tail, lower, span)).rstrip(b"\0")


def _shortest(point: int, lower: int, span: int) -> bytes:
    """The fewest bytes that, filled with zeros to 64 bits, lie in the interval of `span` values that `point` lies in.

    It begins at `lower` modulo 2^64: what comes before must not change, so candidates are counted from `point`.
    """
    below = (point - lower) % (1 << STATE_BITS)
    for kept in range(8):
        unit = 1 << (STATE_BITS - 8 * kept)
        for candidate in (point // unit * unit, -(-point // unit) * unit):
            if candidate < 1 << STATE_BITS and 0 <= below + candidate - point < span:
                return candidate.to_bytes(8, "big")[:kept]
    return point.to_bytes(8, "big")


def varint_size(number: int) -> int:
    """len(varint(number))."""
    return max(1, -(-number.bit_length() // 7))


def varint_sizes(numbers: IntArray) -> IntArray:
    """The same of many."""
    sizes: IntArray = 1 + np.searchsorted(_LARGER, numbers, side="right")
    return sizes


_LARGER = 1 << np.arange(7, 63, 7, dtype=np.int64)
"""The first number of two bytes, of three, and so on."""


def varint(value: int) -> bytes:
    """An unsigned count, 7 bits a byte, lowest first."""
    if not 0 <= value < 1 << 7 * MAX_VARINT:
        raise WireError(f"a count of {value} does not fit a message")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
