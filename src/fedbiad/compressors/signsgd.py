"""SignSGD: one bit an entry, either as a vote (Bernstein et al. 2018) or scaled with error feedback (EF-sign).

As a vote only the direction of every entry arrives; the server moves each weight by a fixed step where the majority
points. Scaled, the mean size goes along and what was lost waits in a residual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedbiad.arrays import ClientState, IntArray
from fedbiad.compressors.base import Compressor, Per, Segment, pieces, put_back, taken
from fedbiad.payloads import Float32, Payload, Signs


@dataclass(frozen=True)
class SignSGD(Compressor):
    """Send sign(delta), or sign(A + delta) * mean |A + delta| with residual A.

    Differs from the paper: the difference of a whole round is compressed instead of one gradient, and an entry of
    exactly 0 draws its sign, so that it votes for neither side on average.
    """

    mode: Literal["majority", "scaled"] = "majority"
    """A vote without magnitude or residual, or the mean size with error feedback."""
    per: Per = "tensor"
    """scaled: one mean size for each parameter, or one for all kept entries."""
    step_share: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 0.02
    """majority: the server's step as a share of the learning rate."""

    @property
    def vote_step(self) -> float | None:
        return self.step_share if self.mode == "majority" else None

    def init_client(self, size: int) -> ClientState:
        """The residual A, which a vote does not have."""
        return {"residual": np.zeros(size, dtype=np.float32)} if self.mode == "scaled" else {}

    def compress(
        self,
        delta: Float32,
        where: IntArray,
        segments: Sequence[Segment],
        state: ClientState,
        round_: int,
        stream: np.random.Generator,
    ) -> tuple[Payload, ClientState]:
        if self.mode == "majority":
            whole = pieces(segments, "model", round_)
            return Payload(tuple(Signs(signs(delta[piece], stream)) for piece in whole), difference=True), state
        residual = state["residual"].astype(np.float32, copy=False)
        total = taken(residual, where)
        total += delta
        parts = tuple(scaled(total[piece], stream) for piece in pieces(segments, self.per, round_))
        payload = Payload(parts, difference=True)
        total -= payload.values()
        return payload, {**state, "residual": put_back(residual, where, total)}


def scaled(total: Float32, stream: np.random.Generator) -> Signs:
    """Signs with the mean size, accumulated in float64."""
    return Signs(signs(total, stream), np.float32(np.abs(total).mean(dtype=np.float64)))


def signs(values: Float32, stream: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Whether each is positive; a zero is with probability 1/2."""
    positive = values > 0
    zero = np.flatnonzero(values == 0)
    positive[zero] = stream.integers(0, 2, len(zero), dtype=np.bool_)
    return positive
