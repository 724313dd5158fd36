"""Units that wait while a client holds others: lines 18 to 26 of Algorithm 1 inside compiled local training."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedbiad.arrays import FloatArray, IntArray, Pattern
from fedbiad.columns import exchange_column, put_column, turn
from fedbiad.compiled import RowList, draw_uniforms, swap_rows
from fedbiad.compiling import strict_part
from fedbiad.patterns import Swaps
from fedbiad.products import LANES
from fedbiad.training.places import Units


class Waiting(NamedTuple):
    """The numbers of one client's units, unit by unit in whole vectors: whoever comes is taken from there."""

    p: FloatArray  # [units, samples]
    a: FloatArray  # one unit more, all 0: what a unit has that was never held
    w: FloatArray  # [units, classes]
    away: Pattern  # who has been held and has left
    place: RowList  # where a held unit stands
    luck: FloatArray
    lists: RowList  # [2, units]


@strict_part
def room_to_wait(units: Units, ends: IntArray, swaps: Swaps) -> Waiting:
    """For one client at a time, if any may swap."""
    longest, count, dtype = 0, units.p.shape[1], units.p.dtype
    for k in range(len(ends) if swaps.interval else 0):
        longest = max(longest, ends[k] - ends[k - 1] if k else ends[k])
    rows = count if longest else 0
    samples, classes = -(-longest // LANES) * LANES, -(-units.w.shape[1] // LANES) * LANES
    a = np.empty((rows + 1, samples), dtype)
    a[rows] = 0
    return Waiting(
        np.empty((rows, samples), dtype), a, np.empty((rows, classes), dtype), np.empty(count, np.bool_),
        np.empty(count, np.uint32), np.empty(count, np.float64), np.empty((2, count), np.uint32),
    )  # fmt: skip


@strict_part
def begin_to_wait(waiting: Waiting, p: FloatArray, w: FloatArray, rows: RowList, count: int) -> None:
    """Before a client's first swap: all units as it received them; it holds the first `count` of `rows`."""
    turn(p, p.shape[0], p.shape[1], waiting.p)
    turn(w, w.shape[0], w.shape[1], waiting.w)
    waiting.away[:] = False
    for j in range(count):
        waiting.place[rows[j]] = j


@strict_part
def swap(
    waiting: Waiting, pattern: Pattern, pairs: int, key: np.uint64, rows: RowList, held: IntArray, now: int,
    p: FloatArray, a: FloatArray, w: FloatArray,
) -> None:  # fmt: skip
    """So many held units leave, after `now` iterations, and as many others take their places in P, A and W."""
    luck = waiting.luck[: 2 * pairs]
    draw_uniforms(key, luck)
    swap_rows(pattern, luck, pairs, waiting.lists)
    coming, leaving = waiting.lists
    for n in range(pairs):
        put_column(waiting.p, coming[n], p, waiting.place[leaving[n]])
    for n in range(pairs):  # A last: it is what the next iteration reads first
        new, old = coming[n], leaving[n]
        at = waiting.place[old]
        exchange_column(waiting.w, new, w, at, old)
        exchange_column(waiting.a, new if waiting.away[new] else len(waiting.away), a, at, old)
        rows[at], waiting.place[new], waiting.away[old] = new, at, True
        held[old] += now
        held[new] -= now


@strict_part
def put_waiting(waiting: Waiting, pattern: Pattern, a: FloatArray, w: FloatArray) -> None:
    """What those learned who were held and are no more, into the arrays of all units."""
    for j in range(len(pattern)):
        if waiting.away[j] and not pattern[j]:
            put_column(waiting.a, j, a, j)
            put_column(waiting.w, j, w, j)
