"""Small loops that numpy and torch have no function for, compiled; strict sums, the same bits for every caller."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedbiad.arrays import FloatArray, IntArray, Pattern
from fedbiad.compiling import fast, strict, strict_part

Keys = npt.NDArray[np.uint64]
RowList = npt.NDArray[np.uint32]
"""Some rows or places; small numbers without a sign are the fastest to index with."""
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""What SplitMix64 goes on by (Steele et al. 2014)."""

LINE = 64
"""Bytes of a cache line."""


@strict_part
def aligned(rows: int, columns: int, like: FloatArray) -> FloatArray:
    """Zeros of the type of `like`, begun with a cache line: vectors that span two of them are slow to read."""
    room = np.zeros(rows * columns + LINE, like.dtype)
    skipped = -room.ctypes.data % LINE // like.itemsize
    return room[skipped : skipped + rows * columns].reshape(rows, columns)


@strict
def accumulate(
    total: FloatArray | npt.NDArray[np.float32], change: FloatArray | npt.NDArray[np.float32], weight: float
) -> None:
    """total += weight change, flat arrays."""
    w = total.dtype.type(weight)
    for j in range(len(total)):
        total[j] += w * change[j]


@fast
def squared_distance(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> float:
    """||one - other||^2 of flat arrays, in float64."""
    total = 0.0
    for j in range(len(one)):
        difference = np.float64(one[j]) - np.float64(other[j])
        total += difference * difference
    return total


@strict
def take_columns(full: FloatArray, columns: IntArray, taken: FloatArray) -> None:
    """Some columns of a matrix, side by side."""
    for i in range(len(full)):
        for j in range(len(columns)):
            taken[i, j] = full[i, columns[j]]


@strict
def put_columns(taken: FloatArray, columns: IntArray, full: FloatArray) -> None:
    """Back into `full`."""
    for i in range(len(full)):
        for j in range(len(columns)):
            full[i, columns[j]] = taken[i, j]


@strict
def any_within(flat: FloatArray, bound: float) -> bool:
    """Whether a number is no larger than `bound` in size."""
    limit = flat.dtype.type(bound)
    for start in range(0, len(flat), 4096):
        part, found = flat[start : start + 4096], np.int32(0)
        for j in range(len(part)):  # counted: a loop that may end early is no vector loop
            found += np.int32(abs(part[j]) <= limit)
        if found:
            return True
    return False


@strict
def accumulate_rows(total: FloatArray, change: FloatArray, rows: IntArray, weight: float) -> None:
    """total[rows] += weight change: matrices, of which `change` has only these rows."""
    w = total.dtype.type(weight)
    for i in range(len(rows)):
        row = total[rows[i]]
        for j in range(len(row)):
            row[j] += w * change[i, j]


@strict
def accumulate_held(
    total: FloatArray, changes: FloatArray, members: IntArray, rows: Pattern, columns: Pattern, weights: FloatArray
) -> None:
    """total += weights[n] changes[members[n]] for each n, in the rows of rows[n] and the columns of columns[n]."""
    for n in range(len(members)):
        change = changes[members[n]]
        for i in range(total.shape[0]):
            if not rows[n, i]:
                continue
            for j in range(total.shape[1]):
                if columns[n, j]:
                    total[i, j] += weights[n] * change[i, j]


@strict
def shift(flat: FloatArray, places: IntArray, std: float, z: npt.NDArray[np.float32]) -> None:
    """flat[places] += std z, in float64; noise that vanishes leaves the sign of a zero, too."""
    for i in range(len(places)):
        old = flat[places[i]]
        new = flat.dtype.type(np.float64(old) + std * np.float64(z[i]))
        if new != old:
            flat[places[i]] = new


@strict_part
def mixed(x: np.uint64) -> np.uint64:
    """SplitMix64's finaliser."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@strict
def hashed_pairs(
    first: np.uint64, second: np.uint64, index: IntArray,
    uniform: npt.NDArray[np.float32], angle: npt.NDArray[np.float32],
) -> None:  # fmt: skip
    """For each index a number in (0, 1] and one in [0, 2 pi], hashed from it and the two seeds.

    Hashed twice with different seeds, so that no two streams are shifts of one another.
    """
    low = np.uint64(0xFFFFFFFF)
    for i in range(len(index)):
        word = mixed((np.uint64(index[i]) + np.uint64(1)) * GOLDEN + first)
        word = mixed(word ^ second)
        uniform[i] = np.float32(np.uint32(word & low)) * np.float32(2.0**-32) + np.float32(2.0**-33)
        angle[i] = np.float32(np.uint32(word >> np.uint64(32))) * np.float32(2 * np.pi * 2.0**-32)


@strict
def shuffled_epochs(keys: Keys, sizes: IntArray, length: int) -> IntArray:
    """For each key, numbers 0 .. size-1 in random order, anew until there are `length` [keys, length].

    Fisher and Yates' shuffle with SplitMix64 begun at the key; integers only, so that every
    machine shuffles alike. A number below n is the high half of a 32-bit draw times n: even to n / 2^32.
    """
    visits = np.empty((len(keys), length), np.int64)
    for k in range(len(keys)):
        state, size = keys[k], sizes[k]
        order = np.empty(size, np.uint32)
        for start in range(0, length, size):
            state = shuffle(state, order)
            stop = min(start + size, length)
            visits[k, start:stop] = order[: stop - start]
    return visits


@strict_part
def shuffle(state: np.uint64, order: RowList) -> np.uint64:
    """0 .. size-1 in random order; the state afterwards."""
    for i in range(len(order)):
        order[i] = i
    for i in range(len(order) - 1, 0, -1):
        state += GOLDEN
        j = np.int64(((mixed(state) >> np.uint64(32)) * np.uint64(i + 1)) >> np.uint64(32))
        order[i], order[j] = order[j], order[i]
    return state


@strict
def uniforms(keys: Keys, count: int) -> FloatArray:
    """For each key `count` numbers in (0, 1), odd multiples of 2^-53, by SplitMix64 begun at the key [keys, count]."""
    drawn = np.empty((len(keys), count), np.float64)
    for k in range(len(keys)):
        draw_uniforms(keys[k], drawn[k])
    return drawn


@strict_part
def draw_uniforms(key: np.uint64, drawn: FloatArray) -> None:
    """Those of one key; exact in whatever order the compiler takes the two operations."""
    state = key
    for i in range(len(drawn)):
        state += GOLDEN
        drawn[i] = (np.float64(mixed(state) >> np.uint64(12)) + 0.5) * 2.0**-52


@strict_part
def key_of_step(key: np.uint64, step: int) -> np.uint64:
    """A key for one step of a stream."""
    return mixed(key ^ mixed(np.uint64(step + 1) * GOLDEN))


@strict
def keys_of_step(keys: Keys, step: int) -> Keys:
    """A key of this step for each of `keys`."""
    found = np.empty(len(keys), np.uint64)
    for k in range(len(keys)):
        found[k] = key_of_step(keys[k], step)
    return found


@strict
def mean_ranks(values: FloatArray) -> FloatArray:
    """The rank of each value, in (0, 1): (rank - 1/2) / n, mean 1/2; equal values share the mean of their ranks."""
    ranks = np.empty(len(values), np.float64)
    order = np.argsort(values)
    start = 0
    while start < len(values):
        stop = start + 1
        while stop < len(values) and values[order[stop]] == values[order[start]]:
            stop += 1
        for i in range(start, stop):
            ranks[order[i]] = (start + stop) / 2 / len(values)
        start = stop
    return ranks
