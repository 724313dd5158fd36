"""Parts of the compiled local training against plain products."""

from __future__ import annotations

import numpy as np
import pytest

from fedbiad.arrays import FloatArray
from fedbiad.compiling import fast
from fedbiad.training import kernels


@fast
def logits(h: FloatArray, w: FloatArray, held: int) -> FloatArray:
    found = np.full((len(h), len(w)), np.nan, h.dtype)
    kernels._logits(h, w, found, held)
    return found


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
