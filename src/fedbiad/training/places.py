"""The held units of one client side by side, so that loops run over them only: how they get there and return."""

from __future__ import annotations

from typing import NamedTuple

from fedbiad.arrays import FloatArray, IntArray, Pattern
from fedbiad.columns import EXCHANGED
from fedbiad.compiled import RowList, aligned
from fedbiad.compiling import strict_part
from fedbiad.products import LANES


class Units(NamedTuple):
    """Samples of all clients one after another: pre-activations under U and coefficients; each one's output layer."""

    p: FloatArray  # [samples, units]
    a: FloatArray  # alike
    w: FloatArray  # [clients, classes, units]


class Places(NamedTuple):
    """Room for some units of the client whose turn it is, side by side."""

    p: FloatArray  # [samples, places]
    a: FloatArray  # alike
    w: FloatArray  # [classes, places]


@strict_part
def room_for_some(units: Units, ends: IntArray, pattern: Pattern, dropped: bool) -> Places:
    """As much as the held units of one of these clients take at most, or the dropped ones; none if all hold all.

    Rows are whole vectors, an odd number: a unit's numbers, a row apart, then do not crowd into a part of the cache.
    """
    most, samples = 0, 0
    for k in range(len(pattern)):
        held = pattern[k].sum()
        if held < pattern.shape[1]:
            most = max(most, pattern.shape[1] - held if dropped else held)
            samples = max(samples, ends[k] - ends[k - 1] if k else ends[k])
    width = LANES * (-(-(most + EXCHANGED) // LANES) | 1)
    p, a = aligned(samples, width, units.p), aligned(samples, width, units.p)
    return Places(p, a, aligned(units.w.shape[1], width, units.p))


@strict_part
def listed(some: Pattern, found: RowList) -> int:
    """Which they are, in order, and how many."""
    count = 0
    for j in range(len(some)):
        if some[j]:
            found[count] = j
            count += 1
    return count


@strict_part
def take(full: FloatArray, columns: RowList, count: int, taken: FloatArray) -> None:
    """The first `count` of these columns, side by side."""
    for i in range(len(full)):
        for n in range(count):
            taken[i, n] = full[i, columns[n]]


@strict_part
def put(taken: FloatArray, columns: RowList, count: int, full: FloatArray) -> None:
    """Back into `full`."""
    for i in range(len(full)):
        for n in range(count):
            full[i, columns[n]] = taken[i, n]
