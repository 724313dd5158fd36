"""Held units side by side, and back among all units."""

from __future__ import annotations

import numpy as np

from fedbiad.training import places
from fedbiad.training.places import Places, Units

ENDS = np.array([3, 7])
PATTERN = np.array([[True, False, True, True, False], [False, True, True, False, True]])


def units_of(width: int, seed: int) -> Units:
    stream = np.random.default_rng(seed)
    p, a, w = (stream.normal(size=shape) for shape in ((7, width), (7, width), (2, 4, width)))
    return Units(p, a, w)


def taken(units: Units) -> Places:
    held = Places(units_of(8, 1), np.zeros((2, 8), dtype=np.int64), PATTERN.sum(1))
    places.take(PATTERN, ENDS, units, held)
    return held


def test_held_units_stand_side_by_side_in_order() -> None:
    units = units_of(5, 0)
    held = taken(units)
    for k, part in enumerate((slice(0, 3), slice(3, 7))):
        rows = np.flatnonzero(PATTERN[k])
        assert held.rows[k, :3].tolist() == rows.tolist()
        assert np.array_equal(held.units.p[part, :3], units.p[part][:, rows])
        assert np.array_equal(held.units.a[part, :3], units.a[part][:, rows])
        assert np.array_equal(held.units.w[k, :, :3], units.w[k][:, rows])


def test_what_was_learned_returns_and_nothing_else_changes() -> None:
    units, before = units_of(5, 0), units_of(5, 0)
    held = taken(units)
    for part in (held.units.p, held.units.a, held.units.w):
        np.add(part, 1.0, out=part)
    places.put_back(held, ENDS, units)
    by_sample = PATTERN[[0, 0, 0, 1, 1, 1, 1]]
    assert np.array_equal(units.p, before.p)
    assert np.array_equal(units.a, before.a + by_sample)
    assert np.array_equal(units.w, before.w + PATTERN[:, None])
