"""Multiples of a step as bytes: exact round trips, as short as an ideal adaptive code, and what is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbiad.arrays import FloatArray, IntArray
from fedbiad.coding.grids import cell_numbers, cell_places, class_sizes, levels_fit
from fedbiad.coding.lengths import length, varint_bits
from fedbiad.coding.magnitudes import KINDS, histograms, magnitude_bits, read_magnitudes, write_magnitudes
from fedbiad.coding.multiples import get_multiples, multiples_bits, put_multiples
from fedbiad.coding.page import Page
from fedbiad.coding.positions import Blocks
from fedbiad.coding.signs import CONTEXTS, read_signs, tell_signs, write_signs
from fedbiad.coding.sink import Sink, varint
from fedbiad.coding.source import Source
from fedbiad.coding.survey import BY_COLUMNS, BY_ROWS, BY_SIGNS, survey
from fedbiad.coding.values import put_symbols
from fedbiad.errors import WireError
from fedbiad.payloads import Multiples

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


def on_page(function: Callable[..., Any]) -> Callable[..., Any]:
    """A writer or reader of part of a message, as a sink or source calls it."""
    return lambda coder, words, plain, *arguments: function(Page(coder, words, plain), *arguments)


def multiples_of(values: FloatArray, step: float = 0.5) -> Multiples:
    """The part that holds these whole numbers."""
    whole = np.asarray(values).astype(np.int32).ravel()
    where = np.flatnonzero(whole)
    return Multiples(len(whole), np.float32(step), where, whole[where])


def sent_bytes(part: Multiples, blocks: Blocks) -> int:
    """Write and read a part; the bytes it took."""
    sink = Sink()
    put_multiples(sink, part, blocks)
    source = reader(sink)
    got = get_multiples(source, part.size, blocks)
    source.finish()
    assert got.positions.tolist() == part.positions.tolist()
    assert got.multiples.tolist() == part.multiples.tolist()
    assert (got.step, got.size) == (part.step, part.size)
    assert (got.positions.dtype, got.multiples.dtype) == (np.dtype(np.int64), np.dtype(np.int32))
    assert got.values().tobytes() == part.values().tobytes()
    return len(message(sink))


def outer(rng: np.random.Generator, rows: int, columns: int, density: float) -> FloatArray:
    """Changes that are one number a row times one a column, and noise, rounded at random."""
    exact = np.outer(rng.standard_normal(rows) ** 3, rng.standard_normal(columns)) + rng.normal(0, 0.1, (rows, columns))
    exact *= density / np.abs(exact).mean()
    sizes = np.abs(exact)
    return np.asarray(np.sign(exact) * (np.floor(sizes) + (rng.random(sizes.shape) < sizes % 1)))


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40)), min_size=1, max_size=4),
    st.sampled_from([0.0, 0.02, 0.3, 2.0, 3000.0]),
    SEEDS,
)
@settings(deadline=None)
def test_any_multiples_come_back(blocks: list[tuple[int, int]], density: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = np.concatenate([outer(rng, rows, columns, density).ravel() for rows, columns in blocks])
    sent_bytes(multiples_of(values.clip(-32767, 32767)), blocks)


@pytest.mark.parametrize("values", [[0] * 6, [1] * 6, [-1] * 6, [32767, -32767, 0, 0, 0, 1], [0, 0, 0, 0, 0, 17]])
@pytest.mark.parametrize("blocks", [[(2, 3)], [(6, 1)], [(1, 6)], [(1, 1), (1, 5)], [(2, 2), (1, 2)]])
def test_odd_ones_come_back(values: list[int], blocks: list[tuple[int, int]]) -> None:
    sent_bytes(multiples_of(np.array(values)), blocks)


def test_values_by_hand() -> None:
    part = Multiples(5, np.float32(0.25), np.array([1, 4]), np.array([-3, 1], dtype=np.int32))
    assert part.values().tolist() == [0, -0.75, 0, 0, 0.25]
    assert part.paper_bits == 2 * 65 + 32 + 32  # one of the two has more than one step


# ---------------------------------------------------------------------- length


def ideal_bits(part: Multiples, blocks: Blocks) -> float:
    """An adaptive code without tables and ends: each cell by those of its row and column before (Krichevsky-Trofimov),
    each sign by the row's before, each size by the sizes before; independent of the code under test."""
    full, start, bits = np.zeros(part.size, dtype=np.int64), 0, 0.0
    full[part.positions] = part.multiples
    larger = [0.5, 0.5]
    for rows, columns in blocks:
        block = full[start : start + rows * columns].reshape(rows, columns)
        start += rows * columns
        of_column, seen = np.full(columns, 0.5), 1.0
        for line in block:
            hits = total = 0.0
            signs = [0.5, 0.5]
            mean = of_column.sum() / columns / seen
            for j, value in enumerate(line.tolist()):
                lift = (of_column[j] + 2 * mean) / (seen + 2) / mean
                chance = min(max((hits + 4 * mean) / (total + 4) * lift, 1e-6), 1 - 1e-6)
                bits -= np.log2(chance if value else 1 - chance)
                hits, total = hits + (value != 0), total + lift
                if value:
                    bits -= np.log2(signs[value > 0] / sum(signs))
                    signs[value > 0] += 1
                    for size in range(1, abs(value) + 1):
                        bits -= np.log2(larger[size < abs(value)] / sum(larger))
                        larger[size < abs(value)] += 1
            of_column += line != 0
            seen += 1
    return bits


