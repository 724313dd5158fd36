"""exp, sigmoid and tanh for compiled loops: in float32 of plain arithmetic, so that a loop of them is vectorised.

The library's own functions are called one number at a time. In float64, which only slow twins use, those are called.
Errors in float32 are a few units in the last place; NaN stays NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

LOWEST = np.float32(-80.0)
"""exp of less than this is taken as 0: no subnormal numbers, which are slow."""
HIGHEST = np.float32(88.0)
LOG2_E = np.float32(1.4426950408889634)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
"""ln 2 in two parts, the first of few bits."""
SERIES = tuple(
    np.float32(c)
    for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
)
"""(e^r - 1 - r) / r^2 for |r| <= ln(2) / 2 (Cephes)."""
EXPONENT_BIAS, MANTISSA = 127, 23
"""Of a float32: what is added to its exponent, and the bits below it."""

_INLINE: Any = {"forceinline": True, "fastmath": {"contract", "reassoc", "nsz", "arcp"}, "error_model": "numpy"}


def exponential(x: float) -> float:
    """e^x, for compiled code."""
    return float(np.exp(x))


def sigmoid(x: float) -> float:
    """1 / (1 + e^-x), for compiled code."""
    return float(1.0 / (1.0 + np.exp(-x)))


def tanh(x: float) -> float:
    """tanh x, for compiled code."""
    return float(np.tanh(x))


@overload(exponential, jit_options=_INLINE)
def _exponential(x: Any) -> Callable[..., Any]:
    def exact(x: Any) -> Any:
        return np.exp(x)

    def compiled(x: Any) -> Any:
        """2^n e^r with |r| <= ln(2) / 2: a polynomial for e^r, n put into the exponent's bits (Cephes)."""
        small, x = x < LOWEST, min(x, HIGHEST)
        n = np.floor(x * LOG2_E + np.float32(0.5))
        r = x - n * LN2_HIGH - n * LN2_LOW
        series = SERIES[0] * r + SERIES[1]
        series = series * r + SERIES[2]
        series = series * r + SERIES[3]
        series = series * r + SERIES[4]
        series = series * r + SERIES[5]
        series = series * r * r + r + np.float32(1.0)
        power = np.int32((np.int32(n) + np.int32(EXPONENT_BIAS)) << np.int32(MANTISSA)).view(np.float32)
        return np.float32(0.0) if small else series * power

    return compiled if x == types.float32 else exact


@overload(sigmoid, jit_options=_INLINE)
def _sigmoid(x: Any) -> Callable[..., Any]:
    def exact(x: Any) -> Any:
        return 1.0 / (1.0 + np.exp(-x))

    def compiled(x: Any) -> Any:
        return np.float32(1.0) / (np.float32(1.0) + exponential(-x))

    return compiled if x == types.float32 else exact


@overload(tanh, jit_options=_INLINE)
def _tanh(x: Any) -> Callable[..., Any]:
    def exact(x: Any) -> Any:
        return np.tanh(x)

    def compiled(x: Any) -> Any:
        """Near 0, where 1 - 2 / (e^2x + 1) would cancel, a polynomial of x^2 (Cephes)."""
        size = abs(x)
        far = np.float32(1.0) - np.float32(2.0) / (exponential(size + size) + np.float32(1.0))
        square = x * x
        near = np.float32(-5.70498872745e-3)
        near = near * square + np.float32(2.06390887954e-2)
        near = near * square + np.float32(-5.37397155531e-2)
        near = near * square + np.float32(1.33314422036e-1)
        near = near * square + np.float32(-3.33332819422e-1)
        near = near * square * x + x
        signed = far if x > np.float32(0.0) else -far
        return near if size < np.float32(0.625) else signed

    return compiled if x == types.float32 else exact
