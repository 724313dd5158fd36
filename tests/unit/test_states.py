"""The compiled states of a recurrent layer against the same written down step by step."""

from __future__ import annotations

import numpy as np
import pytest

from fedbiad.arrays import FloatArray, IntArray
from fedbiad.models import states

CLIENTS, TIME = 2, 3
NO_ROWS = np.empty((CLIENTS, 0), np.int64)


def sigmoid(x: FloatArray) -> FloatArray:
    found: FloatArray = 1 / (1 + np.exp(-x))
    return found


def drawn(batch: int, units: int, kept: int, dtype: type = np.float64) -> tuple[FloatArray, FloatArray, IntArray]:
    """What the gates are given, W_hh, and which gates its rows are, if not all."""
    rng = np.random.default_rng([batch, units, kept])
    given = rng.normal(size=(CLIENTS, TIME, batch, 4 * units))
    recurrent = rng.normal(size=(CLIENTS, kept, units)) / np.sqrt(units)
    rows = np.stack([np.sort(rng.permutation(4 * units)[:kept]) for _ in range(CLIENTS)])
    return given.astype(dtype), recurrent.astype(dtype), NO_ROWS if kept == 4 * units else rows


def whole(recurrent: FloatArray, rows: IntArray, gates: int) -> FloatArray:
    """W_hh with rows of 0 for those that are not there."""
    if recurrent.shape[1] == gates:
        return recurrent
    full = np.zeros((CLIENTS, gates, recurrent.shape[2]))
    for k in range(CLIENTS):
        full[k, rows[k]] = recurrent[k]
    return full


def arrays(given: FloatArray, units: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """h and c with room for the state after each step, begun with something, and room for tanh(c)."""
    batch, rng = given.shape[2], np.random.default_rng(5)
    h, c = (np.full((CLIENTS, TIME + 1, batch, units), np.nan, given.dtype) for _ in range(2))
    h[:, 0], c[:, 0] = rng.normal(size=(2, CLIENTS, batch, units))
    return h, c, np.full((CLIENTS, TIME, batch, units), np.nan, given.dtype)


SIZES = [
    (1, 3, 12),
    (3, 16, 64),
    (4, 20, 80),
    (4, 8, 0),
    (5, 7, 28),
    (7, 33, 50),
    (8, 16, 9),
    (10, 64, 256),
    (12, 70, 280),
    (23, 5, 20),
]


class TestForward:
    @pytest.mark.parametrize(("batch", "units", "kept"), SIZES)
    def test_is_the_lstm_step_by_step(self, batch: int, units: int, kept: int) -> None:
        given, recurrent, rows = drawn(batch, units, kept)
        h, c, squashed = arrays(given, units)
        gates = given.copy()
        states.run(gates, recurrent, rows, h, c, squashed)
        full = whole(recurrent, rows, 4 * units)
        for k in range(CLIENTS):
            state, cell = h[k, 0], c[k, 0]
            for t in range(TIME):
                i, f, g, o = np.split(given[k, t] + state @ full[k].T, 4, axis=1)
                i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
                cell = f * cell + i * g
                state = o * np.tanh(cell)
                np.testing.assert_allclose(gates[k, t], np.concatenate([i, f, g, o], 1), atol=1e-12)
                np.testing.assert_allclose(c[k, t + 1], cell, atol=1e-12)
                np.testing.assert_allclose(squashed[k, t], np.tanh(cell), atol=1e-12)
                np.testing.assert_allclose(h[k, t + 1], state, atol=1e-12)

    def test_a_client_is_the_same_to_the_bit_beside_others(self) -> None:
        given, recurrent, rows = drawn(4, 20, 80, np.float32)
        together, alone = [x.copy() for x in arrays(given, 20)], [x.copy() for x in arrays(given, 20)]
        states.run(given.copy(), recurrent, rows, *together)
        for k in range(CLIENTS):
            one = slice(k, k + 1)
            states.run(given[one].copy(), recurrent[one], rows[one], *(x[one] for x in alone))
        assert all(np.array_equal(one, other) for one, other in zip(together, alone, strict=True))


class TestBackward:
    @pytest.mark.parametrize(("batch", "units", "kept"), SIZES)
    def test_is_the_gradient_of_a_sum_of_states(self, batch: int, units: int, kept: int) -> None:
        given, recurrent, rows = drawn(batch, units, kept)
        weights = np.random.default_rng(7).normal(size=(CLIENTS, TIME, batch, units))

        def run(values: FloatArray) -> tuple[float, FloatArray, FloatArray, FloatArray]:
            h, c, squashed = arrays(given, units)
            gates = values.copy()
            states.run(gates, recurrent, rows, h, c, squashed)
            return float((weights * h[:, 1:]).sum()), gates, c, squashed

        _, found, c, squashed = run(given)
        states.run_back(found, recurrent, rows, c, squashed, weights)
        rng = np.random.default_rng(8)
        for _ in range(4):
            direction, step = rng.normal(size=given.shape), 1e-5
            slope = (run(given + step * direction)[0] - run(given - step * direction)[0]) / (2 * step)
            np.testing.assert_allclose((found * direction).sum(), slope, rtol=1e-6, atol=1e-6)
