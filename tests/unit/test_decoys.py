"""A floor under the probability of being sent: no bias, the probability and the variance as stated, budgets kept.

The statistical tests are on fixed seeds; with a correct rounding each claim fails on at most 1e-9 of all seeds.
"""

from __future__ import annotations

import numpy as np
import pytest
from test_duels import bound, changes
from test_evidence import ALL, LAYOUT, kept, part_of, reply_of
from test_evidence import changes as scaled_changes

from fedbiad import wire
from fedbiad.compressors import Evidence
from fedbiad.compressors.decoys import rounded_with_decoys, up_and_down
from fedbiad.compressors.evidence import CEILING
from fedbiad.errors import UpdateError
from fedbiad.plan_problems import key_problems_of
from fedbiad.theory import added_variance, expected_count, rounding_variances

TIMES = 4000


def test_up_and_down_by_hand() -> None:
    """In steps of 2: no change is 0.2 up and 0.2 down, of which one alone comes true with 2 x 0.2 x 0.8 = 0.32."""
    up, down = up_and_down(np.array([0.0, 1.0, -1.0, 5.0, -0.64], dtype=np.float32), 2.0, 0.32)
    assert up[:4] / 2 == pytest.approx([0.2, 0.5, 0, 2.5])
    assert down[:4] / 2 == pytest.approx([0.2, 0, 0.5, 0])
    assert (up[4], down[4]) == pytest.approx((0, 0.64), abs=1e-7)  # the floor itself


@pytest.mark.parametrize("floor", [1e-6, 0.01, 0.3, 0.5])
def test_the_difference_is_the_change_and_one_alone_comes_true_as_often_as_the_floor(floor: float) -> None:
    sizes = np.concatenate([[0.0], np.geomspace(1e-9, 0.99, 300)])
    delta = np.concatenate([sizes, -sizes]).astype(np.float32)
    up, down = up_and_down(delta, 1.0, floor)
    assert up - down == pytest.approx(delta.astype(np.float64), rel=1e-12, abs=1e-15)
    chance = up * (1 - down) + down * (1 - up)
    assert chance == pytest.approx(np.maximum(np.abs(delta.astype(np.float64)), floor), rel=1e-12)


@pytest.mark.parametrize("floor", [0.02, 0.3])
def test_no_bias_the_probability_and_the_variance_of_every_weight(floor: float) -> None:
    delta, step = changes(120, 8) * np.float32(0.2), 2.0
    assert (delta == 0).sum() == 5
    exact = delta.astype(np.float64) / step
    drawn = np.zeros((TIMES, len(delta)))
    for key in range(TIMES):
        positions, multiples = rounded_with_decoys(delta, step, floor, key)
        assert (np.diff(positions) > 0).all()
        assert multiples.all()
        drawn[key, positions] = multiples
    errors, probability = drawn - exact, np.maximum(np.minimum(np.abs(exact), 1), floor)
    assert np.abs(errors.mean(axis=0)).max() < 2 * bound(TIMES, len(delta))  # between -1 and 1: range 2
    assert np.abs((drawn != 0).mean(axis=0) - probability).max() < bound(TIMES, len(delta)) < 0.06
    variance = rounding_variances(exact, 1.0, floor)
    # squares are below (1 + floor)^2: a weight below the floor is off by one step and its own change at most
    assert np.abs((errors**2).mean(axis=0) - variance).max() < (1 + floor) ** 2 * bound(TIMES, len(delta))
    assert (drawn != 0).sum(axis=1).mean() == pytest.approx(expected_count(exact, 1.0, floor), abs=1)


def test_both_signs_of_what_did_not_change_come_alike() -> None:
    delta = np.zeros(4000, dtype=np.float32)
    delta[0] = 1.0
    counts = np.zeros(2)
    for key in range(50):
        _, multiples = rounded_with_decoys(delta, 4.0, 0.05, key)
        assert set(multiples.tolist()) <= {-1, 1}
        counts += (multiples > 0).sum(), (multiples < 0).sum()
    # duels settle how many: about 50 x 200, half of them up
    assert counts.tolist() == pytest.approx([5000, 5000], rel=0.01)


def test_variances_by_hand() -> None:
    delta = np.array([0.0, 0.5, -1.0, 3.0])  # in steps of 2: 0, .25, .5, 1.5
    assert rounding_variances(delta, 2.0, 0.3).tolist() == pytest.approx([4 * 0.3, 4 * 0.3 - 0.25, 1, 1])
    assert added_variance(delta, 2.0, 0.3) == pytest.approx(1.2 + 0.95 + 1 + 1)
    assert expected_count(delta, 2.0, 0.3) == pytest.approx(0.3 + 0.3 + 0.5 + 1)
    assert rounding_variances(delta, 2.0).tolist() == pytest.approx([0, 0.75, 1, 1])


def test_budgets_are_kept_with_a_floor() -> None:
    rng, shares = np.random.default_rng(0), []
    for key in range(200):
        pattern = ALL if key % 2 else rng.random(LAYOUT.num_rows) < 0.7
        budget = float(np.exp(rng.uniform(np.log(0.05), np.log(0.3))))
        floor = float(rng.uniform(0.001, 0.3 * budget))
        delta, settings = scaled_changes(rng, kept(pattern)), Evidence(budget=budget, floor=floor)
        message, dense = reply_of(settings, delta, pattern, key)
        size = wire.reply_size(LAYOUT, message)
        assert size <= CEILING * budget * dense
        shares.append(size / (budget * dense))
    assert np.median(shares) > 0.96


def test_a_floor_that_takes_more_than_the_budget_says_so() -> None:
    delta = scaled_changes(np.random.default_rng(3), LAYOUT.num_weights)
    said = r"a floor of 0.2 sends 247 weights whatever .* bytes where a budget leaves \d+; lower the floor or raise"
    with pytest.raises(UpdateError, match=said):
        reply_of(Evidence(budget=0.03, floor=0.2), delta, ALL)


def test_more_decoys_mean_a_longer_step_and_more_noise() -> None:
    delta, floors = scaled_changes(np.random.default_rng(3), LAYOUT.num_weights), (0.0, 0.01, 0.02, 0.04)
    found = []
    for floor in floors:
        step = float(part_of(reply_of(Evidence(budget=0.05, floor=floor), delta, ALL)[0]).step)
        found.append((step, added_variance(delta.astype(np.float64), step, floor)))
    (first, *_, last), noise = found, [added for _, added in found]
    assert noise == sorted(noise)
    assert last[0] > 1.05 * first[0]
    assert last[1] > 1.3 * first[1]


def test_nothing_learned_sends_no_decoys() -> None:
    message, _ = reply_of(Evidence(budget=0.1, floor=0.1), np.zeros(LAYOUT.num_weights, np.float32), ALL)
    assert len(part_of(message).positions) == 0


@pytest.mark.parametrize(("floor", "said"), [(-0.1, "greater than or equal to 0"), (0.6, "less than or equal to 0.5")])
def test_bad_floors_are_named(floor: float, said: str) -> None:
    (problem,) = key_problems_of(Evidence(floor=floor))
    assert f"floor: input should be {said}, not {floor}" in problem
