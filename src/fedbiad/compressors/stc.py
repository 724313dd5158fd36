"""STC (Sattler et al. 2019): sparse ternary compression with error feedback.

The few largest entries are sent as plus or minus their mean size; what was not sent waits in a residual.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from fedbiad.arrays import ClientState, IntArray
from fedbiad.compressors.base import Compressor, Per, Segment, pieces, put_back, taken
from fedbiad.payloads import Float32, Payload, Ternary


@dataclass(frozen=True)
class STC(Compressor):
    """A <- A + delta; send sign(A) * mean |A| at the k largest |A|; A <- A - sent.

    Differs from the paper: the difference of a whole round is compressed instead of one iteration's, the download is
    not compressed, and an entry of exactly 0, which has no sign, is never sent, so fewer than k may be.
    """

    density: Annotated[float, Field(gt=0.0, le=1.0)] = 1 / 400
    """Share of the entries sent."""
    per: Per = "tensor"
    """The largest, and their mean, of each parameter or of all kept entries."""

    def init_client(self, size: int) -> ClientState:
        """The residual A."""
        return {"residual": np.zeros(size, dtype=np.float32)}

    def compress(
        self,
        delta: Float32,
        where: IntArray,
        segments: Sequence[Segment],
        state: ClientState,
        round_: int,
        stream: np.random.Generator,
    ) -> tuple[Payload, ClientState]:
        residual = state["residual"].astype(np.float32, copy=False)
        total = taken(residual, where)
        total += delta
        own = pieces(segments, self.per, round_)
        parts = tuple(ternary(total[piece], self.density) for piece in own)
        for piece, part in zip(own, parts, strict=True):
            total[piece][part.positions] -= part.sent
        return Payload(parts, difference=True), {**state, "residual": put_back(residual, where, total)}


def ternary(total: Float32, density: float) -> Ternary:
    """The largest entries as plus or minus their mean size, accumulated in float64."""
    sizes = np.abs(total)
    positions = largest(sizes, count(density, len(total)))
    magnitude = np.float32(sizes[positions].mean(dtype=np.float64)) if len(positions) else np.float32(0)
    return Ternary(len(total), positions, total[positions] > 0, magnitude)


def count(density: float, size: int) -> int:
    """k = max(1, ceil(density n)); the product's own rounding does not add one (0.07 * 100 is 7)."""
    return max(1, math.ceil(density * size - 1e-9))


def largest(sizes: Float32, number: int) -> IntArray:
    """Ascending positions of the `number` largest sizes: of equal ones the first, of zeros none."""
    threshold = np.partition(sizes, len(sizes) - number)[len(sizes) - number]
    if threshold == 0:
        return np.flatnonzero(sizes)
    positions = np.flatnonzero(sizes >= threshold)
    surplus = len(positions) - number
    if surplus:
        equal = np.flatnonzero(sizes[positions] == threshold)
        positions = np.delete(positions, equal[-surplus:])
    return positions
