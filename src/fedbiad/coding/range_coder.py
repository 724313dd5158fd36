"""The range coder, compiled: symbols of known probabilities into as few bits as they tell, and back.

It writes the words of `constriction`'s (32-bit words, 64-bit state, 24-bit probabilities); a message of a few kB would
spend ten times as long on the calls of a library as on its symbols. Tests compare the two.

Encoder and decoder are arrays that begin with three numbers: an encoder's with the lower end of its interval, the
interval's span, and how many words are written; a decoder's with how far above the lower end the stream lies, the span,
and the words read. Room behind them is for the place among plain bytes (`page`): an array less for compiled code.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedbiad.arrays import FloatArray, IntArray
from fedbiad.coding.lengths import length
from fedbiad.compiling import strict, strict_part

Coder = npt.NDArray[np.uint64]
Words = npt.NDArray[np.uint32]
Table = npt.NDArray[np.uint32]
"""Where each symbol begins among 2^24 equal parts [symbols + 1]."""
Symbols = npt.NDArray[np.uint16]

WORD_BITS, STATE_BITS, PRECISION = 32, 64, 24
WHOLE = 2**PRECISION
WIDEST = np.uint64(2**STATE_BITS - 1)
PIECE = 16
"""Equally likely bits are coded so many at a time."""
_WORD, _PRECISION, _LEAST = np.uint64(WORD_BITS), np.uint64(PRECISION), np.uint64(2**WORD_BITS)
_WHOLE, _PIECE, _ONE = np.uint64(WHOLE), np.uint64(PIECE), np.uint64(1)
FEWEST, MOST = 3, 10
"""Bits of a bucket's number (`buckets`)."""
NONE = WIDEST
"""In the place of bits: the stream holds none."""
SURE = 16
"""No cell of a row is taken to be filled with a probability above 1 - 1/16."""


SENT, KEPT = np.dtype(">u4"), np.dtype(np.uint32)
"""Words in a message and in memory."""
STATE = 3
COUNTERS = STATE + 6
"""Numbers of a coder's array, those behind its state included."""
_FRESH = np.array([0, WIDEST, *[0] * (COUNTERS - 2)], dtype=np.uint64)
NO_WORDS: Words = np.zeros(0, dtype=np.uint32)


def new_coder() -> Coder:
    """Nothing written; as a decoder's: of a stream of zeros."""
    return _FRESH.copy()


def opened(stream: bytes) -> tuple[Coder, Words]:
    """A decoder that has read nothing but its first state; the words of a stream, highest byte first, then zeros."""
    return _opened(np.frombuffer(stream, dtype=np.uint8))


