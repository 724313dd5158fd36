"""Changes rounded to the nearest multiple of one step, the shortest that keeps a size: for who keeps the rest himself.

Rounding to the nearest sends far fewer entries at a given step than rounding without bias does (evidence coding): at a
given size its step is far shorter. What it leaves, at most half a step an entry, must be added to the next changes.
"""

from __future__ import annotations

import math

import numpy as np

from fedbiad.coding.multiples import multiples_bits
from fedbiad.coding.positions import Blocks
from fedbiad.errors import UpdateError
from fedbiad.payloads import LARGEST, MOST_MULTIPLE, Float32, Multiples

CLOSE = 1.01
"""A step is taken that is at most this much longer than one whose message would be too long."""
ENTRY = 3.0
"""Bits of an entry beside its place, about."""
SLOPE = 1.2
"""By how many percent a message gets shorter if the step gets one percent longer, about."""
SMALLEST = 2.0**-126
"""Steps below it lose digits."""


def nearest(change: Float32, blocks: Blocks, most: float) -> Multiples:
    """The changes as multiples of the shortest step, up to CLOSE, whose part takes `most` bits."""
    largest = float(np.abs(change).max(initial=0.0))
    if not 4 * largest <= LARGEST:
        raise UpdateError("the update holds NaN, infinite or too large values")
    found = multiples_of(change, 4 * largest)  # nothing at all
    if multiples_bits(found, blocks) > most:
        raise UpdateError(f"{max(most, 0) / 8:.0f} bytes are too few for a message without any entry")
    short, long = max(largest / (MOST_MULTIPLE - 1), SMALLEST), 4 * largest
    step, slope, before = _first_step(change, most), SLOPE, None
    while long > CLOSE * short:
        if not short < step < long:
            step = math.sqrt(short * long)
        part = multiples_of(change, step)
        bits = multiples_bits(part, blocks)
        if bits <= most:
            found, long = part, step
        else:
            short = step
        if before is not None and before[0] != step and bits != before[1]:
            slope = min(max(math.log(before[1] / bits) / math.log(step / before[0]), SLOPE / 4), 4 * SLOPE)
        before = step, bits
        # on the other side of the bound, by a third of what is close: so the last two steps tried are close
        step *= (bits / most) ** (1 / slope) * CLOSE ** (0.3 if bits > most else -0.3)
    return found


def _first_step(change: Float32, most: float) -> float:
    """Twice the change of the last entry that there is room for, if each takes its place among all and ENTRY bits."""
    count = most / (2 * ENTRY)
    for _ in range(5):
        count = most / (ENTRY + math.log2(max(len(change) / max(count, 1.0), 1.0)))
    last = len(change) - 1 - min(int(count), len(change) - 1)
    return 2 * float(np.partition(np.abs(change), last)[last])


def multiples_of(change: Float32, step: float) -> Multiples:
    """Every change as the nearest multiple of a step; of one half way, the even one."""
    sent = np.float32(step)
    whole = np.rint(change / sent).astype(np.int32) if sent else np.zeros(len(change), dtype=np.int32)
    where = np.flatnonzero(whole)
    return Multiples(len(change), sent if len(where) else np.float32(0), where, whole[where])
