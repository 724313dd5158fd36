"""A floor under the probability of being sent: weights that changed little are sent now and then, up or down.

What is sent says less about who has what (docs/privacy.md), and on average it is still the change.
"""

from __future__ import annotations

import numpy as np

from fedbiad.arrays import FloatArray, IntArray
from fedbiad.compiled import mixed
from fedbiad.compressors.duels import Counts, masses, rounded
from fedbiad.payloads import Float32


def up_and_down(delta: Float32, step: float, floor: float) -> tuple[FloatArray, FloatArray]:
    """How much of every entry is to be rounded up, and how much down, each by chances of its own [n].

    In steps, the one less the other is the change a, and both together are not 0 with the probability of the floor,
    where that is above |a|: for x on the weaker side, x + (x + |a|) - 2 x (x + |a|) = floor.
    """
    sizes = np.abs(delta.astype(np.float64))
    parts = np.minimum(sizes / step, floor)  # to entries that are sent often enough nothing is added
    weaker = step * (floor - parts) / (1 - parts + np.sqrt(1 + parts**2 - 2 * floor))
    stronger = sizes + weaker
    return np.where(delta > 0, stronger, weaker), np.where(delta > 0, weaker, stronger)


def rounded_with_decoys(delta: Float32, step: float, floor: float, key: int) -> tuple[IntArray, Counts]:
    """As `duels.rounded`, but every entry is sent with at least the probability `floor`."""
    up, down = up_and_down(delta, step, floor)
    found = np.zeros(len(delta), dtype=np.int32)
    for side, own in ((up, key), (-down, int(mixed(np.uint64(key))) >> 1)):
        positions, multiples = rounded(side, masses(side), step, own)
        found[positions] += multiples
    sent = np.flatnonzero(found)
    return sent, found[sent]