@strict
def _opened(stream: npt.NDArray[np.uint8]) -> tuple[Coder, Words]:
    """In one call: on a processor that has just trained, each of Python's own would wait for memory."""
    coder, words = np.zeros(COUNTERS, dtype=np.uint64), np.zeros(max((len(stream) + 3) // 4, 2), dtype=np.uint32)
    for i in range(len(stream) // 4):
        for byte in range(4):
            words[i] = words[i] << np.uint32(8) | np.uint32(stream[4 * i + byte])
    for i in range(len(stream) - len(stream) % 4, len(stream)):
        words[i // 4] |= np.uint32(stream[i]) << np.uint32(24 - 8 * (i % 4))
    coder[0], coder[1], coder[2] = np.uint64(words[0]) << _WORD | np.uint64(words[1]), WIDEST, 2
    return coder, words


@strict_part
def state_of(coder: Coder) -> tuple[np.uint64, np.uint64, int]:
    """To be kept in registers while symbols are coded."""
    return coder[0], coder[1], coder.view(np.int64)[2]


@strict
def table(weights: FloatArray) -> Table:
    """Parts in proportion to the weights, each of at least one: floor(sum before x (2^24 - n) / sum of all) + i."""
    before, total = np.empty(len(weights), dtype=np.float64), 0.0
    for i in range(len(weights)):
        before[i] = total
        total += weights[i]
    return table_of(before, total)


@strict_part
def table_of(before: FloatArray, total: float) -> Table:
    """The same, if the sums are known: of the weights before each, in their order, and of all."""
    each, starts = (WHOLE - len(before)) / total, np.empty(len(before) + 1, dtype=np.uint32)
    for i in range(len(before)):
        starts[i] = np.int32(before[i] * each) + i
    starts[len(before)] = WHOLE
    return starts


# ---------------------------------------------------------------------- one symbol


@strict_part
def put(
    lower: np.uint64, span: np.uint64, count: int, words: Words, start: np.uint64, size: np.uint64
) -> tuple[np.uint64, np.uint64, int]:
    """Write a symbol of `size` parts from `start` on."""
    scale = span >> _PRECISION
    moved, span = lower + scale * start, scale * size
    if moved < lower:  # beyond 2^64: one more in the words before
        at = count - 1
        while words[at] == np.uint32(0xFFFFFFFF):
            words[at] = np.uint32(0)
            at -= 1
        words[at] += np.uint32(1)
    if span < _LEAST:
        words[count] = np.uint32(moved >> _WORD)
        return moved << _WORD, span << _WORD, count + 1
    return moved, span, count


@strict_part
def take(
    above: np.uint64, span: np.uint64, count: int, words: Words, start: np.uint64, size: np.uint64
) -> tuple[np.uint64, np.uint64, int]:
    """Go on behind a symbol that was read; behind its end a stream goes on with zeros."""
    scale = span >> _PRECISION
    above, span = above - scale * start, scale * size
    if span < _LEAST:
        word = np.uint64(words[count]) if count < len(words) else np.uint64(0)
        return above << _WORD | word, span << _WORD, count + 1
    return above, span, count


@strict_part
def part_at(above: np.uint64, span: np.uint64) -> np.uint64:
    """The part that comes next; 2^24 or more: there is no such symbol."""
    return above // (span >> _PRECISION)


@strict_part
def reaches(above: np.uint64, span: np.uint64, part: np.uint64) -> np.bool_:
    """Whether this part comes next, or one behind it: without a division."""
    return above >= (span >> _PRECISION) * part


@strict_part
def put_low_bits(
    lower: np.uint64, span: np.uint64, count: int, words: Words, value: np.uint64, bits: int
) -> tuple[np.uint64, np.uint64, int]:
    """Write the lower bits of a number, equally likely, the lowest first."""
    while bits > 0:
        now = min(bits, PIECE)
        size = np.uint64(1) << np.uint64(PRECISION - now)
        low = value & ((np.uint64(1) << np.uint64(now)) - np.uint64(1))
        lower, span, count = put(lower, span, count, words, low * size, size)
        value, bits = value >> _PIECE, bits - now
    return lower, span, count


@strict_part
def take_low_bits(
    above: np.uint64, span: np.uint64, count: int, words: Words, bits: int
) -> tuple[np.uint64, np.uint64, int, np.uint64]:
    """Read the lower bits of a number; `NONE`: there is no such symbol."""
    value, at = np.uint64(0), np.uint64(0)
    while bits > 0:
        now = min(bits, PIECE)
        size = np.uint64(1) << np.uint64(PRECISION - now)
        low = above // ((span >> _PRECISION) * size)
        if low >> np.uint64(now):
            return above, span, count, NONE
        above, span, count = take(above, span, count, words, low * size, size)
        value, at, bits = value | low << at, at + _PIECE, bits - now
    return above, span, count, value


@strict_part
def buckets(starts: Table, count: int) -> tuple[Symbols, np.uint64]:
    """For every so many parts the symbol of the first, where a search may begin; and how many parts, the power of 2.

    Many symbols to be read are worth many buckets.
    """
    bits = min(max(length(count), FEWEST), MOST)
    firsts, symbol, size = np.empty(1 << bits, dtype=np.uint16), 0, PRECISION - bits
    for i in range(len(firsts)):
        while starts[symbol + 1] <= i << size:
            symbol += 1
        firsts[i] = symbol
    return firsts, np.uint64(size)


@strict_part
def symbol_at(starts: Table, firsts: Symbols, size: np.uint64, part: np.uint64) -> np.uint64:
    """The symbol that has this part; without a sign, so that an index needs no look at it."""
    symbol = np.uint64(firsts[part >> size])
    while starts[symbol + _ONE] <= part:
        symbol += _ONE
    return symbol


# ---------------------------------------------------------------------- many symbols


@strict
def encode(coder: Coder, words: Words, symbols: Symbols, starts: Table) -> None:
    """Write symbols that share a table."""
    lower, span, count = state_of(coder)
    for i in range(len(symbols)):
        symbol = np.int64(symbols[i])
        lower, span, count = put(lower, span, count, words, starts[symbol], starts[symbol + 1] - starts[symbol])
    coder[0], coder[1], coder[2] = lower, span, count


@strict
def decode(coder: Coder, words: Words, symbols: Symbols, starts: Table) -> bool:
    """Read as many symbols as there is room for; False: the stream is none."""
    above, span, count = state_of(coder)
    firsts, size = buckets(starts, len(symbols))
    for i in range(len(symbols)):
        part = part_at(above, span)
        if part >= _WHOLE:
            return False
        symbol = symbol_at(starts, firsts, size, part)
        symbols[i] = symbol
        above, span, count = take(above, span, count, words, starts[symbol], starts[symbol + _ONE] - starts[symbol])
    coder[0], coder[1], coder[2] = above, span, count
    return True


@strict_part
def _empty(weight: int, total: int, filled: int) -> np.uint64:
    """Parts of an empty cell in a row of `filled` entries, if its column weighs `weight` of `total`."""
    likely = min(filled * weight, total - total // SURE - 1)
    each = (WHOLE - 2) / float(total)
    return np.uint64(float(total - likely) * each) + np.uint64(1)


@strict
def encode_row(coder: Coder, words: Words, cells: Symbols, weights: IntArray, filled: int) -> None:
    """Write which cells of a row are filled, columns by their weights; `filled` are."""
    lower, span, count = state_of(coder)
    total = weights.sum()
    for j in range(len(cells)):
        empty = _empty(weights[j], total, filled)
        start, stop = (empty, _WHOLE) if cells[j] else (np.uint64(0), empty)
        lower, span, count = put(lower, span, count, words, start, stop - start)
    coder[0], coder[1], coder[2] = lower, span, count


@strict
def decode_row(coder: Coder, words: Words, cells: Symbols, weights: IntArray, filled: int) -> bool:
    """Read which cells of a row are filled; False: the stream is none."""
    above, span, count = state_of(coder)
    total = weights.sum()
    for j in range(len(cells)):
        if reaches(above, span, _WHOLE):
            return False
        empty = _empty(weights[j], total, filled)
        cells[j] = reaches(above, span, empty)
        start, stop = (empty, _WHOLE) if cells[j] else (np.uint64(0), empty)
        above, span, count = take(above, span, count, words, start, stop - start)
    coder[0], coder[1], coder[2] = above, span, count
    return True


# ---------------------------------------------------------------------- ends


def end_of(lower: int, span: int) -> int:
    """Of the numbers in an interval the one that ends with most zero bytes, of these the least."""
    bits = STATE_BITS
    while (number := -(-lower >> bits << bits)) >= lower + span:
        bits -= 8
    return number