@pytest.mark.parametrize(("density", "rows", "columns"), [(0.02, 250, 300), (0.1, 60, 300), (0.5, 60, 100)])
def test_within_five_percent_of_an_ideal_adaptive_code(density: float, rows: int, columns: int) -> None:
    rng = np.random.default_rng(0)
    blocks = [(rows, columns), (1, rows)]
    part = multiples_of(np.concatenate([outer(rng, rows, columns, density).ravel(), rng.integers(-1, 2, rows)]))
    taken = 8 * sent_bytes(part, blocks)
    assert taken < 1.05 * ideal_bits(part, blocks)
    assert multiples_bits(part, blocks) == pytest.approx(taken, rel=0.003, abs=24)


def test_without_structure_within_one_percent_of_the_entropy() -> None:
    rng = np.random.default_rng(1)
    values = rng.choice([-1, 0, 1], 100_000, p=[0.01, 0.98, 0.01])
    entropy = -(0.02 * np.log2(0.01) + 0.98 * np.log2(0.98)) * 100_000
    assert 8 * sent_bytes(multiples_of(values), [(250, 400)]) < 1.01 * entropy


def test_every_model_earns_its_bytes() -> None:
    """Rows, columns and signs of an outer product, each left out by a shape or an order that hides it."""
    rng = np.random.default_rng(2)
    values = outer(rng, 300, 300, 0.05)
    positions = np.flatnonzero(values)
    found = survey(positions, values.ravel()[positions] > 0, 300, 300)
    assert found[0] == BY_ROWS | BY_COLUMNS | BY_SIGNS
    whole = sent_bytes(multiples_of(values), [(300, 300)])
    coin = np.abs(values) * rng.choice([-1, 1], values.shape)
    assert whole < 0.93 * sent_bytes(multiples_of(coin), [(300, 300)])
    columns_mixed = rng.permuted(values, axis=1)
    assert whole < 0.9 * sent_bytes(multiples_of(columns_mixed), [(300, 300)])
    all_mixed = rng.permuted(columns_mixed, axis=0)
    assert sent_bytes(multiples_of(columns_mixed), [(300, 300)]) < 0.9 * sent_bytes(
        multiples_of(all_mixed), [(300, 300)]
    )


@given(st.lists(st.integers(1, 40000), max_size=60), SEEDS)
def test_magnitudes_come_back(sizes: list[int], seed: int) -> None:
    kinds = np.random.default_rng(seed).integers(0, 5, len(sizes)).astype(np.uint8)
    magnitudes = np.array([min(size, 32767) if seed % 2 else size % 20 + 1 for size in sizes], dtype=np.int32)
    sink = Sink()
    signed = magnitudes * np.int32(1 - (seed & 2))
    counts = histograms(signed, kinds)
    sink.write(on_page(write_magnitudes), 20_000, 2 * len(sizes), signed, kinds, counts)
    source, again = reader(sink), np.empty(len(sizes), dtype=np.int32)
    source.read(on_page(read_magnitudes), kinds, np.bincount(kinds, minlength=KINDS), again)
    assert again.tolist() == magnitudes.tolist()
    source.finish()
    assert len(message(sink)) <= magnitude_bits(counts) / 8 + 2 + len(sizes) / 50


# ---------------------------------------------------------------------- grids and signs


def test_lengths_in_bits() -> None:
    for count in (0, 1, 2, 3, 4, 7, 8, 127, 128, 1000, 2**14 - 1, 2**14, 2**39):
        assert length(count) == count.bit_length()
        assert varint_bits(count) == 8 * len(varint(count))


