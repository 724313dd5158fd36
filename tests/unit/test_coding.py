"""Entropy coding: exact round trips, and sizes within 1 % of what there is to tell."""

from __future__ import annotations

import math
from itertools import combinations
from math import comb, lgamma, log, log2

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedbiad.arrays import IntArray
from fedbiad.coding.parts import blocks_of
from fedbiad.coding.patterns import COUNTED, PACKED, get_pattern, put_pattern, rank, unrank
from fedbiad.coding.positions import Blocks, decode_rows, encode_rows, get_positions, put_positions
from fedbiad.coding.range_coder import encode_row, table
from fedbiad.coding.sink import Sink, varint
from fedbiad.coding.source import Source
from fedbiad.coding.subsets import get_subset, put_subset
from fedbiad.coding.values import (
    entropy_bits,
    get_bits,
    get_floats,
    get_levels,
    get_symbols,
    put_bits,
    put_floats,
    put_levels,
)
from fedbiad.errors import WireError

SEEDS = st.integers(0, 2**32 - 1)


def message(sink: Sink) -> bytes:
    """The plain bytes and the coded stream of a sink."""
    plain = b"".join(chunk if isinstance(chunk, bytes) else chunk.tobytes() for chunk in sink.plain)
    return plain + sink.coded()


def reader(sink: Sink) -> Source:
    """What a sink wrote, ready to be read."""
    source = Source(memoryview(message(sink)))
    source.split(len(sink.coded()))
    return source


def log2_choices(size: int, count: int) -> float:
    """log2 C(size, count)."""
    return (lgamma(size + 1) - lgamma(count + 1) - lgamma(size - count + 1)) / log(2)


def subset_bytes(members: IntArray, size: int) -> int:
    """Write and read a subset; the bytes it took."""
    sink = Sink()
    put_subset(sink, members, size)
    source = reader(sink)
    assert np.array_equal(get_subset(source, size, len(members)), members)
    source.finish()
    return len(message(sink))


def positions_bytes(positions: IntArray, blocks: Blocks) -> int:
    """Write and read positions; the bytes they took."""
    sink = Sink()
    by_blocks = put_positions(sink, positions, blocks)
    source = reader(sink)
    assert np.array_equal(get_positions(source, blocks, by_blocks, len(positions)), positions)
    source.finish()
    return len(message(sink))


# ---------------------------------------------------------------------- streams


