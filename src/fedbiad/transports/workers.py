"""Blocks of clients in several processes of this machine, one thread each.

Data, U and the sums of the blocks stand in shared memory. Which process trains a block changes nothing: the sums are
added in the order of the blocks. A process that dies is replaced, and its block trained again.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, multiprocessing

from fedbiad.aggregation import Total
from fedbiad.arrays import Params
from fedbiad.cohort import Cohort
from fedbiad.errors import RunError
from fedbiad.state import States, Store
from fedbiad.transports.base import Request, Updates
from fedbiad.transports.block import BlockTraining
from fedbiad.transports.packing import Arrays, arrays, tensors

AHEAD = 2
"""Blocks handed out for each process: one to train, one to go on with."""
DEATHS = 5
"""After so many deaths of a process without a block in between, the run ends."""


@dataclass(frozen=True)
class _Sums:
    """A total whose changes stand in shared memory."""

    holders: Arrays
    weight: float
    known: Arrays


class Workers:
    """`workers` processes; clients' states are kept in `store`, in this one."""

    def __init__(self, training: BlockTraining, store: Store, seed: int, block: int, workers: int) -> None:
        self.training, self.store, self.seed, self.block, self.workers = training, store, seed, block, workers
        self._u: Params = {}
        self._slots: list[Params] = []
        self._pool: ProcessPoolExecutor | None = None

    @property
    def num_clients(self) -> int:
        """How many clients are registered."""
        return self.training.data.num_clients

    def exchange(self, request: Request) -> Iterator[Updates]:
        """Train the blocks side by side; yield them in order."""
        self._share(request.u)
        asked = Cohort(self.seed, request.round, request.ids, request.assigned)
        cohorts = [asked.part(slice(i, i + self.block)) for i in range(0, len(asked), self.block)]
        tasks: dict[int, Future[tuple[Updates, States, _Sums]]] = {}
        deaths = 0
        for i, cohort in enumerate(cohorts):
            while True:
                try:
                    for j in range(i, min(i + len(self._slots), len(cohorts))):
                        if j not in tasks:
                            tasks[j] = self._submit(j % len(self._slots), cohorts[j])
                    updates, states, sums = tasks.pop(i).result()
                    break
                except BrokenProcessPool:
                    deaths += 1
                    if deaths > DEATHS:
                        raise RunError(_dying(request.round, cohort)) from None
                    tasks = {j: task for j, task in tasks.items() if task.done() and task.exception() is None}
                    self._close_pool()
            deaths = 0
            self.store.take(states)
            moved = {name: value.clone() for name, value in self._slots[i % len(self._slots)].items()}
            total = Total(moved, tensors(sums.holders), sums.weight, tensors(sums.known))
            yield replace(updates, total=total)

    def processes(self) -> list[int]:
        """Their numbers, as the system knows them."""
        return [child.pid for child in multiprocessing.active_children() if child.pid is not None]

    def close(self) -> None:
        """End the processes."""
        self._close_pool()

    def _submit(self, slot: int, cohort: Cohort) -> Future[tuple[Updates, States, _Sums]]:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.workers, multiprocessing.get_context("spawn"), _begin, (self.training, self._u, self._slots)
            )
        return self._pool.submit(_train, slot, cohort, self.store.lend(cohort.ids))

    def _share(self, u: Params) -> None:
        """Put U where every process sees it; none is at work between rounds."""
        if not self._u:
            self._u = _shared(u)
            self._slots = [_shared(u) for _ in range(AHEAD * self.workers)]
        for name, value in u.items():
            self._u[name].copy_(value)

    def _close_pool(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


def _shared(u: Params) -> Params:
    return {name: value.clone().share_memory_() for name, value in u.items()}  # type: ignore[no-untyped-call]


def _dying(round_: int, cohort: Cohort) -> str:
    return (
        f"round {round_}: the process that trains clients {cohort.ids[0]} to {cohort.ids[-1]} dies again and again "
        "(out of memory?); use fewer engine.workers or a smaller engine.block"
    )


# ---------------------------------------------------------------------- in the processes

_here: dict[str, Any] = {}


def _begin(training: BlockTraining, u: Params, slots: Sequence[Params]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process alone decides what an interrupt means
    torch.set_num_threads(1)
    _here.update(training=training, u=u, slots=slots)


def _train(slot: int, cohort: Cohort, states: States) -> tuple[Updates, States, _Sums]:
    training: BlockTraining = _here["training"]
    u: dict[str, Tensor] = _here["u"]
    updates, after = training.train(u, cohort, states)
    total = updates.total
    if total is None:
        raise RunError("a block without sums")
    for name, place in _here["slots"][slot].items():
        place.copy_(total.moved[name])
    sums = _Sums(arrays(total.holders), total.weight, arrays(total.known))
    return updates.without_sums(), after, sums
