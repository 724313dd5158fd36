"""Parts of the compiled local training against plain products."""

from __future__ import annotations

import numpy as np
import pytest

from fedbiad.arrays import FloatArray, IntArray
from fedbiad.compiled import RowList
from fedbiad.compiling import fast
from fedbiad.training import kernels


@fast
def logits(h: FloatArray, w: FloatArray, held: int) -> FloatArray:
    found = np.full((len(w), len(h)), np.nan, h.dtype)
    kernels._logits(w, h, found, held)
    return found.T


@pytest.mark.parametrize("batch", [1, 2, 5, 10])
@pytest.mark.parametrize("classes", [1, 5, 7, 10])
@pytest.mark.parametrize("held", [1, 16, 17, 64, 102])
def test_logits_are_the_product_of_the_held_units(batch: int, classes: int, held: int) -> None:
    stream = np.random.default_rng(held)
    h, w = stream.normal(size=(batch, 110)), stream.normal(size=(classes, 110))
    np.testing.assert_allclose(logits(h, w, held), h[:, :held] @ w[:, :held].T, rtol=1e-12, atol=1e-12)
    found = logits(h, w, held)
    for r, c in np.ndindex(batch, classes):  # the same bits alone
        assert logits(h[r : r + 1], w[c : c + 1], held)[0, 0] == found[r, c]


@fast
def met(visits: IntArray, batch: int) -> tuple[RowList, int]:
    seen, count = np.empty(100, np.uint32), 0
    for first in range(0, len(visits), batch):
        count = kernels._meet(visits[first : first + batch], seen, count)
    return seen[:count], count


@pytest.mark.parametrize("batch", [1, 3, 10])
def test_samples_met_are_listed_once_and_in_order(batch: int) -> None:
    visits = np.random.default_rng(batch).integers(0, 30, 40)
    seen, count = met(visits, batch)
    assert seen.tolist() == sorted(set(visits.tolist()))
    assert count == len(seen)


@fast
def descent(logits: FloatArray, b: FloatArray, targets: IntArray) -> tuple[FloatArray, float]:
    """Of three samples in eight lanes."""
    e, lanes = np.zeros((len(b), 8)), np.empty((2, 8))
    e[:, :3] = logits
    loss = kernels._descent(e, b, 2.0, targets, np.array([2, 0, 1]), 0.5, lanes)
    return e, loss


def test_descent_is_the_gradient_of_the_mean_loss_and_nothing_in_lanes_without_a_sample() -> None:
    stream = np.random.default_rng(0)
    logits, b, targets = stream.normal(size=(4, 3)), stream.normal(size=4), np.array([3, 0, 3])
    answers = np.exp(2.0 * logits + b[:, None])
    answers /= answers.sum(0)
    right = targets[[2, 0, 1]]
    e, loss = descent(logits, b, targets)
    assert loss == pytest.approx(-np.log(answers[right, [0, 1, 2]]).mean(), rel=1e-12)
    np.testing.assert_allclose(e[:, :3], -0.5 * (answers - np.eye(4)[:, right]), rtol=1e-12, atol=1e-14)
    assert not e[:, 3:].any()
