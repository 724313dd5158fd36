"""Scores, ranks, the quantile and the pattern of stage two, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedbiad import importance
from fedbiad.models import MLP
from fedbiad.rows import Layout, RowGroup, Slice

FOUR = Layout({"w": (4,)}, (RowGroup("g", 4, (Slice("w", 0),)),))
TWO_GROUPS = Layout({"w": (4,), "v": (3,)}, (RowGroup("a", 4, (Slice("w", 0),)), RowGroup("b", 3, (Slice("v", 0),))))


def test_score_update_by_hand() -> None:
    # Rows 0 and 1 are held at the check, rows 1 and 2 afterwards.
    held, following = np.array([True, True, False, False]), np.array([False, True, True, False])
    scores = np.array([5.0, 1.0, 2.0, 0.0])
    block = np.stack([scores] * 3)
    gap = np.array([-0.1, 0.0, 0.1])
    updated = importance.update_scores(block, np.stack([held] * 3), gap, np.stack([following] * 3))
    # gap <= 0: every row held at v gains 1; gap > 0: it gains e_j = beta_j^{v+1}; rows not held at v gain nothing
    assert updated.tolist() == [[6.0, 2.0, 2.0, 0.0], [6.0, 2.0, 2.0, 0.0], [5.0, 2.0, 2.0, 0.0]]
    assert block.tolist() == [scores.tolist()] * 3


def test_ranks_by_hand() -> None:
    evidence = np.array([[7.0, 1.0, 99.0, 3.0, 2.0, 2.0, 5.0]])
    held = np.array([[True, True, False, True, True, True, True]])
    # Group a: held 7, 1, 3 -> ranks 3, 1, 2 -> (rank - 1/2) / 3; group b: 2, 2, 5 -> the tie shares rank 1.5
    expected = [2.5 / 3, 0.5 / 3, 0.0, 1.5 / 3, 1.0 / 3, 1.0 / 3, 2.5 / 3]
    assert importance.evidence_ranks(TWO_GROUPS, evidence, held)[0].tolist() == pytest.approx(expected)


def test_ranks_have_mean_one_half_and_none_held_is_no_error() -> None:
    stream = np.random.default_rng(0)
    evidence = stream.integers(0, 4, (5, 7)).astype(np.float64)
    held = stream.random((5, 7)) < 0.7
    held[0, 4:] = False
    ranks = importance.evidence_ranks(TWO_GROUPS, evidence, held)
    assert (ranks[~held] == 0).all()
    for rows in TWO_GROUPS.ranges.values():
        for client in range(5):
            own = held[client, rows]
            if own.any():
                assert ranks[client, rows][own].mean() == pytest.approx(0.5)


def test_ranks_against_a_slow_version() -> None:
    layout = MLP(3, (6, 5), 2).layout("units")
    stream = np.random.default_rng(1)
    evidence = stream.integers(0, 5, (4, 11)).astype(np.float64)
    held = stream.random((4, 11)) < 0.6
    ranks = importance.evidence_ranks(layout, evidence, held)
    for client in range(4):
        for rows in ([*range(6)], [*range(6, 11)]):
            rivals = [evidence[client, j] for j in rows if held[client, j]]
            for j in rows:
                below = sum(value < evidence[client, j] for value in rivals)
                equal = sum(value == evidence[client, j] for value in rivals)
                expected = (below + equal / 2) / len(rivals) if held[client, j] else 0.0
                assert ranks[client, j] == pytest.approx(expected)


def test_mean_score_of_a_row_never_held_is_neutral() -> None:
    scores, holds = np.array([[1.8, 0.3, 0.0]]), np.array([[2, 3, 0]])
    assert importance.mean_scores(scores, holds)[0].tolist() == pytest.approx([0.9, 0.1, 0.5])


def test_threshold_is_the_quantile() -> None:
    # sorted 0, 1, 2, 4, 8: the p-quantile is the value at place 4 p, between two places linearly
    scores = np.array([4.0, 0.0, 8.0, 1.0, 2.0])
    assert importance.threshold(scores, 0.5).tolist() == [2.0]
    assert importance.threshold(scores, 0.625) == pytest.approx(3.0)  # place 2.5, between 2 and 4
    assert importance.threshold(scores, 0.0).tolist() == [0.0]


def test_above_threshold_by_hand() -> None:
    scores = np.array([4.0, 0.0, 8.0, 1.0])
    held = importance.above_threshold(FOUR, scores, 0.5, np.random.default_rng(0).random(4), "global")
    assert held.tolist() == [True, False, True, False]  # the median is 2.5


def test_rows_that_tie_with_the_quantile_are_dropped() -> None:
    scores = np.array([2.0, 2.0, 2.0, 3.0])  # the median is 2: only one row is strictly above, not two
    held = importance.above_threshold(FOUR, scores, 0.5, np.random.default_rng(0).random(4), "global")
    assert held.tolist() == [False, False, False, True]


def test_no_row_above_the_quantile_draws_at_random() -> None:
    luck = np.random.default_rng(0).random((40, 4))
    drawn = importance.above_threshold(FOUR, np.zeros((40, 4)), 0.5, luck, "global")
    assert (drawn.sum(1) == 2).all()
    assert drawn.any(0).all()
    # the highest score shared by most rows is its own quantile
    tied = importance.above_threshold(FOUR, np.array([0.0, 1.0, 1.0, 1.0]), 0.5, luck[0], "global")
    assert int(tied.sum()) == 2
