"""Patterns: exact counts, uniform draws, swaps and ties."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from fedbiad import patterns
from fedbiad.arrays import FloatArray, IntArray
from fedbiad.cohort import Cohort
from fedbiad.models import MLP
from fedbiad.patterns import kept_count
from fedbiad.rows import Layout, RowGroup, Slice


def groups_of(*sizes: int) -> Layout:
    """Row groups of the given sizes, one vector each."""
    return Layout(
        {f"w{i}": (size,) for i, size in enumerate(sizes)},
        tuple(RowGroup(f"g{i}", size, (Slice(f"w{i}", 0),)) for i, size in enumerate(sizes)),
    )


def luck_for(layout: Layout, stream: np.random.Generator, clients: int) -> FloatArray:
    return stream.random((clients, layout.num_rows))


def chi_square(counts: list[int]) -> float:
    """sum (observed - expected)^2 / expected for equally likely outcomes."""
    expected = sum(counts) / len(counts)
    return sum((count - expected) ** 2 for count in counts) / expected


@pytest.mark.parametrize(
    ("rate", "rows", "kept"),
    [
        (0.2, 128, 102),  # 102.4
        (0.5, 5, 3),  # 2.5: halves go up
        (0.5, 10, 5),
        (0.25, 6, 5),  # 4.5
        (0.2, 3, 2),  # 2.4
        (0.0, 7, 7),
        (0.9, 4, 1),  # 0.4, but at least one
        (0.99, 1, 1),
        (0.3, 45, 32),  # 31.5, though 1 - 0.3 is a hair below 0.7 in binary
    ],
)
def test_kept_count_by_hand(rate: float, rows: int, kept: int) -> None:
    assert kept_count(rows, rate) == kept


def test_draws_hold_the_exact_count_of_every_group() -> None:
    layout, stream = groups_of(10, 5, 128), np.random.default_rng(0)
    for pattern in patterns.draw(layout, 0.2, luck_for(layout, stream, 50)):
        # 8, 4 and 102.4
        assert [int(pattern[rows].sum()) for rows in layout.ranges.values()] == [8, 4, 102]


def test_global_scope_fixes_only_the_total() -> None:
    layout, stream = groups_of(10, 5, 128), np.random.default_rng(0)
    drawn = list(patterns.draw(layout, 0.2, luck_for(layout, stream, 50), "global"))
    assert {int(pattern.sum()) for pattern in drawn} == {114}  # 0.8 x 143 = 114.4
    assert len({int(pattern[:10].sum()) for pattern in drawn}) > 1
    assert patterns.scopes(layout, "global") == [slice(0, 143)]
    assert patterns.scopes(layout, "group") == [slice(0, 10), slice(10, 15), slice(15, 143)]


def test_draws_are_uniform() -> None:
    """All 6 patterns of 2 out of 4 rows equally often; for a random seed this fails once in 10^4."""
    layout, stream = groups_of(4), np.random.default_rng(1)
    counts = Counter(map(tuple, patterns.draw(layout, 0.5, luck_for(layout, stream, 6000)).tolist()))
    assert len(counts) == 6
    assert chi_square(list(counts.values())) < 25.75  # 5 degrees of freedom, 1 - 1e-4


def test_top_takes_the_highest_scores_of_each_group() -> None:
    layout, luck = groups_of(4, 3), np.random.default_rng(0).random(7)
    score = np.array([0.1, 0.9, 0.5, 0.7, 3.0, 1.0, 2.0])
    top = patterns.top(layout, score, 0.5, luck)  # 2 of 4, and 1.5 -> 2 of 3
    assert top.tolist() == [False, True, False, True, True, False, True]
    top = patterns.top(layout, score, 0.5, luck, "global")  # 3.5 -> 4 of 7
    assert top.tolist() == [False, True, False, False, True, True, True]


def test_ties_are_broken_at_random() -> None:
    """Row 0 is always held, one of the three that tie for second place equally often (fails once in 10^4)."""
    layout, stream = groups_of(5), np.random.default_rng(2)
    score = np.array([3.0, 1.0, 1.0, 1.0, 0.0])
    held = patterns.top(layout, np.tile(score, (3000, 1)), 0.6, luck_for(layout, stream, 3000))
    assert held[:, 0].all()
    assert not held[:, 4].any()
    assert (held.sum(1) == 2).all()
    assert chi_square(held[:, 1:4].sum(0).tolist()) < 18.43  # 2 degrees of freedom, 1 - 1e-4


def orders_for(layout: Layout, stream: np.random.Generator, clients: int) -> IntArray:
    return stream.permuted(np.tile(np.arange(layout.num_rows), (clients, 1)), axis=1)


def test_lines_by_hand() -> None:
    """Held 0, 2, 5 and, in the second group, 6; in this order 5, 0, 2 leave and 4, 1, 3 come, of the others 7, 8."""
    layout, held = groups_of(6, 3), np.array([True, False, True, False, False, True, True, False, False])
    before = patterns.line_up(layout, held, np.array([7, 4, 5, 1, 0, 6, 2, 3, 8]))
    assert before.tolist() == [1, 1, 2, 2, 0, 0, 0, 0, 1]
    # two thirds of three and of one: 5, 0 and 6 go, 4, 1 and 7 come
    after, lines = patterns.swap(layout, held, before, 0.6)
    assert np.flatnonzero(after).tolist() == [1, 2, 4, 7]
    assert lines.tolist() == [2, 2, 0, 0, 1, 1, 1, 0, 0]  # held: 2, 4, 1 and 7; the others: 3, 5, 0 and 8, 6
    after, lines = patterns.swap(layout, after, lines, 0.6)
    assert np.flatnonzero(after).tolist() == [1, 3, 5, 8]
    assert lines.tolist() == [0, 0, 1, 1, 2, 2, 0, 1, 0]  # held: 1, 3, 5 and 8; the others: 0, 2, 4 and 6, 7
    over_all = patterns.line_up(layout, held, np.array([7, 4, 5, 1, 0, 6, 2, 3, 8]), "global")
    assert over_all.tolist() == [1, 2, 3, 3, 1, 0, 2, 0, 4]


@pytest.mark.parametrize(
    ("fraction", "swapped"),
    [
        (0.1, [2, 1]),  # of 15 held 1.5 -> 2; of 2 held 0.2 -> at least one
        (0.3, [5, 1]),  # 4.5 -> 5, 0.6 -> 1
        (1.0, [15, 2]),
    ],
)
def test_swap_exchanges_the_share_of_every_group(fraction: float, swapped: list[int]) -> None:
    layout, stream = groups_of(30, 4), np.random.default_rng(3)
    before = patterns.draw(layout, 0.5, luck_for(layout, stream, 20))
    lines = patterns.line_up(layout, before, orders_for(layout, stream, 20))
    kept, stood = before.copy(), lines.copy()
    after, _ = patterns.swap(layout, before, lines, fraction)
    assert np.array_equal(before, kept)
    assert np.array_equal(lines, stood)
    for rows, count in zip(layout.ranges.values(), swapped, strict=True):
        assert ((before[:, rows] & ~after[:, rows]).sum(1) == count).all()
        assert ((~before[:, rows] & after[:, rows]).sum(1) == count).all()


def test_who_was_exchanged_comes_last_in_turn() -> None:
    """After 5 swaps of 3 of 15 held rows all have gone, and all others have come; after 10 all are back."""
    layout, stream = groups_of(30), np.random.default_rng(8)
    first = pattern = patterns.draw(layout, 0.5, luck_for(layout, stream, 20))
    lines = patterns.line_up(layout, pattern, orders_for(layout, stream, 20))
    for swaps in range(1, 11):
        pattern, lines = patterns.swap(layout, pattern, lines, 0.2)
        assert ((first ^ pattern).sum(1) == 2 * (3 * swaps if swaps <= 5 else 30 - 3 * swaps)).all()
        for held in (pattern, ~pattern):  # each line is one, whole
            assert np.array_equal(np.sort(lines[held].reshape(20, 15)), np.tile(np.arange(15), (20, 1)))


def test_swap_never_takes_more_than_there_is() -> None:
    layout, order = groups_of(10), np.random.default_rng(4).permutation(10)
    all_held = np.ones(10, dtype=np.bool_)
    assert patterns.swap(layout, all_held, patterns.line_up(layout, all_held, order), 0.1)[0].all()
    nine = all_held.copy()
    nine[3] = False
    after, _ = patterns.swap(layout, nine, patterns.line_up(layout, nine, order), 1.0)  # nine wanted, one can come in
    assert after[3]
    assert int(after.sum()) == 9


def test_swap_over_all_rows_together() -> None:
    layout, stream = groups_of(30, 10), np.random.default_rng(5)
    before = patterns.draw(layout, 0.5, luck_for(layout, stream, 20), "global")
    lines = patterns.line_up(layout, before, orders_for(layout, stream, 20), "global")
    after, _ = patterns.swap(layout, before, lines, 0.1, "global")
    assert ((before & ~after).sum(1) == 2).all()
    assert ((~before & after).sum(1) == 2).all()
    assert (before[:, :30].sum(1) != after[:, :30].sum(1)).any()


def test_clients_that_hold_different_numbers_of_rows_swap_their_own_share() -> None:
    layout = groups_of(30)
    orders, before = orders_for(layout, np.random.default_rng(7), 3), np.arange(30) < np.array([[20], [4], [30]])
    stood = patterns.line_up(layout, before, orders)
    after, lines = patterns.swap(layout, before, stood, 0.1)
    assert (before & ~after).sum(1).tolist() == [2, 1, 0]
    assert (after.sum(1) == [20, 4, 30]).all()
    for k in range(3):  # a client alone
        assert np.array_equal(patterns.line_up(layout, before[k], orders[k]), stood[k])
        alone = patterns.swap(layout, before[k], stood[k], 0.1)
        assert np.array_equal(alone[0], after[k])
        assert np.array_equal(alone[1], lines[k])


def test_who_has_most_luck_by_hand() -> None:
    layout, luck = groups_of(4), np.array([0.3, 0.9, 0.1, 0.7])
    assert patterns.draw(layout, 0.5, luck).tolist() == [False, True, False, True]
    assert patterns.top(layout, np.array([1.0, 0.0, 1.0, 1.0]), 0.5, luck).tolist() == [True, False, False, True]
    assert patterns.draw(layout, 0.0, luck).all()


def test_swaps_are_uniform() -> None:
    """Of 4 held and 4 dropped rows each leaves or comes equally often; fails once in 10^4 for a random seed."""
    layout, before = groups_of(8), np.tile(np.arange(8) < 4, (4000, 1))
    orders = Cohort(6, 1, tuple(range(4000))).order("resample", 8)
    lines = patterns.line_up(layout, before, orders)
    after, _ = patterns.swap(layout, before, lines, 0.25)
    assert chi_square((~after[:, :4]).sum(0).tolist()) < 21.11  # 3 degrees of freedom, 1 - 1e-4
    assert chi_square(after[:, 4:].sum(0).tolist()) < 21.11
    after, _ = patterns.swap(layout, before, lines, 0.5)
    for side in (after[:, :4], after[:, 4:]):  # each of the six pairs
        pairs, often = np.unique(side, axis=0, return_counts=True)
        assert len(pairs) == 6
        assert chi_square(often.tolist()) < 25.75  # 5 degrees of freedom


def test_a_model_layout() -> None:
    layout = MLP(784, (128,), 10).layout("units")
    assert int(patterns.draw(layout, 0.2, np.random.default_rng(7).random(128)).sum()) == 102


def test_weighted_draws_follow_their_weights() -> None:
    """Two of three rows of weights 1, 2, 3, drawn one after another: the row left out by hand.

    Left out is row 0 with 2/6 x 3/4 + 3/6 x 2/3 = 0.5833, row 1 with 1/6 x 3/5 + 3/6 x 1/3 = 0.2667, row 2 with 0.15.
    20,000 draws have a standard error of at most 0.0035; 0.014 is four of them (error rate below 1e-3).
    """
    layout = Layout({"w": (3, 1)}, (RowGroup("rows", 3, (Slice("w", 0),)),))
    stream = np.random.default_rng(5)
    weights = np.tile([1.0, 2.0, 3.0], (20_000, 1))
    drawn = patterns.weighted(layout, weights, 1 / 3, luck_for(layout, stream, 20_000))
    assert (drawn.sum(1) == 2).all()
    assert np.allclose((~drawn).mean(0), [0.5833, 0.2667, 0.15], atol=0.014)


def test_weightless_rows_come_last() -> None:
    layout = Layout({"w": (4, 1)}, (RowGroup("rows", 4, (Slice("w", 0),)),))
    weights = np.array([0.0, 1.0, 0.0, 1.0])
    for seed in range(20):
        assert (
            patterns.weighted(layout, weights, 0.5, np.random.default_rng(seed).random(4)).tolist() == [False, True] * 2
        )
