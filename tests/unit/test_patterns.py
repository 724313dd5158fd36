"""Patterns: exact counts, uniform draws, swaps and ties."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from fedbiad import patterns
from fedbiad.arrays import FloatArray
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
    kept = before.copy()
    after = patterns.swap(layout, before, fraction, luck_for(layout, stream, 20))
    assert np.array_equal(before, kept)
    for rows, count in zip(layout.ranges.values(), swapped, strict=True):
        assert ((before[:, rows] & ~after[:, rows]).sum(1) == count).all()
        assert ((~before[:, rows] & after[:, rows]).sum(1) == count).all()


def test_swap_never_takes_more_than_there_is() -> None:
    layout, luck = groups_of(10), np.random.default_rng(4).random(10)
    all_held = np.ones(10, dtype=np.bool_)
    assert patterns.swap(layout, all_held, 0.1, luck).all()
    nine = all_held.copy()
    nine[3] = False
    after = patterns.swap(layout, nine, 1.0, luck)  # nine wanted, one can come in
    assert after[3]
    assert int(after.sum()) == 9


def test_swap_over_all_rows_together() -> None:
    layout, stream = groups_of(30, 10), np.random.default_rng(5)
    before = patterns.draw(layout, 0.5, luck_for(layout, stream, 20), "global")
    after = patterns.swap(layout, before, 0.1, luck_for(layout, stream, 20), "global")
    assert ((before & ~after).sum(1) == 2).all()
    assert ((~before & after).sum(1) == 2).all()
    assert (before[:, :30].sum(1) != after[:, :30].sum(1)).any()


def test_clients_that_hold_different_numbers_of_rows_swap_their_own_share() -> None:
    layout, luck = groups_of(30), np.random.default_rng(7).random((3, 30))
    before = np.arange(30) < np.array([[20], [4], [30]])
    after = patterns.swap(layout, before, 0.1, luck)
    assert (before & ~after).sum(1).tolist() == [2, 1, 0]
    assert (after.sum(1) == [20, 4, 30]).all()
    for own, own_luck, found in zip(before, luck, after, strict=True):
        assert np.array_equal(patterns.swap(layout, own, 0.1, own_luck), found)  # a client alone


def test_who_has_most_luck_by_hand() -> None:
    layout, luck = groups_of(4), np.array([0.3, 0.9, 0.1, 0.7])
    assert patterns.draw(layout, 0.5, luck).tolist() == [False, True, False, True]
    assert patterns.top(layout, np.array([1.0, 0.0, 1.0, 1.0]), 0.5, luck).tolist() == [True, False, False, True]
    held = np.array([True, True, False, False])
    # the dropped row number int(0.3 x 2) = 0 comes, the held row number int(0.9 x 2) = 1 goes
    assert patterns.swap(layout, held, 0.5, luck).tolist() == [True, False, True, False]
    assert patterns.draw(layout, 0.0, luck).all()


def test_swaps_are_uniform() -> None:
    """Of 4 held and 4 dropped rows each leaves or comes equally often; fails once in 10^4 for a random seed."""
    layout, stream = groups_of(8), np.random.default_rng(6)
    before = np.arange(8) < 4
    after = patterns.swap(layout, np.tile(before, (4000, 1)), 0.25, luck_for(layout, stream, 4000))
    assert chi_square((~after[:, :4]).sum(0).tolist()) < 21.11  # 3 degrees of freedom, 1 - 1e-4
    assert chi_square(after[:, 4:].sum(0).tolist()) < 21.11
    after = patterns.swap(layout, np.tile(before, (4000, 1)), 0.5, luck_for(layout, stream, 4000))
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
