"""Held units side by side, and back among all units."""

from __future__ import annotations

import numpy as np
import pytest

from fedbiad.arrays import FloatArray, IntArray, Pattern
from fedbiad.columns import EXCHANGED
from fedbiad.compiled import RowList
from fedbiad.compiling import strict
from fedbiad.products import LANES
from fedbiad.training import places
from fedbiad.training.places import Places, Units

SAMPLES = 7


@strict
def room(units: Units, ends: IntArray, pattern: Pattern, dropped: bool = False) -> Places:
    return places.room_for_some(units, ends, pattern, dropped)


@strict
def taken(full: FloatArray, pattern: Pattern, rows: RowList, into: FloatArray) -> int:
    count = places.listed(pattern, rows)
    places.take(full, rows, count, into)
    return count


@strict
def put(held: FloatArray, rows: RowList, count: int, full: FloatArray) -> None:
    places.put(held, rows, count, full)


@pytest.mark.parametrize("units", [1, 5, LANES, 3 * LANES + 2])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_held_units_stand_side_by_side_in_order_and_return_alone(units: int, share: float) -> None:
    stream = np.random.default_rng(units)
    full, pattern = stream.normal(size=(SAMPLES, units)), stream.random(units) < share
    rows, into = np.zeros(units, np.uint32), np.full((SAMPLES, units + 3 * LANES), 7.0)
    count = taken(full, pattern, rows, into)
    assert rows[:count].tolist() == np.flatnonzero(pattern).tolist()
    assert np.array_equal(into[:, :count], full[:, pattern])
    before = full.copy()
    rows[:count] = rows[:count][::-1].copy()  # in whatever places they stand by then
    put(into[:, :count][:, ::-1].copy() + 1, rows, count, full)
    assert np.array_equal(full, before + pattern)


def test_room_for_the_client_that_takes_most() -> None:
    units = Units(np.zeros((SAMPLES, 40)), np.zeros((SAMPLES, 40)), np.zeros((3, 4, 40)))
    pattern = np.zeros((3, 40), dtype=np.bool_)
    pattern[0, :3], pattern[1, :17], pattern[2] = True, True, True
    for dropped, most in ((False, 17), (True, 37)):
        found = room(units, np.array([3, 5, 7]), pattern, dropped)  # who holds all stays where it is
        assert len(found.p) == len(found.a) == 3
        assert len(found.w) == 4
        width = found.p.shape[1]
        assert width >= most + EXCHANGED
        assert width // LANES % 2 == 1
        assert all(part.ctypes.data % 64 == 0 for part in (found.p, found.a, found.w))


def test_no_room_where_all_hold_all_units() -> None:
    units = Units(np.zeros((SAMPLES, 40)), np.zeros((SAMPLES, 40)), np.zeros((1, 4, 40)))
    assert len(room(units, np.array([SAMPLES]), np.ones((1, 40), dtype=np.bool_)).p) == 0
