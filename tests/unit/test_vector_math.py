"""exp, sigmoid and tanh of compiled loops against the library's, in both precisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest

from fedbiad import vector_math
from fedbiad.arrays import FloatArray

EXACT: dict[str, Callable[[FloatArray], FloatArray]] = {
    "exponential": np.exp,
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "tanh": np.tanh,
}


def compiled(name: str) -> Callable[[Any], Any]:
    function = getattr(vector_math, name)

    def every(x: Any) -> Any:
        found = np.empty_like(x)
        for i in range(len(x)):
            found[i] = function(x[i])
        return found

    loop: Callable[[Any], Any] = numba.njit(every)
    return loop


@pytest.mark.parametrize("name", EXACT)
def test_the_function(name: str) -> None:
    """Numbers of every size for which float32 has a normal result."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((2000, 1)) * np.logspace(-6, 1.3, 20)).clip(-79, 79).flatten()
    single = x.astype(np.float32)
    loop = compiled(name)
    assert loop(single).dtype == np.float32
    assert loop(single) == pytest.approx(EXACT[name](single.astype(np.float64)), rel=6e-7, abs=0)
    assert loop(x) == pytest.approx(EXACT[name](x), rel=1e-15, abs=0)
    assert [getattr(vector_math, name)(value) for value in x[:5]] == pytest.approx(EXACT[name](x[:5]), rel=1e-15)


@pytest.mark.parametrize(("name", "ends"), [("exponential", (0.0, 1e38)), ("sigmoid", (0, 1)), ("tanh", (-1, 1))])
def test_far_out_and_not_a_number(name: str, ends: tuple[float, float]) -> None:
    low, high, none = compiled(name)(np.array([-np.inf, np.inf, np.nan], dtype=np.float32))
    assert low == pytest.approx(ends[0], abs=1e-37)
    assert high >= ends[1]
    assert np.isnan(none)
    assert compiled(name)(np.array([-81.0], dtype=np.float32))[0] == pytest.approx(ends[0], abs=1e-34)
