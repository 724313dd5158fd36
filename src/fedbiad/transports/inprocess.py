"""All clients in this process, trained in blocks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedbiad.client import LocalTraining, Trained, client_update
from fedbiad.cohort import Cohort
from fedbiad.data.base import ClientData
from fedbiad.sending import Arrived, Channel
from fedbiad.state import MemoryStore
from fedbiad.transports.base import Request, Updates, Watched


@dataclass(frozen=True)
class InProcess:
    """`block` clients side by side on a leading axis; their states are kept in `store`."""

    work: LocalTraining
    data: ClientData
    store: MemoryStore
    seed: int
    channel: Channel
    block: int = 20
    watch: int | None = None
    """A client whose rounds are looked at closely."""

    def sizes(self) -> list[int]:
        return list(self.data.sizes)

    def exchange(self, request: Request) -> Iterator[Updates]:
        asked = Cohort(self.seed, request.round, request.ids, request.assigned)
        for start in range(0, len(request.ids), self.block):
            cohort = asked.part(slice(start, start + self.block))
            yield self._block(request, cohort)

    def _block(self, request: Request, cohort: Cohort) -> Updates:
        sizes = self.data.sizes
        received, download = self.channel.download(request.u, cohort)
        began = time.perf_counter()
        local = self.data.local(cohort, self.work.iterations, self.work.batch)
        own = cohort.knowing(local.present(self.data.classes))
        trained = client_update(self.work, received, own, local, self.store.get(cohort.ids))
        arrived = self.channel.upload(
            request.u, own, trained, [sizes[client] for client in cohort.ids], self.store.remembered
        )
        seconds = (time.perf_counter() - began) / len(cohort)
        # a client that failed keeps the state it had
        kept = np.zeros(len(cohort), dtype=np.bool_)
        kept[arrived.members] = True
        self.store.put(cohort.ids, trained.state, kept)
        for client, parts in arrived.remembered.items():
            self.store.remember(client, parts)
        good = arrived.members
        return Updates(
            cohort.ids, tuple(cohort.ids[i] for i in good), arrived.pattern, arrived.u, arrived.loss,
            np.full(len(good), trained.checks), trained.resampled[good].sum(1), arrived.upload, download,
            np.full(len(good), seconds), arrived.failed, trained.noise_drawn, trained.noise_weights,
            self._watched(cohort, trained, arrived),
        )  # fmt: skip

    def _watched(self, cohort: Cohort, trained: Trained, arrived: Arrived) -> Watched | None:
        if self.watch not in cohort.ids or cohort.ids.index(self.watch) not in arrived.members:
            return None
        i = cohort.ids.index(self.watch)
        score = trained.state.get("score")
        return Watched(
            self.watch, trained.losses[i].tolist(), np.flatnonzero(trained.resampled[i]).tolist(),
            None if score is None else score[i].tolist(),
        )  # fmt: skip
