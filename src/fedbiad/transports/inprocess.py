"""All clients in this process, trained block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedbiad.state import Store
from fedbiad.transports.base import Request, Updates
from fedbiad.transports.block import BlockTraining


@dataclass(frozen=True)
class InProcess:
    """`block` clients side by side on a leading axis; their states are kept in `store`."""

    training: BlockTraining
    store: Store
    seed: int
    block: int = 20

    @property
    def num_clients(self) -> int:
        return self.training.data.num_clients

    def close(self) -> None:
        """Nothing was started."""

    def exchange(self, request: Request) -> Iterator[Updates]:
        asked = request.cohort(self.seed)
        for start in range(0, len(request.ids), self.block):
            cohort = asked.part(slice(start, start + self.block))
            updates, states = self.training.train(request.u, cohort, self.store.lend(cohort.ids))
            self.store.take(states)
            yield updates
