"""How requests reach clients and updates come back; the round loop knows nothing else about clients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from fedbiad.aggregation import Total
from fedbiad.arrays import FloatArray, IntArray, Params, Pattern
from fedbiad.cohort import Cohort
from fedbiad.increments import Offer


@dataclass(frozen=True)
class Request:
    """What the server sends out in round r: U_{r-1}, to the clients selected, of it the rows assigned to each."""

    round: int
    u: Params
    ids: tuple[int, ...]
    assigned: Pattern | None = None
    offer: Offer | None = None

    def cohort(self, seed: int) -> Cohort:
        """The clients asked, as the server knows them."""
        return Cohort(seed, self.round, self.ids, self.assigned, offer=self.offer)


@dataclass(frozen=True)
class Counts:
    """Bytes of each client [clients], by three names.

    `paper`: 32-bit values, 64-bit positions, 1-bit labels; `encoded`: the length of the real message; `transport`:
    what a network engine sent for it, if there is one.
    """

    paper: IntArray
    encoded: IntArray
    transport: IntArray | None = None

    def total(self) -> dict[str, int | None]:
        """The sums over the clients."""
        sent = None if self.transport is None else int(self.transport.sum())
        return {"paper": int(self.paper.sum()), "encoded": int(self.encoded.sum()), "transport": sent}


@dataclass(frozen=True)
class Watched:
    """A round of one client, looked at closely."""

    client: int
    losses: list[float]
    resampled_at: list[int]
    """Iterations after which the pattern was changed."""
    score: list[float] | None
    """E^k after the round."""


@dataclass(frozen=True)
class Updates:
    """What the server receives of a block of clients, and what is told about how it went; arrays [clients]."""

    asked: tuple[int, ...]
    ids: tuple[int, ...]  # of those asked, the ones whose reply arrived whole
    pattern: Pattern  # rows uploaded [clients, rows]
    total: Total | None  # the sums over those that arrived
    loss: FloatArray  # mean of the local iterations
    checks: IntArray  # of the loss trend
    resampled: IntArray  # checks after which the pattern was changed
    upload: Counts
    download: Counts  # of all clients asked, also of those that failed
    local_seconds: FloatArray
    failed: dict[int, str] = field(default_factory=dict)
    """Clients left out, and why."""
    noise_drawn: int = 0
    noise_weights: int = 0
    watched: Watched | None = None
    blocks: int = 1
    """How many blocks `total` sums: this one and those before it, which come without."""
    error: FloatArray | None = None
    """||what arrived - what was learned||^2, where a compressor stands between them; no server knows it."""

    def without_sums(self) -> Updates:
        """What is told about it, without what was sent."""
        return replace(self, total=None)

    @property
    def arrived(self) -> Pattern:
        """Which of those asked arrived [asked]."""
        return np.isin(self.asked, self.ids) if self.failed else np.ones(len(self.asked), dtype=np.bool_)


class Transport(Protocol):
    """A way to the clients."""

    @property
    def num_clients(self) -> int:
        """How many clients are registered."""
        ...

    def exchange(self, request: Request) -> Iterator[Updates]:
        """Send a request; yield the updates block by block, in the order of the ids."""
        ...
