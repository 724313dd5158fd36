"""Columns that become rows, and back, and columns of two matrices that change places."""

from __future__ import annotations

import numpy as np
import pytest

from fedbiad.arrays import FloatArray
from fedbiad.columns import EXCHANGED, exchange_columns, turn, turned
from fedbiad.compiling import strict
from fedbiad.products import LANES


@strict
def turn_into(matrix: FloatArray, rows: int, columns: int, into: FloatArray) -> None:
    turn(matrix, rows, columns, into)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [1, 10, LANES, 60])
@pytest.mark.parametrize("columns", [1, 10, LANES, LANES + 1, 130])
def test_rows_become_columns_and_return(rows: int, columns: int, dtype: type) -> None:
    matrix: FloatArray = np.random.default_rng(rows).normal(size=(rows, columns)).astype(dtype)
    waiting: FloatArray = np.full((columns + 1, -(-rows // LANES) * LANES), 7.0, dtype=dtype)
    turn_into(matrix, rows, columns, waiting)
    assert np.array_equal(waiting[:columns, :rows], matrix.T)
    assert (waiting[columns] == 7.0).all()  # nothing is written behind the last row
    back: FloatArray = np.full((rows + 1, columns), 7.0, dtype=dtype)
    turn_into(waiting, columns, rows, back)
    assert np.array_equal(back[:rows], matrix)
    assert (back[rows] == 7.0).all()
    assert np.array_equal(turned(matrix), matrix.T)


@strict
def exchange(one: FloatArray, first: int, other: FloatArray, second: int, count: int) -> None:
    exchange_columns(one, first, other, second, count)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [0, 1, 7, EXCHANGED, EXCHANGED + 1, 21])
def test_these_columns_change_places_and_no_others(count: int, dtype: type) -> None:
    stream = np.random.default_rng(count)
    one: FloatArray = stream.normal(size=(5, 3 + 21 + EXCHANGED)).astype(dtype)
    other: FloatArray = stream.normal(size=(5, 6 + 21 + EXCHANGED)).astype(dtype)
    ones, others = one.copy(), other.copy()
    ones[:, 3 : 3 + count], others[:, 6 : 6 + count] = other[:, 6 : 6 + count], one[:, 3 : 3 + count]
    exchange(one, 3, other, 6, count)
    assert np.array_equal(one, ones)
    assert np.array_equal(other, others)
