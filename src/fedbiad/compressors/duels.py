"""Rounding to multiples of a step, up or down by chance: each entry without bias, and all sums closely, by duels.

This is ordered pivotal sampling (Deville and Tillé 1998, Chauvet 2012) of the fractions, for either sign by itself.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedbiad.arrays import FloatArray, IntArray
from fedbiad.compiled import GOLDEN, mixed
from fedbiad.compiling import fast, strict, strict_part
from fedbiad.compressors.passed import TOGETHER, passed_by
from fedbiad.payloads import Float32

Counts = npt.NDArray[np.int32]


@strict_part
def uniform(key: int, index: int) -> float:
    """Draw `index` of a key, in [0, 1): SplitMix64, 53 bits."""
    word = mixed(np.uint64(key) + np.uint64(index + 1) * GOLDEN)
    return float(word >> np.uint64(11)) * 2.0**-53


@fast
def masses(delta: Float32 | FloatArray) -> FloatArray:
    """The sums of what is above and of what is below 0 among `TOGETHER` neighbours [groups, 2]."""
    whole = len(delta) // TOGETHER
    found = np.zeros((-(-len(delta) // TOGETHER), 2))
    for group in range(whole):
        plus, minus = np.float64(0), np.float64(0)
        for i in range(TOGETHER):  # a loop of fixed length becomes a few vector instructions
            entry = delta[group * TOGETHER + i]
            plus += entry if entry > 0 else np.float32(0)
            minus -= np.float32(0) if entry > 0 else entry
        found[group, 0], found[group, 1] = plus, minus
    for i in range(whole * TOGETHER, len(delta)):
        found[whole, 0 if delta[i] > 0 else 1] += abs(delta[i])
    return found


@strict
def rounded(delta: Float32 | FloatArray, sums: FloatArray, step: float, key: int) -> tuple[IntArray, Counts]:
    """Positions and multiples of `step` that entries are rounded to, up or down, zeros left out.

    Up with the probability of the fraction, but not each by itself: the fractions of one sign fight duels in their
    order. Of two that make up less than 1, one takes both, in proportion; of two that make up more, one is rounded up
    and the other fights on with what is left. So every fraction is met on average, and every sum over a run closely.

    Neighbours fight as one (`sums`, of `masses`), and among themselves only when they are rounded up. Who has taken all
    of a series is drawn when it meets its match.
    """
    where, found = np.empty(len(delta), dtype=np.int64), np.empty(len(delta), dtype=np.int32)
    held, taken = np.zeros(2), np.zeros(2)  # what the last fighter had, and what it or its successors have by now
    fighter, since = np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64)  # a group, or an entry e as -1 - e
    kept, draws, steps = 0, 0, 1.0 / step
    for group in range(len(sums)):
        for side in range(2):
            new, old, sign = sums[group, side] * steps, taken[side], 1 - 2 * side
            if old + new < 1.0:
                taken[side] += new  # by far the most
                continue
            luck, draws = uniform(key, draws) * old, draws + 1
            champion = _champion(sums, fighter[side], held[side], since[side], side, luck, steps)
            if new < 1.0:
                taken[side], up, fighter[side] = _duel(old, champion, new, group, uniform(key, draws))
                chosen = _entry(delta, sums[max(up, 0), side], up, side, uniform(key, draws + 1))
                kept = _put(where, found, kept, chosen, sign)
                draws += 2
            else:
                fighter[side] = champion
                for i in range(group * TOGETHER, min((group + 1) * TOGETHER, len(delta))):
                    size = steps * sign * delta[i]
                    if size > 0.0:
                        whole = int(size)
                        old, champion = taken[side], fighter[side]
                        taken[side], up, fighter[side] = _duel(old, champion, size - whole, -1 - i, uniform(key, draws))
                        if whole:
                            kept = _put(where, found, kept, i, whole * sign)
                        if old + (size - whole) >= 1.0:
                            chosen = _entry(delta, sums[max(up, 0), side], up, side, uniform(key, draws + 1))
                            kept = _put(where, found, kept, chosen, sign)
                        draws += 2
            held[side], since[side] = taken[side], group + 1
    for side in range(2):
        if uniform(key, draws) < taken[side]:
            luck = uniform(key, draws + 1) * taken[side]
            champion = _champion(sums, fighter[side], held[side], since[side], side, luck, steps)
            chosen = _entry(delta, sums[max(champion, 0), side], champion, side, uniform(key, draws + 2))
            kept = _put(where, found, kept, chosen, 1 - 2 * side)
        draws += 3
    return where[:kept].copy(), found[:kept].copy()


@strict_part
def _duel(old: float, one: int, new: float, other: int, luck: float) -> tuple[float, int, int]:
    """What is left of two fractions, who is rounded up (if they make up 1) and who fights on."""
    both = old + new
    if both < 1.0:
        return both, one, other if luck * both >= old else one
    if luck * (2.0 - both) < 1.0 - new:
        return both - 1.0, one, other
    return both - 1.0, other, one


@strict_part
def _champion(sums: FloatArray, fighter: int, held: float, since: int, side: int, luck: float, steps: float) -> int:
    """Who has taken all that fought since: the fighter or one of the groups from `since` on, in proportion."""
    luck -= held
    group, last = since, fighter
    while luck >= 0.0 and group < len(sums):
        if sums[group, side] > 0.0:
            last = group
            luck -= sums[group, side] * steps
        group += 1
    return last


@strict_part
def _entry(delta: Float32 | FloatArray, mass: float, who: int, side: int, luck: float) -> int:
    """The entry itself, or one of its group of this mass, in proportion."""
    return _of_group(delta, mass, who, side, luck) if who >= 0 else -1 - who


@strict_part
def _of_group(delta: Float32 | FloatArray, mass: float, group: int, side: int, luck: float) -> int:
    """One of a group of this mass, in proportion."""
    # one way out, for the arrays' sake: by several they would be counted, and everything waits for a count
    left, sign = luck * mass, 1 - 2 * side
    first, last = group * TOGETHER, min((group + 1) * TOGETHER, len(delta))
    chosen = first
    if last - first == TOGETHER:
        chosen += passed_by(delta, first, sign, left)
    else:
        for i in range(first, last):
            left -= max(sign * delta[i], 0.0)
            chosen += left >= 0.0
    chosen -= chosen == last  # by rounding: the last of its side
    while chosen > first and sign * delta[chosen] <= 0:
        chosen -= 1
    return chosen


@strict_part
def _put(where: IntArray, found: Counts, kept: int, entry: int, steps: int) -> int:
    """Add steps of an entry to the list in order; returns its length."""
    at = kept
    while at > 0 and where[at - 1] > entry:
        at -= 1
    if at > 0 and where[at - 1] == entry:
        found[at - 1] += steps
        return kept
    for i in range(kept, at, -1):
        where[i], found[i] = where[i - 1], found[i - 1]
    where[at], found[at] = entry, steps
    return kept + 1
