"""DGC (Lin et al. 2018): deep gradient compression.

A client adds its differences, with momentum, to an accumulator and sends only the largest entries of it. Biases are
few and go whole; the density falls over the first rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated

import numpy as np
from pydantic import Field

from fedbiad.arrays import ClientState, IntArray
from fedbiad.compressors.base import Compressor, Per, Segment, pieces, put_back, taken
from fedbiad.compressors.stc import count, largest
from fedbiad.payloads import Dense, Float32, Payload, Sparse

Density = Annotated[float, Field(gt=0.0, le=1.0)]


@dataclass(frozen=True)
class DGC(Compressor):
    """u <- m u + g; v <- v + u; send the k largest |v|, then zero v and u where it was sent.

    Differs from the paper: g is the difference of a whole round; the k largest are found exactly, where the authors'
    code estimates a threshold from a sample; entries of exactly 0 are never sent; biases have no momentum.
    """

    density: Density = 0.001
    """Share of the entries sent after the warm-up."""
    warmup: tuple[Density, ...] = (0.25, 0.0625, 0.015625, 0.004)
    """Densities of rounds 1, 2, ... of the run, whenever a client first takes part; () = no warm-up."""
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    """m."""
    nesterov: bool = False
    """u <- m (u + g); v <- v + u + g."""
    factor_masking: bool = True
    """Whether u is zeroed along with v, so that stale momentum does not push on."""
    clip: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] | None = None
    """Largest norm of a client's whole difference before it is accumulated; None = not clipped.

    The paper divides the threshold for all workers by the root of their number; here it is the client's own.
    Off by default: no threshold for gradients says what is large for a round of training.
    """
    per: Per = "tensor"
    """The largest of each parameter, or of all kept entries."""
    dense_biases: bool = True
    """Parameters of one axis: send their whole difference and remember nothing of them, or treat them like the rest."""

    def density_of(self, round_: int) -> float:
        """The share sent in round 1, 2, ..."""
        return self.warmup[round_ - 1] if round_ <= len(self.warmup) else self.density

    def init_client(self, size: int) -> ClientState:
        """u and v."""
        return {name: np.zeros(size, dtype=np.float32) for name in ("momentum", "accumulator")}

    def compress(
        self,
        delta: Float32,
        where: IntArray,
        segments: Sequence[Segment],
        state: ClientState,
        round_: int,
        stream: np.random.Generator,
    ) -> tuple[Payload, ClientState]:
        pieces(segments, self.per, round_)  # refuses an empty set
        memory = {name: state[name].astype(np.float32, copy=False) for name in ("momentum", "accumulator")}
        g = clipped(delta, self.clip)
        u, v = self.accumulated(g, *(taken(full, where) for full in memory.values()))
        runs = self.runs(segments)
        for run, dense in runs:
            if dense:
                u[run], v[run] = 0, 0
        sent = self.chosen(np.abs(v), runs, self.density_of(round_))
        parts = tuple(Dense(g[run].copy()) if dense else sparse(v, run, sent) for run, dense in runs)
        v[sent] = 0
        if self.factor_masking:
            u[sent] = 0
        after = {name: put_back(full, where, kept) for (name, full), kept in zip(memory.items(), (u, v), strict=True)}
        return Payload(parts, difference=True), {**state, **after}

    def accumulated(self, g: Float32, u: Float32, v: Float32) -> tuple[Float32, Float32]:
        """u and v after the difference g, in place."""
        if self.nesterov:
            u += g
            u *= np.float32(self.momentum)
            v += u
            v += g
        else:
            u *= np.float32(self.momentum)
            u += g
            v += u
        return u, v

    def runs(self, segments: Sequence[Segment]) -> list[tuple[slice, bool]]:
        """The parts of the message: runs of kept entries in order, and whether each goes whole."""
        own = [(segment.entries, self.dense_biases and segment.dims == 1) for segment in segments if segment.size]
        if self.per == "tensor":
            return own
        alike = [(dense, [run for run, _ in group]) for dense, group in groupby(own, key=lambda run: run[1])]
        return [(slice(runs[0].start, runs[-1].stop), dense) for dense, runs in alike]

    def chosen(self, sizes: Float32, runs: Sequence[tuple[slice, bool]], density: float) -> IntArray:
        """Ascending positions of the entries sent one by one; sizes are 0 where a run goes whole."""
        thin = [run for run, dense in runs if not dense]
        if not thin:
            return np.zeros(0, dtype=np.int64)
        if self.per == "model":
            return largest(sizes, count(density, sum(run.stop - run.start for run in thin)))
        return np.concatenate([run.start + largest(sizes[run], count(density, run.stop - run.start)) for run in thin])


def clipped(delta: Float32, limit: float | None) -> Float32:
    """The difference, scaled down to the norm `limit` if its own is larger."""
    if limit is None:
        return delta
    norm = float(np.sqrt(np.square(delta, dtype=np.float64).sum()))
    return delta * np.float32(limit / norm) if norm > limit else delta


def sparse(v: Float32, run: slice, sent: IntArray) -> Sparse:
    """What is sent of one run."""
    first, last = np.searchsorted(sent, (run.start, run.stop))
    own = sent[first:last]
    return Sparse(run.stop - run.start, own - run.start, v[own])
