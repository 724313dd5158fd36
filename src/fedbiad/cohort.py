"""A block of clients in one round, and their random streams."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbiad import compiled, streams
from fedbiad.arrays import FloatArray, IntArray, Pattern
from fedbiad.increments import Offer


@dataclass(frozen=True)
class Cohort:
    """Clients `ids` of round `round`; what each draws depends on the seed, the round and its own id alone."""

    seed: int
    round: int
    ids: tuple[int, ...]
    assigned: Pattern | None = None
    """Rows the server sent down [clients, rows]; None: all of them."""
    present: Pattern | None = None
    """Classes in each client's own data [clients, classes]; known to the clients alone."""
    offer: Offer | None = None
    """Increments that the server sends instead of U; None: U itself to everyone."""

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, members: slice) -> Cohort:
        """Some of these clients, as the server knows them."""
        assigned = None if self.assigned is None else self.assigned[members]
        offer = None if self.offer is None else self.offer.part(members)
        return Cohort(self.seed, self.round, self.ids[members], assigned, offer=offer)

    def only(self, members: npt.NDArray[np.bool_]) -> Cohort:
        """Those of the clients [clients]; what the server sent them is left aside."""
        return Cohort(self.seed, self.round, tuple(itertools.compress(self.ids, members)))

    def knowing(self, present: Pattern) -> Cohort:
        """The same clients, with what they know of their own data."""
        return replace(self, present=present)

    def stream(self, position: int, purpose: str) -> np.random.Generator:
        """The stream of the client at `position` in this block."""
        return streams.stream(self.seed, self.round, self.ids[position], purpose)

    def keys(self, purpose: str) -> list[int]:
        """The bare key of every client's stream."""
        return [streams.key(self.seed, self.round, client, purpose) for client in self.ids]

    def luck(self, purpose: str, count: int, step: int | None = None) -> FloatArray:
        """Uniform random numbers in (0, 1), `count` for each client, of its own [clients, count]."""
        return streams.luck(self.keys(purpose), count, step)

    def order(self, purpose: str, count: int) -> IntArray:
        """Numbers below `count` in random order, for each client in its own [clients, count]."""
        return self._epochs(purpose, [count] * len(self), count)

    def schedule(self, sizes: list[int], length: int) -> IntArray:
        """Positions of the samples each client visits [clients, length]: shuffled epochs, one after another."""
        return self._epochs("batches", sizes, length)

    def _epochs(self, purpose: str, sizes: list[int], length: int) -> IntArray:
        keys = np.array(self.keys(purpose), dtype=np.uint64)
        return compiled.shuffled_epochs(keys, np.array(sizes, dtype=np.int64), length)

    def unit_masks(self, sites: dict[str, int], batch: int, rate: float, step: int) -> dict[str, Tensor]:
        """Ordinary dropout: for each site 0 or 1/(1-rate) per client, sample and unit [clients, batch, units]."""
        if rate == 0.0:
            return {}
        generators = [self.stream(i, f"dropout/{step}") for i in range(len(self))]
        masks = {}
        for site, units in sites.items():
            kept = np.stack([stream.random((batch, units), dtype=np.float32) >= rate for stream in generators])
            masks[site] = torch.from_numpy(kept).float() / (1.0 - rate)
        return masks