def test_cells_by_hand() -> None:
    """Rows of levels 1, 0, 2 and columns of levels 2, 1: classes of 1 + 1, of 1 + 2 and 2 + 1, of 2 + 2."""
    rows, columns = np.array([1, 0, 2]), np.array([2, 1])
    assert class_sizes(rows, columns).tolist() == [1, 2, 1]
    positions = np.array([0, 1, 4, 5])  # (0, 0) and (2, 1) share class 1, and of these row level 1 comes first
    hits, numbers = cell_numbers(positions, 2, rows, columns, 3)
    assert hits.tolist() == [1, 2, 1]
    assert numbers.tolist() == [0, 0, 1, 0]
    again, classes = cell_places(numbers, hits, rows, columns)
    assert again.tolist() == positions.tolist()
    assert classes.tolist() == [1, 0, 2, 1]


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=12), st.lists(st.integers(0, 5), min_size=1, max_size=12),
    st.floats(0, 1), SEEDS,
)  # fmt: skip
def test_every_cell_has_one_number(rows: list[int], columns: list[int], share: float, seed: int) -> None:
    """Against cells listed one by one: by class, by the level of the row, then row by row."""
    cells = [(i, j) for i, j in product(range(len(rows)), range(len(columns))) if rows[i] and columns[j]]
    if not cells:
        return
    listed = sorted(cells, key=lambda cell: (rows[cell[0]] + columns[cell[1]], rows[cell[0]], cell))
    totals = [rows[i] + columns[j] - 2 for i, j in listed]
    sizes = [totals.count(total) for total in range(max(rows) + max(columns) - 1)]
    row_levels, column_levels = np.array(rows), np.array(columns)
    assert class_sizes(row_levels, column_levels).tolist() == sizes
    chosen = np.random.default_rng(seed).random(len(listed)) < share
    entries = [n for n in range(len(listed)) if chosen[n]]
    positions = np.array(sorted(listed[n][0] * len(columns) + listed[n][1] for n in entries), dtype=np.int64)
    hits, numbers = cell_numbers(positions, len(columns), row_levels, column_levels, len(sizes))
    assert hits.tolist() == [sum(totals[n] == total for n in entries) for total in range(len(sizes))]
    assert numbers.tolist() == [n - totals.index(totals[n]) for n in entries]
    again, classes = cell_places(numbers, hits, row_levels, column_levels)
    assert np.array_equal(again, positions)
    of_cell = {i * len(columns) + j: total for (i, j), total in zip(listed, totals, strict=True)}
    assert classes.tolist() == [of_cell[position] for position in positions.tolist()]


def test_levels_must_fit() -> None:
    positions = np.array([0, 1, 5])  # of 2 x 3 cells: two entries and one; one each
    assert levels_fit(positions, np.array([2, 1]), np.array([1, 1, 1]), True)
    assert not levels_fit(positions, np.array([1, 1]), np.array([1, 1, 1]), True)
    assert not levels_fit(positions, np.array([2, 1]), np.array([1, 1, 2]), True)
    assert levels_fit(positions, np.array([2, 1]), np.array([1, 1, 2]), False)


