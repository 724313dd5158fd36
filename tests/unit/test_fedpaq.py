"""FedPAQ's rounding: without bias, with the variance of its formula, never beyond its levels; and SignSGD's draws.

The statistical tests are on fixed seeds; with a correct quantiser each claim fails on at most 1e-9 of all seeds.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbiad.compressors import COMPRESSORS, PAPER, FedPAQ, Segment, SignSGD
from fedbiad.compressors.fedpaq import Norm, quantised
from fedbiad.payloads import Float32, Levels, Signs

ERROR_RATE = 1e-9
X: Float32 = np.random.default_rng(3).standard_normal(40).astype(np.float32)
TIMES = 4000


def bound(draws: int, claims: int = 1) -> float:
    """Hoeffding: a mean of numbers of range 1 is off by more, either way, in any of the claims, at the error rate."""
    return math.sqrt(math.log(2 * claims / ERROR_RATE) / (2 * draws))


def by_definition(norm: Norm) -> float:
    return math.sqrt(sum(float(x) ** 2 for x in X)) if norm == "l2" else max(abs(float(x)) for x in X)


@pytest.mark.parametrize("norm", ["l2", "max"])
@pytest.mark.parametrize("steps", [1, 7, 127])
def test_it_has_no_bias_and_the_variance_of_its_formula(norm: Norm, steps: int) -> None:
    stream = np.random.default_rng(11)
    unit = by_definition(norm) / steps
    errors = np.stack([quantised(X, steps, norm, stream).values() - X.astype(np.float64) for _ in range(TIMES)]) / unit
    assert np.abs(errors).max() < 1 + 1e-4  # of the two levels around an entry one is taken
    # in units each error has range 1 and mean 0
    assert np.abs(errors.mean(axis=0)).max() < bound(TIMES, len(X)) < 0.06
    # E error^2 = f (1 - f), f the fraction of the exact level
    fractions = np.abs(X.astype(np.float64)) / unit % 1
    expected = (fractions * (1 - fractions)).mean()
    assert (errors**2).mean() == pytest.approx(expected, abs=bound(errors.size))
    assert expected > 5 * bound(errors.size)


def test_levels_by_hand() -> None:
    def levels(values: list[float], compressor: FedPAQ) -> Levels:
        delta = np.array(values, dtype=np.float32)
        segments = [Segment("w", slice(0, len(delta)), 2)]
        payload, _ = compressor.compress(delta, np.arange(len(delta)), segments, {}, 1, np.random.default_rng(0))
        (part,) = payload.parts
        assert isinstance(part, Levels)
        return part

    # whole levels are never rounded: norm 5, s = 127; norm 4, s = 1 and 7
    assert levels([3.0, 0.0, -4.0], FedPAQ()).norm == 5.0
    assert levels([0.0, 0.0, -4.0], FedPAQ()).levels.tolist() == [0, 0, -127]
    assert levels([4.0, 0.0, -4.0], FedPAQ(bits=2, norm="max")).levels.tolist() == [1, 0, -1]
    assert levels([7.0, -1.0, 3.0], FedPAQ(bits=4, norm="max")).levels.tolist() == [7, -1, 3]
    # a norm beyond float32 is sent as the largest one, which still is no less than any entry
    assert levels([3e38, -3e38], FedPAQ()).norm == np.finfo(np.float32).max
    zero = levels([0.0, 0.0], FedPAQ())
    assert zero.norm == 0
    assert zero.levels.tolist() == [0, 0]


@pytest.mark.parametrize("bits", range(2, 9))
def test_an_entry_takes_its_bits(bits: int) -> None:
    delta = X.copy()
    payload, _ = FedPAQ(bits=bits).compress(
        delta, np.arange(40), [Segment("w", slice(0, 40), 2)], {}, 1, np.random.default_rng(0)
    )
    assert payload.paper_bits == 40 * bits + 32
    (part,) = payload.parts
    assert isinstance(part, Levels)
    assert 2 * part.steps + 1 == 2**bits - 1  # the levels of both signs and 0 fit


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=30),
    st.sampled_from([1, 3, 127]),
    st.sampled_from(["l2", "max"]),
)
def test_levels_never_exceed_the_steps(values: list[float], steps: int, norm: Norm) -> None:
    part = quantised(np.array(values, dtype=np.float32), steps, norm, np.random.default_rng(0))
    assert np.abs(part.levels).max() <= steps
    assert np.isfinite(part.norm)
    assert all(level * value >= 0 for level, value in zip(part.levels.tolist(), values, strict=True))


def test_profiles_differ_in_their_norms() -> None:
    segments = [Segment("w", slice(0, 2), 2), Segment("b", slice(2, 3), 1)]
    delta = np.array([3.0, -2.0, 6.0], dtype=np.float32)
    norms = {}
    for label, preset in (("original", COMPRESSORS["fedpaq"]), ("paper", PAPER["fedpaq"])):
        payload, _ = preset.compress(delta, np.arange(3), segments, {}, 1, np.random.default_rng(0))
        norms[label] = [float(part.norm) for part in payload.parts if isinstance(part, Levels)]
    assert norms == {"original": [7.0], "paper": [3.0, 6.0]}


def test_a_vote_draws_the_sign_of_zero_evenly() -> None:
    n = 40_000
    delta = np.zeros(n, dtype=np.float32)
    delta[:3] = 1e-30, -1e-30, 5
    segments = [Segment("w", slice(0, n - 4), 2), Segment("b", slice(n - 4, n), 1)]
    payload, state = SignSGD().compress(delta, np.arange(n), segments, {}, 1, np.random.default_rng(0))
    (part,) = payload.parts
    assert isinstance(part, Signs)
    assert part.magnitude is None
    assert part.positive[:3].tolist() == [True, False, True]
    assert abs(part.positive[3:].mean() - 0.5) < bound(n - 3) < 0.02
    assert payload.paper_bits == n
    assert state == {} == SignSGD().init_client(n)


def test_scaled_signs_by_hand() -> None:
    scaled = SignSGD(mode="scaled")
    segments = [Segment("w", slice(0, 2), 2), Segment("b", slice(2, 3), 1)]
    delta = np.array([3.0, -1.0, 0.5], dtype=np.float32)
    payload, state = scaled.compress(delta, np.arange(3), segments, scaled.init_client(3), 1, np.random.default_rng(0))
    assert payload.values().tolist() == [2.0, -2.0, 0.5]
    assert state["residual"].tolist() == [1.0, 1.0, 0.0]
    assert (scaled.vote_step, SignSGD().vote_step, SignSGD(step_share=0.5).vote_step) == (None, 0.02, 0.5)
