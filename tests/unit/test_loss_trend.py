"""The loss gap and when it is checked, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedbiad.loss_trend import checks, loss_gap


def test_checks_by_algorithm_1() -> None:
    # v > tau and v % tau = 0: with tau = 3 not at 0 and 3, first at 6 = 2 tau
    for tau in (1, 2, 3, 7):
        for V in range(20):
            assert list(checks(V, tau)) == [v for v in range(V) if v > tau and v % tau == 0]
    assert list(checks(14, 3)) == [6, 9, 12]


def test_gap_by_hand() -> None:
    # tau = 2, v = 5: mean of iterations 4, 5 minus mean of 2, 3; what comes after v does not count
    losses = np.array(
        [
            [9.0, 9.0, 1.0, 2.0, 4.0, 5.0, 99.0],  # 4.5 - 1.5
            [0.0, 0.0, 3.0, 5.0, 2.0, 1.0, -99.0],  # 1.5 - 4
            [7.0, 0.0, 1.0, 3.0, 2.0, 2.0, 0.0],  # 2 - 2
        ]
    )
    assert loss_gap(losses, 5, 2).tolist() == [3.0, -2.5, 0.0]
    # v = 4 = 2 tau, the first that exists: iterations 3, 4 against 1, 2; iteration 0 is in neither
    assert loss_gap(losses, 4, 2).tolist() == [3.0 - 5.0, 3.5 - 1.5, 2.5 - 0.5]


def test_gap_needs_two_windows() -> None:
    with pytest.raises(ValueError, match=r"v >= 2 tau: v = 5, tau = 3"):
        loss_gap(np.zeros((1, 20)), 5, 3)


def test_gap_against_a_slow_version() -> None:
    losses = np.random.default_rng(0).normal(size=(4, 30))
    for tau in (1, 3, 7):
        for v in range(2 * tau, 30):
            for client in range(4):
                recent = sum(losses[client, i] for i in range(v - tau + 1, v + 1))
                before = sum(losses[client, i] for i in range(v - 2 * tau + 1, v - tau + 1))
                assert loss_gap(losses, v, tau)[client] == pytest.approx((recent - before) / tau, abs=1e-12)
