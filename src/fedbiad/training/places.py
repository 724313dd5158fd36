"""The held units of a block of clients side by side: how they get there, change places and return."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedbiad.arrays import FloatArray, IntArray, Pattern
from fedbiad.compiled import RowList
from fedbiad.compiling import strict, strict_part


class Units(NamedTuple):
    """Samples of all clients one after another: pre-activations under U and coefficients; each one's output layer."""

    p: FloatArray  # [samples, units]
    a: FloatArray  # alike
    w: FloatArray  # [clients, classes, units]


class Places(NamedTuple):
    """The held units of every client side by side, so that loops run over them only."""

    units: Units
    rows: IntArray  # which unit stands in each place [clients, places]
    taken: IntArray  # so many places [clients]


@strict
def take(pattern: Pattern, ends: IntArray, units: Units, held: Places) -> None:
    """Put the units that `pattern` [clients, units] holds side by side; client k's samples stand before `ends[k]`."""
    for k in range(len(pattern)):
        rows, count = held.rows[k], 0
        for j in range(pattern.shape[1]):
            if pattern[k, j]:
                rows[count] = j
                count += 1
        for i in range(ends[k - 1] if k else 0, ends[k]):
            for n in range(count):
                held.units.p[i, n], held.units.a[i, n] = units.p[i, rows[n]], units.a[i, rows[n]]
        for c in range(units.w.shape[1]):
            for n in range(count):
                held.units.w[k, c, n] = units.w[k, c, rows[n]]


@strict
def put_back(held: Places, ends: IntArray, units: Units) -> None:
    """What the held units have learned, into the arrays of all units."""
    for k in range(len(held.rows)):
        rows, count = held.rows[k], held.taken[k]
        for i in range(ends[k - 1] if k else 0, ends[k]):
            for n in range(count):
                units.a[i, rows[n]] = held.units.a[i, n]
        for c in range(units.w.shape[1]):
            for n in range(count):
                units.w[k, c, rows[n]] = held.units.w[k, c, n]


@strict
def exchange(pattern: Pattern, ends: IntArray, held: Places, units: Units) -> None:
    """Put the units that `pattern` [clients, units] newly holds in the place of those it no longer does."""
    room = np.empty((3, pattern.shape[1]), np.uint32)
    for k in range(len(pattern)):
        first = ends[k - 1] if k else 0
        _exchange(pattern[k], k, first, ends[k], held, units, room)


@strict_part
def _exchange(pattern: Pattern, k: int, first: int, last: int, held: Places, units: Units, room: RowList) -> None:
    """The same for client k with its samples `first` up to `last`; as many units come as go, both in order."""
    places, leaving, coming = room
    rows, count = held.rows[k], 0
    for j in range(held.taken[k]):
        if not pattern[rows[j]]:
            places[count], leaving[count] = j, rows[j]
            count += 1
    if count == 0:
        return
    missing = pattern.copy()
    for j in range(held.taken[k]):
        missing[rows[j]] = False
    found = 0
    for j in range(len(missing)):
        if missing[j]:
            coming[found] = j
            found += 1
    for i in range(first, last):  # sample by sample: the units of one stand side by side
        _move(units.a[i], held.units.a[i], places, leaving, coming, count)
        for n in range(count):
            held.units.p[i, places[n]] = units.p[i, coming[n]]
    for c in range(units.w.shape[1]):
        _move(units.w[k, c], held.units.w[k, c], places, leaving, coming, count)
    for n in range(count):
        held.rows[k, places[n]] = coming[n]


@strict_part
def _move(
    all_units: FloatArray, held: FloatArray, places: RowList, leaving: RowList, coming: RowList, count: int
) -> None:
    for n in range(count):
        new = all_units[coming[n]]
        all_units[leaving[n]] = held[places[n]]
        held[places[n]] = new
