"""Blocks of clients in several processes of this machine, one thread each; this one is the first of them.

Data, U and the sums of the blocks stand in shared memory. Which process trains a block changes nothing: the sums are
added in the order of the blocks. A process that dies is replaced, and its block trained again.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait

import torch
from torch import multiprocessing

from fedbiad.aggregation import Total
from fedbiad.arrays import Params
from fedbiad.cohort import Cohort
from fedbiad.errors import RunError
from fedbiad.state import States, Store
from fedbiad.transports.base import Request, Updates
from fedbiad.transports.block import BlockTraining
from fedbiad.transports.packing import Arrays, arrays, tensors

AHEAD = 2
"""Blocks handed out to each other process: one to train, one to go on with while this one is at a block of its own."""
DEATHS = 5
"""After so many deaths of a process without a block in between, the run ends."""


@dataclass(frozen=True)
class _Sums:
    """A total whose changes stand in shared memory."""

    holders: Arrays
    weight: float
    known: Arrays


_Trained = tuple[Updates, States, _Sums]
_Done = tuple[Updates, States, _Sums | None]
"""Without sums of its own where the updates have them: trained by this process."""


class Workers:
    """`workers` processes, this one among them; clients' states are kept in `store`, in this one."""

    def __init__(self, training: BlockTraining, store: Store, seed: int, block: int, workers: int) -> None:
        self.training, self.store, self.seed, self.block, self.workers = training, store, seed, block, workers
        self._u: Params = {}
        self._slots: list[Params] = []
        self._crew: list[_Worker] = []

    @property
    def num_clients(self) -> int:
        """How many clients are registered."""
        return self.training.data.num_clients

    def exchange(self, request: Request) -> Iterator[Updates]:
        """Train the blocks side by side; yield them in order."""
        self._share(request.u)
        asked = request.cohort(self.seed)
        cohorts = [asked.part(slice(i, i + self.block)) for i in range(0, len(asked), self.block)]
        waiting, done, fatal = deque(range(len(cohorts))), dict[int, _Done](), set[int]()
        deaths = 0
        for i, cohort in enumerate(cohorts):
            while i not in done:
                free = i + len(self._slots)
                # a block with which a process died is none for this one, which nobody would replace
                own = next((j for j in waiting if j < free and j not in fatal), None)
                if own is not None:
                    waiting.remove(own)
                self._hand_out(cohorts, waiting, free)
                if own is not None:
                    done[own] = *self.training.train(request.u, cohorts[own], self.store.lend(cohorts[own].ids)), None
                answers, lost = self._answers(patient=own is None)
                done.update(answers)
                deaths = 0 if answers else deaths + len(lost)
                if deaths > DEATHS:
                    raise RunError(_dying(request.round, cohort))
                waiting.extendleft(sorted(lost, reverse=True))
                fatal.update(lost)
            updates, states, sums = done.pop(i)
            self.store.take(states)
            yield updates if sums is None else replace(updates, total=self._total(sums, i))

    def _total(self, sums: _Sums, i: int) -> Total:
        """The sums of block i, in their place until that is handed out again."""
        moved = self._slots[i % len(self._slots)]
        return Total(moved, tensors(sums.holders), sums.weight, tensors(sums.known))

    def processes(self) -> list[int]:
        """The numbers of the others, as the system knows them."""
        return [worker.process.pid for worker in self._crew if worker.process.pid is not None]

    def close(self) -> None:
        """End the processes, whatever they are at."""
        for worker in self._crew:
            worker.end()
        self._crew = []

    def _hand_out(self, cohorts: list[Cohort], waiting: deque[int], free: int) -> None:
        """Blocks below `free`, whose sums have a place, to those that have least to do; a second one only if there is
        one for everybody.

        First come the first processes, so that with a block for each every process sees much the same clients round
        after round, whose Gram matrices and strips it has.
        """
        while waiting and waiting[0] < free:
            worker = min(self._crew, key=lambda worker: len(worker.blocks))
            if len(worker.blocks) >= AHEAD or (worker.blocks and len(waiting) < self.workers):
                return
            i = waiting.popleft()
            worker.hand(i, i % len(self._slots), cohorts[i], self.store.lend(cohorts[i].ids))

    def _answers(self, patient: bool) -> tuple[dict[int, _Done], list[int]]:
        """Blocks that were trained, and blocks whose process died, if there are any; who died is replaced.

        If `patient`, wait for one.
        """
        answers: dict[int, _Done] = {}
        lost: list[int] = []
        ends = [end for worker in self._crew for end in (worker.pipe, worker.process.sentinel)]
        wait(ends, None if patient else 0)
        for place, worker in enumerate(self._crew):
            try:
                while worker.blocks and worker.pipe.poll():
                    i, answer = worker.pipe.recv()
                    if isinstance(answer, Exception):
                        raise answer
                    answers[i] = answer
                    worker.blocks.remove(i)
                alive = worker.process.is_alive()
            except (EOFError, OSError, pickle.UnpicklingError):  # it died, perhaps in the middle of an answer
                alive = False
            if not alive:
                lost += worker.blocks
                worker.end()
                self._crew[place] = self._new()
        return answers, lost

    def _share(self, u: Params) -> None:
        """Put U where every process sees it; none is at work between rounds."""
        if not self._u:
            self._u = _shared(u)
            self._slots = [_shared(u) for _ in range(AHEAD * self.workers)]
        for name, value in u.items():
            self._u[name].copy_(value)
        self._crew = self._crew or [self._new() for _ in range(self.workers - 1)]

    def _new(self) -> _Worker:
        return _Worker((self.training, self._u, self._slots))


