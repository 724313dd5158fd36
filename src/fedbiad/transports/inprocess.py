"""All clients in this process, trained in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedbiad.client import LocalTraining, Updates, client_update
from fedbiad.cohort import Cohort
from fedbiad.data.base import FederatedData
from fedbiad.state import MemoryStore
from fedbiad.training.batches import LocalData
from fedbiad.transports.base import Request


@dataclass(frozen=True)
class InProcess:
    """`block` clients side by side on a leading axis; their states are kept in `store`."""

    work: LocalTraining
    data: FederatedData
    store: MemoryStore
    seed: int
    block: int = 20

    def sizes(self) -> list[int]:
        return [len(own) for own in self.data.members]

    def exchange(self, request: Request) -> Iterator[Updates]:
        for start in range(0, len(request.ids), self.block):
            ids = request.ids[start : start + self.block]
            cohort = Cohort(self.seed, request.round, ids)
            members = [self.data.members[client] for client in ids]
            visits = self.work.iterations * self.work.batch
            schedule = cohort.schedule([len(own) for own in members], visits)
            local = LocalData(self.data.inputs, self.data.targets, members, schedule, self.work.batch)
            updates = client_update(self.work, request.u, cohort, local, self.store.get(ids))
            # a client that failed keeps the state it had
            self.store.put(ids, updates.state, updates.usable)
            yield updates
