"""Rounding by duels: without bias, with the variance of independent draws, and sums that hardly vary.

The statistical tests are on fixed seeds; with a correct rounding each claim fails on at most 1e-9 of all seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbiad.arrays import FloatArray
from fedbiad.compressors.duels import _entry, masses, rounded, uniform
from fedbiad.compressors.passed import TOGETHER
from fedbiad.models import MLP
from fedbiad.payloads import Float32
from fedbiad.sending import segments

ERROR_RATE = 1e-9
TIMES = 4000


def bound(draws: int, claims: int = 1) -> float:
    """Hoeffding: a mean of numbers of range 1 is off by more, either way, in any of the claims, at the error rate."""
    return math.sqrt(math.log(2 * claims / ERROR_RATE) / (2 * draws))


def steps_of(delta: Float32, step: float, key: int) -> FloatArray:
    """The multiples of all entries."""
    full = np.zeros(len(delta))
    positions, multiples = rounded(delta, masses(delta), step, key)
    assert (np.diff(positions) > 0).all()
    assert multiples.all()
    full[positions] = multiples
    return full


def changes(size: int, seed: int) -> Float32:
    """Small and large ones, both signs, some exactly 0."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(size) * np.exp(rng.normal(0, 1.5, size)) * (rng.random(size) < 0.9)
    return values.astype(np.float32)


def kept_changes(rate: float) -> tuple[Float32, list[slice]]:
    """The changes of a small network of which a pattern keeps some rows, and where each parameter's stand."""
    layout = MLP(12, (10,), 4).layout("units")
    pattern = np.random.default_rng(3).random(layout.num_rows) >= rate
    pattern[0] = True
    own = segments(layout, pattern)
    return changes(own[-1].entries.stop, 8), [segment.entries for segment in own]


@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.parametrize("step", [0.3, 2.0, 40.0])
def test_no_bias_and_the_variance_of_its_formula_in_every_row_group(rate: float, step: float) -> None:
    delta, groups = kept_changes(rate)
    exact = delta.astype(np.float64) / step
    errors = np.stack([steps_of(delta, step, key) for key in range(TIMES)]) - exact
    fractions = np.abs(exact) % 1
    assert np.abs(errors).max() < 1  # of the two multiples around an entry one is taken
    assert np.abs(errors.mean(axis=0)).max() < bound(TIMES, len(delta)) < 0.06
    # E error^2 = f (1 - f) for every entry, and so for every group: a group's mean of squares has range 1, too
    variance = fractions * (1 - fractions)
    assert np.abs((errors**2).mean(axis=0) - variance).max() < bound(TIMES, len(delta))
    for group in groups:
        found, expected = (errors[:, group] ** 2).mean(), variance[group].mean()
        assert found == pytest.approx(expected, abs=bound(TIMES, len(groups)))
        assert expected > 0


def test_the_sums_of_runs_hardly_vary() -> None:
    """Whatever lies before or behind a run, of either sign at most the fighter at each end is not settled."""
    delta, step = changes(600, 1), 3.0
    for key in range(300):
        error = steps_of(delta, step, key) - delta.astype(np.float64) / step
        for sign in (1, -1):
            own = np.cumsum(np.where(np.sign(delta) == sign, error, 0))
            assert abs(own[-1]) < 1
            assert np.abs(own).max() < 3
    # independent draws of the same fractions vary by their standard deviation and more
    fractions = np.abs(delta.astype(np.float64) / step) % 1
    assert math.sqrt((fractions * (1 - fractions)).sum()) > 6


def by_the_definition(delta: Float32, step: float, luck: Callable[[], float]) -> list[int]:
    """Duels one after the other, each with a draw of its own, between groups that make up less than 1, else entries."""
    found = [0] * len(delta)
    for sign in (1, -1):
        sizes = [max(sign * change, 0) / step for change in delta.tolist()]
        held, fighter = 0.0, [0]
        for start in range(0, len(sizes), TOGETHER):
            group = list(range(start, min(start + TOGETHER, len(sizes))))
            for own in [group] if sum(sizes[i] for i in group) < 1 else [[i] for i in group]:
                whole, new = divmod(sum(sizes[i] for i in own), 1)
                found[own[0]] += sign * int(whole)
                if held + new < 1:
                    if new and luck() * (held + new) >= held:
                        fighter = own
                    held += new
                    continue
                up, fighter = (fighter, own) if luck() < (1 - new) / (2 - held - new) else (own, fighter)
                found[one_of(up, sizes, luck)] += sign
                held += new - 1
        if luck() < held:
            found[one_of(fighter, sizes, luck)] += sign
    return found


