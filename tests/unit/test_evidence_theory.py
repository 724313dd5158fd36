"""What evidence coding promises, against numbers by hand, brute force and a thousand alternatives."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedbiad.theory import (
    added_variance,
    expected_count,
    inclusion_probabilities,
    least_rate,
    mean_variance,
    sampling_variance,
)

DELTA = np.array([0.5, -1.0, 0.0, 3.0, -0.25])


def test_counts_and_variances_by_hand() -> None:
    # in steps of 2: .25, .5, 0, 1.5, .125
    assert expected_count(DELTA, 2.0) == 0.25 + 0.5 + 1 + 0.125
    assert added_variance(DELTA, 2.0) == 4 * (0.25 * 0.75 + 0.25 + 0.25 + 0.125 * 0.875)
    assert added_variance(DELTA, 0.25) == 0  # all are whole multiples
    for function in (expected_count, added_variance):
        with pytest.raises(ValueError, match="the step must be above 0"):
            function(DELTA, 0.0)


def test_rounding_below_one_step_is_sampling_in_proportion() -> None:
    """Where no change is larger than the step: pi_i = |delta_i| / D, and the two variances are one."""
    for step in (3.0, 4.0, 100.0):
        pi = inclusion_probabilities(DELTA, expected_count(DELTA, step))
        assert pi == pytest.approx(np.abs(DELTA) / step)
        assert sampling_variance(DELTA, pi) == pytest.approx(added_variance(DELTA, step))


def test_probabilities_by_hand() -> None:
    assert inclusion_probabilities(DELTA, 0.95).tolist() == pytest.approx([0.1, 0.2, 0, 0.6, 0.05])
    # 3 for certain, the others 1 in 1.75 together
    assert inclusion_probabilities(DELTA, 2.0) == pytest.approx(np.array([0.5, 1, 0, 1.75, 0.25]) / 1.75)
    assert inclusion_probabilities(DELTA, 4.0).tolist() == [1, 1, 0, 1, 1]
    assert inclusion_probabilities(DELTA, 5.0).tolist() == [1, 1, 0, 1, 1]
    assert inclusion_probabilities(np.zeros(3), 2.0).tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match=r"count must be in \(0, 5\]"):
        inclusion_probabilities(DELTA, 5.5)


@pytest.mark.parametrize("count", [0.7, 3.0, 12.5])
def test_no_alternative_of_a_thousand_adds_less(count: float) -> None:
    """Random probabilities of the same sum, wild ones and close ones."""
    rng = np.random.default_rng(7)
    delta = rng.standard_normal(20) * np.exp(rng.normal(0, 1, 20))
    best = inclusion_probabilities(delta, count)
    assert best.sum() == pytest.approx(count)
    least = sampling_variance(delta, best)
    closest = math.inf
    for i in range(1000):
        other = best * np.exp(rng.normal(0, 10.0 ** -(i % 4), 20))
        for _ in range(100):  # to the same sum, none above 1
            other = np.minimum(other * count / other.sum(), 1)
        if abs(other.sum() - count) < 1e-9:
            found = sampling_variance(delta, other)
            assert found >= least * (1 - 1e-9)
            closest = min(closest, found / least)
    assert 1 < closest < 1.001


def test_the_mean_over_clients_by_hand() -> None:
    assert mean_variance(np.array([1.0, 3.0]), np.array([4.0, 8.0])) == (4 + 9 * 8) / 16
    assert mean_variance(np.ones(100), np.full(100, 5.0)) == pytest.approx(5 / 100)


def test_the_least_rate_of_equal_variances() -> None:
    # n log2(1 + s^2 / V) / 2
    assert least_rate(np.full(8, 3.0), 8.0) == pytest.approx(8.0)
    assert least_rate(np.array([3.0, 0.0, 3.0]), 2.0) == pytest.approx(2.0)
    assert least_rate(np.zeros(4), 1.0) == 0
    with pytest.raises(ValueError, match="must be above 0"):
        least_rate(np.ones(3), 0.0)


@pytest.mark.parametrize("added", [0.1, 3.0, 400.0])
def test_the_least_rate_of_two_weights_by_brute_force(added: float) -> None:
    variances = np.array([4.0, 0.25])
    first = np.linspace(0, added, 200_001)[1:-1]
    rates = 0.5 * (np.log2(1 + 4.0 / first) + np.log2(1 + 0.25 / (added - first)))
    assert least_rate(variances, added) == pytest.approx(rates.min(), rel=1e-6)
    assert rates.min() < 0.9995 * rates[len(rates) // 2]  # equal shares are worse


def test_the_least_rate_is_met_by_a_gaussian_channel_and_by_nothing_less() -> None:
    """delta + noise of variance V has that rate; its best estimate of delta is what Shannon allows at that rate."""
    s2, V = 2.0, 5.0
    rate = least_rate(np.array([s2]), V)
    assert rate == pytest.approx(0.5 * math.log2(1 + s2 / V))
    left = s2 * V / (s2 + V)  # of the best linear estimate
    assert left == pytest.approx(s2 * 2 ** (-2 * rate))  # the distortion-rate function of a Gaussian
