"""Half precision, by hand."""

from __future__ import annotations

import numpy as np

from fedbiad.compressors import HalfPrecision, Segment


def sent(values: list[float]) -> list[float]:
    delta, segments = np.array(values, dtype=np.float32), [Segment("w", slice(0, len(values)), 2)]
    payload, state = HalfPrecision().compress(delta, np.arange(len(delta)), segments, {}, 1, np.random.default_rng(0))
    assert payload.paper_bits == 16 * len(delta)
    assert state == {}
    return [float(value) for value in payload.values()]


def test_rounding_is_to_eleven_bits_with_ties_to_even() -> None:
    assert sent([1 + 2**-10, 1 + 2**-11, 1 + 3 * 2**-11, -1 - 2**-11]) == [1 + 2**-10, 1.0, 1 + 2**-9, -1.0]


def test_the_smallest_step_is_2_to_the_minus_24() -> None:
    assert sent([3 * 2.0**-24, 2.0**-25, 0.0]) == [3 * 2.0**-24, 0.0, 0.0]


def test_beyond_the_range_is_clipped_to_the_largest_finite() -> None:
    assert sent([65504.0, 65519.0, 65520.0, 1e30, -1e30]) == [65504.0] * 4 + [-65504.0]