@given(st.integers(1, 12), st.integers(1, 12), st.floats(0, 1), SEEDS)
def test_signs_come_back(rows: int, columns: int, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    row, column = np.nonzero(rng.random((rows, columns)) < share)
    signs = np.outer(rng.choice([-1, 1], rows), rng.choice([-1, 1], columns))[row, column]
    positive = (signs > 0) ^ (rng.random(len(row)) < 0.1)
    sink = Sink()
    sink.write(on_page(write_signs), 500, len(row), *tell_signs(row, column, positive, columns))
    source, again = reader(sink), np.empty(len(row), dtype=np.bool_)
    source.read(on_page(read_signs), row * columns + column, columns, again)
    assert again.tolist() == positive.tolist()
    source.finish()


def test_signs_tell_signs() -> None:
    """Of an outer product all but the first row's and each row's first are expected, the surer the later."""
    signs = np.outer([1, -1, -1, 1, 1, -1], [1, 1, -1, 1, -1, -1, 1, -1])
    row, column = (axis.ravel() for axis in np.indices(signs.shape))
    contexts, agrees = tell_signs(row, column, signs.ravel() > 0, 8)
    contexts, agrees = contexts.reshape(6, 8), agrees.reshape(6, 8)
    assert agrees[1:, 1:].all()
    assert (contexts[1:, 4:] >= 12).all()
    assert (contexts[0] < 3).all()


# ---------------------------------------------------------------------- refused

STEP = struct.pack("<f", 0.5)


def read(data: bytes, blocks: Blocks, coded: bytes = b"") -> Multiples:
    source = Source(memoryview(data + coded))
    source.split(len(coded))
    part = get_multiples(source, sum(rows * columns for rows, columns in blocks), blocks)
    source.finish()
    return part


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (STEP[:3], "truncated: a step"),
        (struct.pack("<f", np.nan) + b"\0", "NaN or infinite"),
        (struct.pack("<f", -1.0) + b"\0", "a step of -1.0"),
        (struct.pack("<f", 0.0) + bytes([12, 0, 0xFF, 0x0F, 0]), "a step of 0.0 for 12 entries"),
        (STEP + bytes([13]), "the number of entries is 13, not within 0 .. 12"),
        (STEP + varint(2**60), "the number of entries is"),
        (STEP + bytes([1]), "truncated: how a block is coded"),
        (STEP + bytes([1, 8]), "unknown way of coding a block 0x08"),
        (STEP + bytes([1, BY_COLUMNS]), "unknown way of coding a block 0x02"),
        (STEP + bytes([12, 0, 0xFF, 0x1F, 0]), "signs are followed by bits that mean nothing"),
        (STEP + bytes([12, 0, 0xFF]), "truncated: signs takes 2 bytes"),
        (STEP + bytes([12, 0, 0xFF, 0x0F, 27]), "the greatest magnitude is 27, not within 0 .. 26"),
        (STEP + bytes([1, BY_ROWS, 0]), "the greatest level is 0, not within 1"),
        (STEP + bytes([1, BY_ROWS, 41]), "the greatest level is 41, not within 1 .. 40"),
        (STEP + bytes([12, BY_SIGNS, *[0] * 2 * CONTEXTS]), "12 signs are missing"),
        (STEP + bytes([12, BY_SIGNS, 12, *[0] * (2 * CONTEXTS - 1)]), "signs do not fit their contexts"),
        (STEP + bytes([12, 0, 0xFF, 0x0F, 0, 0]), "1 bytes too many"),
    ],
)
def test_what_cannot_be(data: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        read(data, [(3, 4)])


@pytest.mark.parametrize(
    ("entries", "reason"),
    [(8, "a row or column has more or fewer entries than its level says"), (9, "9 entries in 8 cells")],
)
def test_levels_that_do_not_fit(entries: int, reason: str) -> None:
    """Two of three rows are said to have one entry each."""
    sink = Sink()
    sink.put(STEP + bytes([entries, BY_ROWS, 1]))
    put_symbols(sink, np.array([1, 0, 1]), [1, 2])
    with pytest.raises(WireError, match=reason):
        get_multiples(reader(sink), 12, [(3, 4)])


def test_infinite_values_are_refused() -> None:
    for steps, fits in ((1, True), (2, False)):
        sink = Sink()
        sink.put(struct.pack("<f", 3e38) + bytes([1, 0, 1]))
        multiples, kinds = np.array([steps], dtype=np.int32), np.ones(1, dtype=np.uint8)
        sink.write(on_page(write_magnitudes), 100, 2, multiples, kinds, histograms(multiples, kinds))
        if fits:
            assert get_multiples(reader(sink), 1, [(1, 1)]).values().tolist() == [np.float32(3e38)]
        else:
            with pytest.raises(WireError, match="infinite values: 2 steps of 3"):
                get_multiples(reader(sink), 1, [(1, 1)])


def test_a_short_message_cannot_name_many_entries() -> None:
    """128 entries a byte at most: more are refused before they take memory."""
    with pytest.raises(WireError, match=r"the number of entries is 1000000, not within 0 .. \d{3}$"):
        read(STEP + varint(1_000_000) + b"\0", [(1000, 1000)])


@pytest.mark.parametrize(
    ("step", "positions", "multiples", "reason"),
    [
        (0.5, [1], [1, 1], "2 multiples for 1 positions"),
        (0.5, [1], [0], "a multiple of 0 steps"),
        (0.5, [1], [32768], "32768 steps of 0.5, a message holds 32767"),
        (np.inf, [], [], "a step of inf"),
        (-0.5, [1], [1], "a step of -0.5"),
        (3e38, [1], [2], "infinite values"),
    ],
)
def test_what_does_not_fit_is_not_written(step: float, positions: list[int], multiples: list[int], reason: str) -> None:
    where: IntArray = np.array(positions, dtype=np.int64)
    with pytest.raises(WireError, match=reason):
        put_multiples(Sink(), Multiples(4, np.float32(step), where, np.array(multiples, dtype=np.int32)), [(2, 2)])
