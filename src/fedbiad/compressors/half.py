"""Half precision: every difference rounded to 16 bits. Lossy, stateless, the mildest of all compressors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbiad.arrays import ClientState, IntArray
from fedbiad.compressors.base import Compressor, Segment, pieces
from fedbiad.payloads import Float32, Half, Payload

LARGEST = float(np.finfo(np.float16).max)
"""65504: differences beyond it are clipped to it."""


@dataclass(frozen=True)
class HalfPrecision(Compressor):
    """Each difference as the nearest float16; below 3e-8 that is 0. What rounding loses is not kept."""

    def compress(
        self,
        delta: Float32,
        where: IntArray,
        segments: Sequence[Segment],
        state: ClientState,
        round_: int,
        stream: np.random.Generator,
    ) -> tuple[Payload, ClientState]:
        whole = pieces(segments, "model", round_)
        parts = tuple(Half(delta[piece].clip(-LARGEST, LARGEST).astype(np.float16)) for piece in whole)
        return Payload(parts, difference=True), state
