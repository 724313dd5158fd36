"""Parts of the compiled local training against plain products."""

from __future__ import annotations

import numpy as np
import pytest

from fedbiad.arrays import FloatArray, IntArray
from fedbiad.compiled import RowList
from fedbiad.compiling import fast
from fedbiad.products import LANES
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
    """In as many lanes as it takes, at a rate of half a sample."""
    batch = len(targets)
    width = -(-batch // LANES) * LANES
    e, lanes, goal = np.zeros((len(b), width), b.dtype), np.empty((4, width), b.dtype), np.full(width, -1, np.int32)
    e[:, :batch] = logits
    goal[:batch] = targets
    loss = kernels._descent(e, b, b.dtype.type(2), goal, batch, 0.5 * batch, lanes)
    return e, loss


@pytest.mark.parametrize(("dtype", "exact"), [(np.float64, 1e-12), (np.float32, 3e-6)])
@pytest.mark.parametrize("samples", [1, 3, LANES, LANES + 5, 5 * LANES])
def test_descent_is_the_gradient_of_the_mean_loss_and_nothing_in_lanes_without_a_sample(
    samples: int, dtype: type, exact: float
) -> None:
    stream = np.random.default_rng(0)
    logits, b = 9 * stream.normal(size=(4, samples)), stream.normal(size=4)
    targets = stream.integers(0, 4, samples)
    answers = np.exp(2.0 * logits + b[:, None])
    answers /= answers.sum(0)
    moved: FloatArray = b.astype(dtype)
    e, loss = descent(logits.astype(dtype), moved, targets)
    assert loss == pytest.approx(-np.log(answers[targets, np.arange(samples)]).mean(), rel=exact, abs=exact)
    expected = -0.5 * (answers - np.eye(4)[:, targets])
    np.testing.assert_allclose(e[:, :samples], 2 * expected, rtol=10 * exact, atol=2 * exact)
    np.testing.assert_allclose(moved, b + expected.sum(1), rtol=10 * exact, atol=samples * exact)
    assert not e[:, samples:].any()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_logit_that_is_no_number_is_seen_in_the_loss(dtype: type) -> None:
    logits: FloatArray = np.zeros((3, 2), dtype)
    logits[1, 1] = np.nan
    assert np.isnan(descent(logits, np.zeros(3, dtype), np.array([0, 2]))[1])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_smallest_and_the_largest_logits(dtype: type) -> None:
    """Far below the highest: 0, not NaN; far above 0: no infinity."""
    logits: FloatArray = np.array([[1e4, 1e4], [-1e4, 1e4 - 1]], dtype)
    e, loss = descent(logits / 2, np.zeros(2, dtype), np.array([0, 0]))
    share = 1 / (1 + np.exp(-1.0))
    np.testing.assert_allclose(e[:, :2], 2 * 0.5 * np.array([[0, 1 - share], [0, share - 1]]), atol=1e-6)
    assert loss == pytest.approx(-np.log(share) / 2, rel=1e-5)


@pytest.mark.parametrize("units", [1, 16, 37, 128])
def test_quadratic_forms_of_clients_of_different_sizes(units: int) -> None:
    stream, sizes = np.random.default_rng(units), [3, 11, 1]
    parts = [stream.normal(size=(size, units)) for size in sizes]
    grams = [x @ x.T for x in (stream.normal(size=(size, 4)) for size in sizes)]
    found = kernels.quadratic_forms(
        np.concatenate(parts), np.cumsum(sizes), np.array([gram.ctypes.data for gram in grams])
    )
    expected = [np.diag(a.T @ gram @ a) for a, gram in zip(parts, grams, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