@given(st.integers(0, 2**63 - 1))
def test_varints(value: int) -> None:
    data = varint(value)
    assert len(data) == max(-(-value.bit_length() // 7), 1)
    assert Source(memoryview(data)).varint("it", 2**63 - 1) == value


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "truncated"),
        (b"\x80", "truncated"),
        (b"\x80\x00", "fewest bytes"),
        (b"\x65", "not within 0 .. 100"),
        (b"\xff" * 9 + b"\x01", "more than 9 bytes"),
    ],
)
def test_bad_varints(data: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        Source(memoryview(data)).varint("it", 100)


def test_the_end_of_a_stream_takes_less_than_a_byte_on_average() -> None:
    rng = np.random.default_rng(0)
    spare = []
    for _ in range(500):
        weights = rng.integers(1, 1000, 20).astype(np.float64)
        sink = Sink()
        sink.code(rng.choice(20, int(rng.integers(1, 100)), p=weights / weights.sum()), table(weights))
        spare.append(len(sink.coded()) - sink.bits() / 8)
    assert np.mean(spare) < 0.6
    assert np.mean(np.array(spare) > 1) < 0.02


@given(st.integers(0, 400), st.integers(2, 40), SEEDS)
@example(36, 36, 209446967)  # a spare byte makes another message of it
@example(100, 10, 0)  # a spare byte makes the same message of it
@example(132, 13, 206)  # a carry
def test_streams_end_without_spare_bytes_and_come_back(count: int, alphabet: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.integers(1, 1000, alphabet).astype(np.float64)
    symbols = rng.choice(alphabet, count, p=weights / weights.sum())
    sink = Sink()
    sink.code(symbols, table(weights))
    data = sink.coded()
    assert len(data) <= math.ceil(sink.bits() / 8) + 8  # where the last byte would carry into those before, one more
    assert not data.endswith(b"\0")
    source = reader(sink)
    assert np.array_equal(source.code(count, table(weights)), symbols)
    source.finish()
    if count > 20:
        changed = Source(memoryview(data + b"\x01"))
        changed.split(len(data) + 1)
        if np.array_equal(changed.code(count, table(weights)), symbols):  # else it is another message, in its own form
            with pytest.raises(WireError, match="not the one its content is coded as"):
                changed.finish()


# ---------------------------------------------------------------------- subsets and positions


@given(st.integers(1, 3000), st.floats(0, 1), SEEDS)
def test_any_subset_comes_back(size: int, share: float, seed: int) -> None:
    members = np.flatnonzero(np.random.default_rng(seed).random(size) < share)
    subset_bytes(members, size)


@pytest.mark.parametrize(
    ("members", "size"),
    [
        ([0], 1), ([], 5), ([4], 5), ([0, 1, 2], 3),
        ([999_999], 1_000_000),  # one long gap
        ([*range(2000), 9_999_999], 10_000_000),  # a gap far longer than the table
        ([0, 5_000_000, 9_999_999], 10_000_000),
    ],
)  # fmt: skip
def test_odd_subsets_come_back(members: list[int], size: int) -> None:
    subset_bytes(np.array(members, dtype=np.int64), size)


@pytest.mark.parametrize(("size", "count"), [(100_000, 500), (1_000_000, 1000), (50_000, 5000), (4000, 2000)])
def test_random_positions_take_their_entropy(size: int, count: int) -> None:
    """Within 1 % of log2 C(size, count) for 500 positions or more, the last byte's rounding included."""
    rng = np.random.default_rng(size + count)
    sizes = [subset_bytes(np.sort(rng.choice(size, count, replace=False)), size) for _ in range(5)]
    assert np.mean(sizes) * 8 < 1.01 * log2_choices(size, count)


def test_positions_of_a_matrix_take_their_entropy_too() -> None:
    """Random positions have no rows and columns to share: trying them costs at most two bytes."""
    rng = np.random.default_rng(0)
    positions = np.sort(rng.choice(100 * 784, 600, replace=False))
    assert positions_bytes(positions, [(100, 784)]) * 8 < 1.01 * log2_choices(100 * 784, 600) + 16


def test_shared_rows_and_columns_are_cheap() -> None:
    """A third of the cells of 12 rows and 60 columns in 128 x 784 take less than three quarters of alike ones' bits."""
    rng = np.random.default_rng(1)
    rows, columns = (np.sort(rng.choice(size, count, replace=False)) for size, count in ((128, 12), (784, 60)))
    positions = (rows[:, None] * 784 + columns)[rng.random((12, 60)) < 1 / 3]
    taken = positions_bytes(positions, [(128, 784)]) * 8
    assert taken < 0.75 * log2_choices(128 * 784, len(positions))
    # in a vector there is nothing to share
    assert positions_bytes(positions, [(1, 128 * 784)]) * 8 > 0.95 * log2_choices(128 * 784, len(positions))


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40)), min_size=1, max_size=4), st.floats(0, 1), SEEDS)
def test_any_positions_come_back(blocks: list[tuple[int, int]], share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = sum(rows * columns for rows, columns in blocks)
    stripes = rng.random(size) < share * (rng.random(size // 7 + 1) < 0.5).repeat(7)[:size]
    positions_bytes(np.flatnonzero(stripes), blocks)


def test_rows_against_one_by_one() -> None:
    """Each row by itself, columns weighed by the rows before; a full one is not written."""
    rng, columns = np.random.default_rng(5), 40
    filled = rng.random((12, columns)) < rng.random((12, 1)) ** 2
    filled[3], filled[5:, 0], filled[5:, -1] = True, True, True
    counts = filled.sum(1)
    first, column = np.cumsum(counts) - counts, np.nonzero(filled)[1]
    order = np.argsort(-counts, kind="stable")
    slow, weights = Sink(), [1] * columns
    for i in order:
        if counts[i] < columns:
            slow.run(encode_row, columns, filled[i].astype(np.uint16), np.array(weights), int(counts[i]))
        for j in np.flatnonzero(filled[i]):
            for near, more in ((j - 1, 1), (j, 4), (j + 1, 1)):
                if 0 <= near < columns:
                    weights[near] += more
    fast = Sink()
    fast.run(encode_rows, filled.size, column, columns, first, counts, order)
    assert message(fast) == message(slow)
    found = np.empty_like(column)
    reader(fast).run(decode_rows, found, columns, first, counts, order)
    assert np.array_equal(found, column)
    counts[:2] += 1, -1
    with pytest.raises(WireError, match="stream"):
        reader(fast).run(decode_rows, found, columns, first, counts, order)


@pytest.mark.parametrize("positions", [[3, 3], [3, 2], [-1, 2], [2, 12]])
def test_positions_that_do_not_ascend_are_not_written(positions: list[int]) -> None:
    with pytest.raises(WireError, match="ascend"):
        put_positions(Sink(), np.array(positions, dtype=np.int64), [(3, 4)])


def test_blocks_are_the_parameters_a_part_covers() -> None:
    shapes = ((3, 4), (3,), (2, 2, 5))
    assert blocks_of(shapes, 0, 35) == ((3, 4), (1, 3), (2, 10))
    assert blocks_of(shapes, 12, 35) == ((1, 3), (2, 10))
    assert blocks_of(shapes, 5, 17) == ((1, 7), (1, 3), (1, 2))  # pieces of a matrix have no rows
    assert blocks_of(((0, 4), (3,)), 0, 3) == ((1, 3),)


# ---------------------------------------------------------------------- patterns


def test_ranks_by_hand() -> None:
    """All subsets of 3 of 7: each rank once, and {1, 3, 4} = C(1,1) + C(3,2) + C(4,3) = 1 + 3 + 4."""
    assert rank([1, 3, 4]) == 8
    assert sorted(rank(list(chosen)) for chosen in combinations(range(7), 3)) == list(range(35))
    assert [unrank(rank(list(c)), 7, 3) for c in combinations(range(7), 3)] == [
        list(c) for c in combinations(range(7), 3)
    ]


@given(st.integers(1, 600), st.floats(0, 1), SEEDS)
def test_any_pattern_comes_back_in_its_bits(rows: int, share: float, seed: int) -> None:
    """The smaller of packed labels and the number of rows with ceil(log2 C(rows, held)) bits, in whole bytes."""
    pattern = np.random.default_rng(seed).random(rows) < share
    sink = Sink()
    mode = put_pattern(sink, pattern)
    source = reader(sink)
    assert np.array_equal(get_pattern(source, rows, mode), pattern)
    source.finish()
    held = int(pattern.sum())
    counted = len(varint(held)) + -(-(comb(rows, held) - 1).bit_length() // 8)
    assert len(message(sink)) == min(counted, -(-rows // 8))


@pytest.mark.parametrize("share", [0.001, 0.2, 0.5, 0.8])
def test_a_pattern_of_very_many_rows(share: float) -> None:
    """Within 1 % of log2 C(rows, held), or packed, and 8 bytes for the count and the ends."""
    pattern = np.random.default_rng(2).random(20_000) < share
    sink = Sink()
    mode = put_pattern(sink, pattern)
    assert np.array_equal(get_pattern(reader(sink), 20_000, mode), pattern)
    assert mode == (PACKED if share == 0.5 else COUNTED)
    assert len(message(sink)) * 8 <= min(1.01 * log2_choices(20_000, int(pattern.sum())) + 64, 20_000)


# ---------------------------------------------------------------------- values, levels, signs


@given(st.integers(0, 300), st.sampled_from([0.0, 0.1, 30.0]), SEEDS)
def test_floats_come_back_bit_for_bit(count: int, spread: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    wide = rng.choice([-1, 1], count) * 2.0 ** rng.normal(-8, spread, count)
    values = np.where(np.abs(wide) > 1e38, -0.0, wide).astype(np.float32)
    sink = Sink()
    coded = put_floats(sink, values)
    source = reader(sink)
    assert get_floats(source, count, coded, "values").tobytes() == values.tobytes()
    source.finish()


def test_exponents_are_entropy_coded() -> None:
    """Of values within a factor of 4 the exponent takes at most 1.6 bits instead of 8."""
    values = np.random.default_rng(3).uniform(1, 4, 800).astype(np.float32)
    sink = Sink()
    assert put_floats(sink, values)
    assert len(message(sink)) < 800 * (24 + 1) / 8 + 8


def test_an_infinite_exponent_is_refused() -> None:
    for exponents in (b"\x05\xff", b"\x05\x04"):
        with pytest.raises(WireError, match="impossible exponents"):
            get_floats(Source(memoryview(exponents + bytes(30))), 4, True, "values")


@given(st.integers(0, 300), st.sampled_from([1, 7, 127, 128, 32767]), st.floats(0, 1), SEEDS)
def test_levels_come_back(count: int, steps: int, spread: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    levels = np.clip(np.rint(rng.normal(0, 1 + steps * spread, count)), -steps, steps).astype(np.int16)
    sink = Sink()
    coded = put_levels(sink, levels, steps)
    source = reader(sink)
    assert np.array_equal(get_levels(source, count, steps, coded), levels)
    source.finish()
    assert len(message(sink)) <= count * (1 if steps <= 127 else 2)


def test_levels_take_their_entropy() -> None:
    levels = np.rint(np.random.default_rng(4).normal(0, 1.5, 20_000)).astype(np.int16)
    sink = Sink()
    assert put_levels(sink, levels, 15)
    entropy = entropy_bits(np.unique(levels, return_counts=True)[1])
    assert len(message(sink)) * 8 < 1.01 * entropy


def test_entropy_by_hand() -> None:
    assert entropy_bits([2, 2, 4, 0]) == 2 * 2 + 2 * 2 + 4 * 1
    assert entropy_bits([7]) == entropy_bits([]) == 0
    assert entropy_bits([1, 3]) == pytest.approx(2 + 3 * log2(4 / 3))


@given(st.integers(0, 500), st.floats(0, 1), SEEDS)
def test_bits_come_back(size: int, share: float, seed: int) -> None:
    bits = np.random.default_rng(seed).random(size) < share
    sink = Sink()
    coded = put_bits(sink, bits)
    source = reader(sink)
    assert np.array_equal(get_bits(source, size, coded, "signs"), bits)
    source.finish()
    assert len(message(sink)) <= -(-size // 8)


@pytest.mark.parametrize(
    ("counts", "reason"),
    [([5], "not within"), ([4], "does not occur"), ([1, 4], "not within"), ([1], "as often as was announced")],
)
def test_histograms_that_do_not_fit(counts: list[int], reason: str) -> None:
    """Four symbols 0 are read with a histogram that says otherwise."""
    data = b"".join(map(varint, counts))
    source = Source(memoryview(data))
    source.split(0)  # a stream of zeros: the first symbol, always
    with pytest.raises(WireError, match=reason):
        get_symbols(source, 4, len(counts) + 1, "symbols")
