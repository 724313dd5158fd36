"""FedPAQ (Reisizadeh et al. 2020): differences rounded at random to a few levels, without bias (QSGD's quantiser)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedbiad.arrays import ClientState, FloatArray, IntArray
from fedbiad.compiling import strict
from fedbiad.compressors.base import Compressor, Per, Segment, pieces
from fedbiad.payloads import Float32, Levels, Payload

Norm = Literal["l2", "max"]


@dataclass(frozen=True)
class FedPAQ(Compressor):
    """Q(x)_i = ||x|| sgn(x_i) xi_i with xi_i = l/s or (l+1)/s, l = floor(s |x_i| / ||x||), and E[Q(x)] = x.

    Up happens with probability s |x_i| / ||x|| - l. No residual: there is nothing lost on average.
    """

    bits: Annotated[int, Field(ge=2, le=8)] = 8
    """Bits of an entry, the sign included: s = 2^(bits-1) - 1 levels above 0."""
    norm: Norm = "l2"
    """||x||: Euclidean, or the largest size (finer levels, the same bits)."""
    per: Per = "model"
    """One norm for each parameter, or one for all kept entries."""

    @property
    def steps(self) -> int:
        """s: the largest level."""
        return int(2 ** (self.bits - 1)) - 1

    def compress(
        self,
        delta: Float32,
        where: IntArray,
        segments: Sequence[Segment],
        state: ClientState,
        round_: int,
        stream: np.random.Generator,
    ) -> tuple[Payload, ClientState]:
        own = pieces(segments, self.per, round_)
        parts = tuple(quantised(delta[piece], self.steps, self.norm, stream) for piece in own)
        return Payload(parts, difference=True), state


def quantised(values: Float32, steps: int, norm: Norm, stream: np.random.Generator) -> Levels:
    """Levels in units of norm / steps, each rounded up with the probability of its fraction."""
    scale = NORMS[norm](values)
    if scale == 0:
        return Levels(np.zeros(len(values), dtype=np.int16), steps, scale)
    levels = np.empty(len(values), dtype=np.int16)
    _round(values, float(scale), steps, stream.random(len(values)), levels)
    return Levels(levels, steps, scale)


@strict
def _round(values: Float32, scale: float, steps: int, luck: FloatArray, levels: npt.NDArray[np.int16]) -> None:
    """In float64; no size is above the scale, which is the norm as it is sent."""
    for i in range(len(values)):
        exact = abs(np.float64(values[i])) / scale * steps
        level = np.int32(exact)
        level += luck[i] < exact - level
        levels[i] = -level if values[i] < 0 else level


def euclidean(values: Float32) -> np.float32:
    """||x||_2, summed in float64 and rounded as it is sent; too large a one becomes the largest float32."""
    squares = np.square(values, dtype=np.float64)
    return np.float32(min(np.sqrt(squares.sum()), np.finfo(np.float32).max))


def maximum(values: Float32) -> np.float32:
    """||x||_max."""
    return np.float32(np.abs(values).max())


NORMS = {"l2": euclidean, "max": maximum}
