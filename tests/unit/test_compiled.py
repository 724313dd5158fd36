"""Small compiled loops against what numpy says."""

from __future__ import annotations

import numpy as np
import pytest

from fedbiad import compiled
from fedbiad.arrays import FloatArray


@pytest.mark.parametrize("place", [0, 4095, 4096, 9999])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_small_number_is_found_wherever_it_stands(place: int, dtype: type) -> None:
    flat: FloatArray = np.full(10_000, 3.0, dtype=dtype)
    flat[::7] *= -1
    flat[5] = np.nan
    assert not compiled.any_within(flat, 2.0)
    assert compiled.any_within(flat, 3.0)  # no larger: its own size is enough
    assert not compiled.any_within(flat, -1.0)
    flat[place] = -2.0
    assert compiled.any_within(flat, 2.0)
    assert not compiled.any_within(flat[:0], 2.0)


def test_columns_there_and_back() -> None:
    full, columns = np.arange(12.0).reshape(3, 4), np.array([3, 0])
    taken = np.empty((3, 2))
    compiled.take_columns(full, columns, taken)
    assert taken.tolist() == [[3, 0], [7, 4], [11, 8]]
    compiled.put_columns(-taken, columns, full)
    assert full.tolist() == [[-0.0, 1, 2, -3], [-4, 5, 6, -7], [-8, 9, 10, -11]]


def test_steps_of_a_key_are_streams_of_their_own() -> None:
    keys = np.array([1, 2], dtype=np.uint64)
    draws = np.concatenate([compiled.uniforms(compiled.keys_of_step(keys, step), 50) for step in range(20)])
    assert len(np.unique(draws)) == draws.size
    assert abs(draws.mean() - 0.5) < 4 * (12 * draws.size) ** -0.5  # four standard errors
