"""Swaps of units in their places against those of patterns."""

from __future__ import annotations

import numpy as np
import pytest

from fedbiad import patterns
from fedbiad.arrays import FloatArray, IntArray, Pattern
from fedbiad.cohort import Cohort
from fedbiad.columns import EXCHANGED
from fedbiad.compiled import RowList
from fedbiad.compiling import strict
from fedbiad.rows import Layout, RowGroup, Slice
from fedbiad.training import swapping
from fedbiad.training.places import Places

UNITS, SWAPS = 23, 40


@strict
def swapped(
    pattern: Pattern, key: np.uint64, pairs: int, swaps: int, here: FloatArray, there: FloatArray, held: IntArray
) -> RowList:
    """So many swaps, one every 10 iterations; which unit stands in each place."""
    lines = swapping.room_for_lines(len(pattern))
    count = swapping.line_up(pattern, key, lines)
    for j in range(len(pattern)):  # every number tells whose it is
        side, at = (here, j) if j < count else (there, j - count)
        side[:, :, at] = lines.rows[j]
    for n in range(swaps):
        now = 10 * (n + 1)
        swapping.swap(lines, pairs, Places(here[0], here[1], here[2]), Places(there[0], there[1], there[2]),
                      pattern, held, now)  # fmt: skip
    return lines.rows


@pytest.mark.parametrize("held_units", [1, 4, 12, 20, 22])
@pytest.mark.parametrize("share", [0.1, 0.3, 1.0])
def test_units_swap_as_their_pattern_does(held_units: int, share: float) -> None:
    layout = Layout({"w": (UNITS,)}, (RowGroup("units", UNITS, (Slice("w", 0),)),))
    cohort = Cohort(0, 1, (held_units,))
    expected = patterns.draw(layout, 1 - held_units / UNITS, cohort.luck("pattern", UNITS))
    lines = patterns.line_up(layout, expected, cohort.order("resample", UNITS))
    key = np.array(cohort.keys("resample"), dtype=np.uint64)[0]
    begun, iterations = expected[0].copy(), np.zeros(UNITS, np.int64)
    for swaps in range(SWAPS):
        pattern, held = begun.copy(), np.zeros(UNITS, np.int64)
        here, there = (np.full((3, 5, UNITS + EXCHANGED), -1.0) for _ in range(2))
        pairs = int(patterns.swapped_rows(begun, share))
        rows = swapped(pattern, key, pairs, swaps, here, there, held).astype(np.int64)
        assert np.array_equal(pattern, expected[0])
        assert np.flatnonzero(pattern).tolist() == sorted(rows[:held_units].tolist())
        assert (here[:, :, :held_units] == rows[:held_units]).all()  # P, A and W went with their unit
        assert (there[:, :, : UNITS - held_units] == rows[held_units:]).all()
        assert (here[:, :, held_units:] == -1).all()
        assert np.array_equal(held + 10 * swaps * pattern, iterations)
        expected, lines = patterns.swap(layout, expected, lines, share)
        iterations += 10 * pattern
