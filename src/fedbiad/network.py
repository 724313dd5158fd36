"""Time on a thin uplink: how long a round takes, and how long a run takes to reach an accuracy (TTA, LTTR)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field

from fedbiad import streams
from fedbiad.arrays import FloatArray

Speed = Annotated[float, Field(gt=0, allow_inf_nan=False)]
BITS = 8e-6
"""Megabits (decimal) in a byte."""


@dataclass(frozen=True)
class Network:
    """Every client's link and pace; speeds are means over clients in Mbit/s, 1 Mbit = 10^6 bit.

    Client k's link is `uplink` and `downlink` times exp(sigma z - sigma^2 / 2), z standard normal, sigma = `spread`:
    log-normal with mean 1, drawn once a client. A share `slow_share` of the clients trains `slow_factor` times slower.
    `count` says which of the byte counts travels.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)
    uplink: Speed = 14.0
    """Mbit/s from a client to the server, mean over clients."""
    downlink: Speed = 110.6
    """Mbit/s from the server to a client, mean over clients."""
    spread: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """sigma of the log-normal factor on a client's link."""
    slow_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of clients on slow devices."""
    slow_factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 4.0
    """How many times longer these train."""
    count: Literal["encoded", "paper"] = "encoded"
    """Which count of bytes travels."""

    def upload_seconds(self, client: npt.ArrayLike, size: npt.ArrayLike, seed: int) -> FloatArray:
        """Seconds in which each client uploads `size` bytes (one number, or one a client)."""
        return BITS * np.asarray(size, np.float64) / (self.uplink * self.link_factor(client, seed))

    def download_seconds(self, client: npt.ArrayLike, size: npt.ArrayLike, seed: int) -> FloatArray:
        """Seconds in which each client downloads `size` bytes (one number, or one a client)."""
        return BITS * np.asarray(size, np.float64) / (self.downlink * self.link_factor(client, seed))

    def link_factor(self, client: npt.ArrayLike, seed: int) -> FloatArray:
        """Each client's link as a multiple of the mean link, the same for both directions and all rounds."""
        if self.spread == 0.0:
            return np.ones(np.shape(client))
        z = _each(client, lambda k: streams.stream(seed, 0, k, "link").standard_normal())
        factor: FloatArray = np.exp(self.spread * z - self.spread**2 / 2)
        return factor

    def slowness(self, client: npt.ArrayLike, seed: int) -> FloatArray:
        """The factor on each client's local training time: `slow_factor` for slow clients, else 1."""
        if self.slow_share == 0.0:
            return np.ones(np.shape(client))
        draws = _each(client, lambda k: streams.stream(seed, 0, k, "slow").random())
        return np.where(draws < self.slow_share, self.slow_factor, 1.0)


def slowest_seconds(local: npt.ArrayLike, upload: npt.ArrayLike, download: npt.ArrayLike) -> float:
    """The longest of the clients' download + local training + upload; the server waits for it."""
    return float(np.max(np.asarray(download, np.float64) + np.asarray(local) + np.asarray(upload)))


def round_seconds(local: npt.ArrayLike, upload: npt.ArrayLike, download: npt.ArrayLike, aggregation: float) -> float:
    """A round: the slowest client, then the server's aggregation."""
    return slowest_seconds(local, upload, download) + aggregation


def time_to_accuracy(records: Sequence[Mapping[str, Any]], target: float) -> float | None:
    """TTA: seconds of all rounds up to the first with at least this accuracy; None if no round reaches it."""
    elapsed = 0.0
    for record in records:
        elapsed += float(record["seconds"]["round"])
        if record["accuracy"] is not None and record["accuracy"] >= target:
            return elapsed
    return None


def lttr(records: Sequence[Mapping[str, Any]]) -> float:
    """LTTR: mean over the rounds of the mean local training time of a client, in seconds."""
    if not records:
        raise ValueError("no round, no local training time")
    return float(np.mean([record["seconds"]["local"] for record in records]))


def _each(client: npt.ArrayLike, draw: Callable[[int], float]) -> FloatArray:
    """One number a client, each from its own stream, in the shape of the ids."""
    ids = np.asarray(client)
    return np.array([draw(int(k)) for k in ids.flat], dtype=np.float64).reshape(ids.shape)