def one_of(entries: list[int], sizes: list[float], luck: Callable[[], float]) -> int:
    """One of them, in proportion."""
    shares = np.cumsum([sizes[i] for i in entries])
    return entries[int(np.searchsorted(shares, luck() * shares[-1], side="right"))] if len(entries) > 1 else entries[0]


def test_the_same_distribution_as_the_slow_version() -> None:
    """Pairs of entries, too: how often two of them are rounded up together."""
    delta = changes(2 * TOGETHER + 5, 4) * np.float32(0.1)
    step, rng = 1.0, np.random.default_rng(5)
    up = np.floor(np.abs(delta.astype(np.float64)))
    fast, slow = np.zeros((2, len(delta), len(delta)))
    for key in range(TIMES):
        raised = np.abs(steps_of(delta, step, key)) > up
        fast += np.outer(raised, raised)
        raised = np.abs(by_the_definition(delta, step, rng.random)) > up
        slow += np.outer(raised, raised)
    assert np.abs(fast - slow).max() / TIMES < 2 * bound(TIMES, len(delta) ** 2) < 0.12
    # two are rounded up together less often than by themselves, where at all
    apart = np.outer(np.diag(slow), np.diag(slow)) / TIMES
    off = ~np.eye(len(delta), dtype=np.bool_)
    assert ((fast - apart) / TIMES)[off].max() < 2 * bound(TIMES, len(delta) ** 2)
    assert ((apart - fast) / TIMES)[off].max() > 2 * bound(TIMES, len(delta) ** 2)


def test_by_hand() -> None:
    def of(*values: float) -> list[float]:
        found: list[float] = steps_of(np.array(values, dtype=np.float32), 0.5, 7).tolist()
        return found

    assert of(1.5, -1.0, 0.0, 0.5) == [3, -2, 0, 1]  # whole multiples are never rounded
    assert of(0.0, 0.0) == [0, 0]
    assert sorted(of(0.25, 0.25)) == [0, 1]  # two halves: exactly one
    assert sorted(of(*[0.125] * 4)) == [0, 0, 0, 1]
    assert sorted(of(*[0.25] * 40)) == [0] * 20 + [1] * 20
    assert sum(of(*[0.375, -0.125] * 16)) == 12 - 4
    assert len(rounded(np.zeros(0, np.float32), masses(np.zeros(0, np.float32)), 1.0, 1)[0]) == 0


def test_masses_by_hand() -> None:
    delta = np.concatenate([np.full(TOGETHER, 0.5), [1.0, -2.0, 0.0, -0.25]]).astype(np.float32)
    assert masses(delta).tolist() == [[TOGETHER / 2, 0], [1, 2.25]]


def test_draws_are_those_of_splitmix64() -> None:
    """The first outputs of the published generator for seed 1234567, their upper 53 bits."""
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [uniform(1234567, i) for i in range(3)] == [(word >> 11) / 2**53 for word in known]


def test_the_key_decides() -> None:
    delta = changes(500, 2)
    same, again, other = (steps_of(delta, 4.0, key) for key in (1, 1, 2))
    assert np.array_equal(same, again)
    assert not np.array_equal(same, other)


@given(st.integers(1, 40), st.floats(0, 1, exclude_max=True), st.sampled_from([0, 1]), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_who_of_a_group_against_one_by_one(size: int, luck: float, side: int, seed: int) -> None:
    delta = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    sums, sign = masses(delta), np.float32(1 - 2 * side)
    for group in np.flatnonzero(sums[:, side]).tolist():
        left, last = luck * sums[group, side], -1
        for i in range(group * TOGETHER, min((group + 1) * TOGETHER, size)):
            if left >= 0 and sign * delta[i] > 0:
                left, last = left - float(sign * delta[i]), i
        assert _entry(delta, sums[group, side], group, side, luck) == last
