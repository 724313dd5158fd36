"""The compiled range coder against `constriction`, word for word."""

from __future__ import annotations

from typing import Any

import constriction  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedbiad.arrays import FloatArray, IntArray
from fedbiad.coding.range_coder import STATE, WHOLE, decode_row, encode_row, end_of, table
from fedbiad.coding.sink import AT_ONCE, Sink
from fedbiad.coding.source import Source
from fedbiad.coding.subsets import LONGEST, put_subset
from fedbiad.errors import WireError

SEEDS = st.integers(0, 2**32 - 1)
MODEL: Any = constriction.stream.model


def compare(sink: Sink, theirs: Any) -> None:
    """The same interval, and the same words before it."""
    words, (lower, span) = theirs.pos()
    assert sink._coder[:STATE].tolist() == [lower, span, words]
    sealed = theirs.get_compressed()
    settled = max(words - 1, 0)  # the last one may still take a carry, which theirs keeps in mind and ours writes
    assert np.array_equal(sink._words[:settled], sealed[:settled])


def decoder_of(data: bytes) -> Any:
    """Theirs, for the bytes of a stream."""
    filled = data.ljust(-(-max(len(data), 8) // 4) * 4, b"\0")
    return constriction.stream.queue.RangeDecoder(np.frombuffer(filled, ">u4").astype(np.uint32))


def weights_of(rng: np.random.Generator, alphabet: int, kind: str) -> FloatArray:
    """Counts, some of them 0, or powers that vanish."""
    if kind == "counts":
        counts: FloatArray = rng.integers(0, 1000, alphabet).astype(np.float64) * (rng.random(alphabet) < 0.8)
        counts[0] += 1
        return counts
    return np.multiply.accumulate(np.full(alphabet, rng.uniform(0.01, 1.0)))


@given(st.integers(1, 400), st.integers(2, 300), st.sampled_from(["counts", "powers"]), st.booleans(), SEEDS)
def test_the_same_words(count: int, alphabet: int, kind: str, likely: bool, seed: int) -> None:
    """Also for symbols of weight 0, which take 24 bits."""
    rng = np.random.default_rng(seed)
    weights = weights_of(rng, alphabet, kind)
    chances = weights / weights.sum() if likely else None
    symbols = rng.choice(alphabet, count, p=chances)
    theirs, model = constriction.stream.queue.RangeEncoder(), MODEL.Categorical(weights, perfect=False)
    theirs.encode(symbols.astype(np.int32), model)
    sink = Sink()
    sink.code(symbols, table(weights))
    compare(sink, theirs)
    assert np.array_equal(decoder_of(sink.coded()).decode(model, count), symbols)


@given(st.integers(2, 60), SEEDS)
def test_the_same_rows_of_a_grid(columns: int, seed: int) -> None:
    """Cells with a table each, written to the letter of docs/wire.md."""
    rng = np.random.default_rng(seed)
    weights: IntArray = rng.integers(1, 30, columns)
    cells = (rng.random(columns) < 0.3).astype(np.uint16)
    filled, total = int(cells.sum()), int(weights.sum())
    full = np.minimum(filled * weights, total - total // 16 - 1)
    pairs = np.stack([total - full, full], axis=1).astype(np.float64)
    theirs = constriction.stream.queue.RangeEncoder()
    theirs.encode(cells.astype(np.int32), MODEL.Categorical(perfect=False), pairs)
    sink, again = Sink(), np.zeros(columns, dtype=np.uint16)
    sink.run(encode_row, columns, cells, weights, filled)
    compare(sink, theirs)
    source = Source(memoryview(sink.coded()))
    source.split(len(sink.coded()))
    source.run(decode_row, again, weights, filled)
    assert np.array_equal(again, cells)


@given(st.integers(1, 300), st.integers(1, 200_000), SEEDS)
@example(3, 2**40, 0)  # lower bits in several pieces
@example(1, 2**20, 1)
def test_the_same_subsets(count: int, more: int, seed: int) -> None:
    """Gaps one by one: upper bits by powers of a ratio, escapes, then the lower bits, 16 at a time."""
    rng, size = np.random.default_rng(seed), count + more
    members = np.unique(rng.integers(0, size, count))
    count = len(members)
    shift = max((size // count).bit_length() - 6, 0)
    symbols = min(((size - count) >> shift) + 1, LONGEST)
    ratio = (size - count) / size
    for _ in range(shift):
        ratio *= ratio
    model = MODEL.Categorical(np.multiply.accumulate(np.array([1.0] + [ratio] * (symbols - 1))), perfect=False)
    theirs = constriction.stream.queue.RangeEncoder()

    def one(symbol: int, own: Any) -> None:
        theirs.encode(np.array([symbol], dtype=np.int32), own)

    for gap in np.diff(members, prepend=-1).tolist():
        upper, lower = divmod(gap - 1, 1 << shift)
        while symbols == LONGEST and upper >= LONGEST - 1:
            one(LONGEST - 1, model)
            upper -= LONGEST - 1
        one(upper, model)
        for at in range(0, shift, 16):
            one(lower >> at & 0xFFFF, MODEL.Uniform(1 << min(shift - at, 16)))
    sink = Sink()
    put_subset(sink, members, size)
    compare(sink, theirs)


def test_more_symbols_than_are_coded_at_once() -> None:
    symbols = np.random.default_rng(0).choice(3, 2 * AT_ONCE + 7, p=[0.9, 0.09, 0.01])
    theirs, weights = constriction.stream.queue.RangeEncoder(), np.array([90.0, 9.0, 1.0])
    theirs.encode(symbols.astype(np.int32), MODEL.Categorical(weights, perfect=False))
    sink = Sink()
    sink.code(symbols, table(weights))
    compare(sink, theirs)


def test_a_branch_goes_on_by_itself() -> None:
    starts, symbols = table(np.array([3.0, 2.0, 1.0])), np.arange(3).repeat(50)
    trunk = Sink()
    trunk.code(symbols, starts)
    before, branch = trunk.coded(), trunk.branch()
    branch.code(symbols[::-1], starts)
    assert trunk.coded() == before
    trunk.code(symbols[::-1], starts)
    assert branch.coded() == trunk.coded() != before


def test_tables_by_hand() -> None:
    """2^24 - 3 parts by 1, 0 and 3, and one more for each symbol."""
    assert table(np.array([1.0, 0.0, 3.0])).tolist() == [0, (WHOLE - 3) // 4 + 1, (WHOLE - 3) // 4 + 2, WHOLE]


@pytest.mark.parametrize(
    ("lower", "span", "end"),
    [
        (0, 2**64 - 1, 0),  # nothing written
        (2, 2**64 - 1, 2**64),  # a carry, and no byte
        (2**63 + 5, 2**40, 2**63 + 2**40),  # three bytes: two would lie at 2^63, below, or at 2^63 + 2^48, above
        (7, 1, 7),
        (-3, 10, 0),  # a reader's state may lie below its first word
    ],
)
def test_ends_by_hand(lower: int, span: int, end: int) -> None:
    assert end_of(lower, span) == end


@given(st.integers(1, 120), st.integers(2, 40), SEEDS)
def test_one_stream_for_one_content(count: int, alphabet: int, seed: int) -> None:
    """Any other stream that decodes to the same symbols is refused: the next numbers, spare bytes, fewer bytes."""
    rng = np.random.default_rng(seed)
    weights = rng.integers(1, 1000, alphabet).astype(np.float64)
    symbols = rng.choice(alphabet, count, p=weights / weights.sum())
    sink = Sink()
    sink.code(symbols, table(weights))
    data = sink.coded()
    number = int.from_bytes(data, "big")
    others = [(number + d).to_bytes(len(data) + 1, "big")[1:] for d in (-1, 1, 2) if 0 <= number + d < 256 ** len(data)]
    for other in (data + b"\0", data + b"\1", data + bytes(9), data[:-1], *others):
        source = Source(memoryview(other))
        source.split(len(other))
        try:
            heard = source.code(count, table(weights))
        except WireError:
            continue
        if np.array_equal(heard, symbols) and other != data:
            with pytest.raises(WireError, match="not the one its content is coded as"):
                source.finish()