class _Worker:
    """A process, the way to it, and the blocks it was handed, in order."""

    def __init__(self, known: tuple[BlockTraining, Params, list[Params]]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=_work, args=(there, *known), daemon=True)
        self.process.start()
        there.close()
        self.blocks: list[int] = []

    def hand(self, i: int, slot: int, cohort: Cohort, states: States) -> None:
        """One more block; a process that is gone is found when answers are looked for."""
        self.blocks.append(i)
        with contextlib.suppress(OSError):
            self.pipe.send((i, slot, cohort, states))

    def end(self) -> None:
        """End the process."""
        self.pipe.close()
        self.process.terminate()
        self.process.join()


def _shared(u: Params) -> Params:
    return {name: value.clone().share_memory_() for name, value in u.items()}  # type: ignore[no-untyped-call]


def _dying(round_: int, cohort: Cohort) -> str:
    return (
        f"round {round_}: the process that trains clients {cohort.ids[0]} to {cohort.ids[-1]} dies again and again "
        "(out of memory?); use fewer engine.workers or a smaller engine.block, and start runs of a script of your own "
        "below `if __name__ == '__main__':`"
    )


# ---------------------------------------------------------------------- in the processes


def _work(pipe: Connection, training: BlockTraining, u: Params, slots: Sequence[Params]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process alone decides what an interrupt means
    torch.set_num_threads(1)
    if hasattr(os, "SCHED_BATCH"):  # being woken must not take the core from the process that is handing out blocks
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with contextlib.suppress(EOFError, OSError):  # the first process is gone
        while True:
            i, slot, cohort, states = pipe.recv()
            try:
                answer: _Trained | Exception = _train(training, u, slots[slot], cohort, states)
            except Exception as error:  # to be raised where the run is
                answer = error
            pipe.send((i, answer))


def _train(training: BlockTraining, u: Params, slot: Params, cohort: Cohort, states: States) -> _Trained:
    updates, after = training.train(u, cohort, states)
    total = updates.total
    if total is None:
        raise RunError("a block without sums")
    for name, place in slot.items():
        place.copy_(total.moved[name])
    sums = _Sums(arrays(total.holders), total.weight, arrays(total.known))
    return updates.without_sums(), after, sums
