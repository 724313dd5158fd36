"""Values, levels and signs: whatever is far from equally likely is entropy-coded by its own histogram."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbiad.arrays import IntArray
from fedbiad.coding.range_coder import Symbols, table
from fedbiad.coding.sink import Sink, varint
from fedbiad.coding.source import Source
from fedbiad.coding.subsets import get_subset, put_subset
from fedbiad.compiling import strict
from fedbiad.errors import WireError
from fedbiad.payloads import Float32

Bits = npt.NDArray[np.bool_]

EXPONENTS = 255
"""The exponents of finite float32 values: 0 .. 254."""
FRACTION_BITS = 23
WORTH = 4
"""Bytes of overhead that entropy coding must save at least."""


def entropy_bits(counts: Sequence[int] | IntArray) -> float:
    """Bits of all symbols with these counts, coded at their own frequencies."""
    found = np.asarray([count for count in counts if count], dtype=np.float64)
    return float((found * np.log2(found.sum() / found)).sum()) if len(found) else 0.0


# ---------------------------------------------------------------------- float32 values


def put_floats(sink: Sink, values: Float32) -> bool:
    """Write float32 values exactly; True: exponents by their histogram, 3 bytes of sign and fraction each."""
    bits = values.astype(np.float32, copy=False).view(np.uint32)
    exponents = (bits >> FRACTION_BITS & 0xFF).astype(np.int64)
    counts = np.bincount(exponents)
    least = int(exponents.min(initial=EXPONENTS))
    listed = counts[least:].tolist()
    saved = len(values) - entropy_bits(counts) / 8 - sum(len(varint(count)) for count in listed)
    if saved < WORTH or len(counts) > EXPONENTS:
        sink.array(values, "<f4")
        return False
    sink.put(bytes([least, len(counts) - 1]))
    rest = bits & (1 << FRACTION_BITS) - 1 | bits >> 31 << FRACTION_BITS
    put_symbols(sink, exponents - least, listed)
    sink.array(np.ascontiguousarray(rest, dtype="<u4").view(np.uint8).reshape(-1, 4)[:, :3], "u1")
    return True


def get_floats(source: Source, count: int, coded: bool, what: str) -> Float32:
    """Read `count` finite float32 values."""
    if not coded:
        return source.array(count, "<f4", what)
    least, most = source.take(2, f"the exponents of {what}")
    if not least <= most < EXPONENTS:
        raise WireError(f"{what} has impossible exponents {least} .. {most}: NaN or infinite values, or none")
    exponents = get_symbols(source, count, most - least + 1, f"the exponents of {what}")
    rest = np.zeros((count, 4), dtype=np.uint8)
    rest[:, :3] = np.frombuffer(source.take(3 * count, what), dtype=np.uint8).reshape(-1, 3)
    bits = rest.view("<u4")[:, 0].astype(np.uint32, copy=False)
    sign = bits & 1 << FRACTION_BITS
    bits ^= sign
    bits |= sign << 31 - FRACTION_BITS
    upper = exponents.astype(np.uint32)
    upper += least
    upper <<= FRACTION_BITS
    bits |= upper
    values: Float32 = bits.view(np.float32)
    return values


# ---------------------------------------------------------------------- symbols with their histogram


def put_symbols(sink: Sink, symbols: npt.NDArray[Any], counts: Sequence[int]) -> None:
    """Write how often each of the symbols 0, 1, ... occurs, but for the last, and then the symbols."""
    sink.varint(*counts[:-1])
    if len(counts) > 1:
        sink.code(symbols, table(np.array(counts, dtype=np.float64)))


def get_symbols(source: Source, count: int, alphabet: int, what: str) -> Symbols:
    """Read `count` symbols; each must occur as often as was announced."""
    counts = get_counts(source, count, alphabet, what)
    if alphabet == 1:
        return np.zeros(count, dtype=np.uint16)
    symbols = source.code(count, table(np.array(counts, dtype=np.float64)))
    if _occurrences(symbols, alphabet).tolist() != counts:
        raise WireError(f"{what} do not occur as often as was announced")
    return symbols


@strict
def _occurrences(symbols: Symbols, alphabet: int) -> IntArray:
    """np.bincount, which would make a longer copy."""
    counts = np.zeros(alphabet, dtype=np.int64)
    for symbol in symbols:
        counts[symbol] += 1
    return counts


def get_counts(source: Source, count: int, alphabet: int, what: str) -> list[int]:
    """Read how often each of the symbols 0, 1, ... occurs among `count`; of the last it is known, and not 0."""
    left, counts = count, []
    for _ in range(alphabet - 1):
        counts.append(source.varint(what, left))
        left -= counts[-1]
    if not left:
        raise WireError(f"{what} end with a symbol that does not occur")
    return [*counts, left]


# ---------------------------------------------------------------------- levels


def put_levels(sink: Sink, levels: npt.NDArray[np.int16], steps: int) -> bool:
    """Write signed levels; True: by their histogram, 0, -1, 1, -2, ... in this order."""
    symbols, found = _zigzag(levels)
    counts, width = found.tolist(), 1 if steps <= 0x7F else 2
    if width * len(levels) - entropy_bits(counts) / 8 - sum(len(varint(count)) for count in counts) < WORTH:
        sink.array(levels, f"<i{width}")
        return False
    sink.varint(len(counts) - 1)
    put_symbols(sink, symbols, counts)
    return True


@strict
def _zigzag(levels: npt.NDArray[np.int16]) -> tuple[Symbols, IntArray]:
    """0, -1, 1, -2, ... as 0, 1, 2, 3, ..., and how often each occurs, up to the last that does."""
    symbols, most = np.empty(len(levels), dtype=np.uint16), 0
    for i in range(len(levels)):
        level = int(levels[i])
        symbols[i] = -2 * level - 1 if level < 0 else 2 * level
        most = max(most, int(symbols[i]) + 1)
    return symbols, _occurrences(symbols, most)


def get_levels(source: Source, count: int, steps: int, coded: bool) -> npt.NDArray[np.int16]:
    """Read `count` levels of -steps .. steps."""
    if not coded:
        levels = source.array(count, "<i1" if steps <= 0x7F else "<i2", "levels").astype(np.int16, copy=False)
        if count and not -steps <= int(levels.min()) <= int(levels.max()) <= steps:
            raise WireError(f"a level lies outside -{steps} .. {steps}")
        return levels
    alphabet = source.varint("the greatest level", 2 * steps) + 1
    symbols = get_symbols(source, count, alphabet, "levels")
    negative = symbols & 1
    symbols >>= 1
    symbols ^= np.negative(negative, out=negative)
    return symbols.view(np.int16)


# ---------------------------------------------------------------------- signs


def put_bits(sink: Sink, bits: Bits) -> bool:
    """Write bits: packed, or, where one kind is rare (True), as how many ones there are and where the rarer kind is."""
    size, ones = len(bits), int(bits.sum())
    if size / 8 - entropy_bits([ones, size - ones]) / 8 - len(varint(ones)) < WORTH:
        sink.put(np.packbits(bits, bitorder="little").tobytes())
        return False
    sink.varint(ones)
    put_subset(sink, np.flatnonzero(bits if 2 * ones <= size else ~bits), size)
    return True


def get_bits(source: Source, size: int, coded: bool, what: str) -> Bits:
    """Read `size` bits."""
    if coded:
        ones = source.varint(f"the ones among {what}", size)
        rarer = get_subset(source, size, min(ones, size - ones))
        found = np.full(size, 2 * ones > size)
        found[rarer] ^= True
        return found
    bits = np.unpackbits(np.frombuffer(source.take(-(-size // 8), what), dtype=np.uint8), bitorder="little")
    if bits[size:].any():
        raise WireError(f"{what} are followed by bits that mean nothing")
    return bits[:size].view(np.bool_)
