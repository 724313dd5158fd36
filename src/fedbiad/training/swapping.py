"""Held units that leave and others that come: lines 18 to 26 of Algorithm 1 inside compiled local training.

Units stand in two lines, one of those that are held and one of those that wait, and first in line goes first. So units
of a swap stand side by side in both lines, and who comes takes the place of who leaves: a line ends where it begins.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedbiad.arrays import FloatArray, IntArray, Pattern
from fedbiad.columns import exchange_columns
from fedbiad.compiled import RowList, shuffle
from fedbiad.compiling import strict_part
from fedbiad.training.places import Places, take


class Lines(NamedTuple):
    """Those of one client: the held units stand in the first places, the others behind them."""

    rows: RowList  # which unit stands in each place
    first: IntArray  # who is first in the line of the held units, and of the others
    length: IntArray  # of both
    order: RowList


@strict_part
def room_for_lines(units: int) -> Lines:
    return Lines(
        np.empty(units, np.uint32), np.zeros(2, np.int64), np.zeros(2, np.int64), np.empty(units, np.uint32)
    )  # fmt: skip


@strict_part
def line_up(pattern: Pattern, key: np.uint64, lines: Lines) -> int:
    """As `patterns.line_up`, in the order of this key; how many are held."""
    shuffle(key, lines.order)
    held = int(pattern.sum())
    places = np.array([held, 0])
    for unit in lines.order:
        side = int(pattern[unit])
        lines.rows[places[side]] = unit
        places[side] += 1
    lines.first[:] = 0
    lines.length[0], lines.length[1] = held, len(pattern) - held
    return held


@strict_part
def let_wait(p: FloatArray, w: FloatArray, waiting: RowList, there: Places) -> None:
    """Before the first swap of a client: units it does not hold, as it received them."""
    take(p, waiting, len(waiting), there.p)
    take(w, waiting, len(waiting), there.w)
    there.a[:] = 0


@strict_part
def swap(lines: Lines, pairs: int, here: Places, there: Places, pattern: Pattern, held: IntArray, now: int) -> None:
    """So many units leave, after `now` iterations, and as many others take their places in P, A and W."""
    first, length = lines.first, lines.length
    while pairs > 0:
        count = min(pairs, length[0] - first[0], length[1] - first[1])
        exchange_columns(here.p, first[0], there.p, first[1], count)
        exchange_columns(here.w, first[0], there.w, first[1], count)
        exchange_columns(here.a, first[0], there.a, first[1], count)  # last: it is what is read next
        for n in range(count):
            at, waits = first[0] + n, length[0] + first[1] + n
            old, new = lines.rows[at], lines.rows[waits]
            lines.rows[at], lines.rows[waits] = new, old
            pattern[old], pattern[new] = False, True
            held[old] += now
            held[new] -= now
        for side in range(2):
            first[side] = (first[side] + count) % length[side]
        pairs -= count
