"""A block of clients trained side by side: what every engine runs, wherever it runs it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from fedbiad.arrays import Params
from fedbiad.client import LocalTraining, Trained, client_update
from fedbiad.cohort import Cohort
from fedbiad.data.base import ClientData
from fedbiad.sending import Arrived, Channel, Senders
from fedbiad.state import States
from fedbiad.transports.base import Updates, Watched


@dataclass(frozen=True)
class BlockTraining:
    """All that is told once about the clients of a run: their work, their data, their way to the server."""

    work: LocalTraining
    data: ClientData
    channel: Channel
    alike: bool = False
    """All clients weigh the same in the mean, instead of |D^k|."""
    watch: int | None = None
    """A client whose rounds are looked at closely."""
    warm: list[bool] = field(default_factory=list, init=False, repr=False, compare=False)
    """Empty until this process has trained a client."""

    def train(self, u: Params, cohort: Cohort, states: States) -> tuple[Updates, States]:
        """A round of these clients from U_{r-1} and their states, and the states of those that arrived after it.

        In each process the first client of all trains once more before, to no effect: compiled code is made, or loaded,
        without a clock. Times would tell of that else, not of training.
        """
        if not self.warm:
            first = slice(0, 1)
            self._round(u, cohort.part(first), states.part(first))
            self.warm.append(True)
        return self._round(u, cohort, states)

    def _round(self, u: Params, cohort: Cohort, states: States) -> tuple[Updates, States]:
        received, download = self.channel.download(u, cohort)
        began = time.perf_counter()
        own, trained, senders = self.local(received, cohort, states)
        arrived = self.channel.upload(own, trained, senders)
        seconds = (time.perf_counter() - began) / len(cohort)
        good = arrived.members
        ids = tuple(cohort.ids[i] for i in good)
        updates = Updates(
            cohort.ids, ids, arrived.pattern, arrived.total, arrived.loss,
            np.full(len(good), trained.checks), trained.resampled[good].sum(1), arrived.upload, download,
            np.full(len(good), seconds), arrived.failed, trained.noise_drawn, trained.noise_weights,
            self._watched(cohort, trained, arrived), error=arrived.error,
        )  # fmt: skip
        # a client that failed keeps the state it had
        return updates, States(ids, {name: part[good] for name, part in trained.state.items()}, arrived.remembered)

    def local(self, received: Params, cohort: Cohort, states: States) -> tuple[Cohort, Trained, Senders]:
        """Local training alone, before anything is sent; the clients come with what they know of themselves."""
        samples = self.data.sizes[list(cohort.ids)].tolist()
        local = self.data.local(cohort, self.work.iterations, self.work.batch)
        own = cohort.knowing(local.present(self.data.classes)) if self.work.method.looks_at_classes else cohort
        trained = client_update(self.work, received, own, local, states.own)
        weights, words = [1] * len(samples) if self.alike else samples, self.channel.layout.num_words
        present = local.present(words) if words else None
        return own, trained, Senders(samples, weights, states.remembered, present)

    def _watched(self, cohort: Cohort, trained: Trained, arrived: Arrived) -> Watched | None:
        if self.watch not in cohort.ids or cohort.ids.index(self.watch) not in arrived.members:
            return None
        i = cohort.ids.index(self.watch)
        score = trained.state.get("score")
        return Watched(
            self.watch, trained.losses[i].tolist(), np.flatnonzero(trained.resampled[i]).tolist(),
            None if score is None else score[i].tolist(),
        )  # fmt: skip
