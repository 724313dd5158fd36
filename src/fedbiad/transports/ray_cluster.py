"""Blocks of clients on the nodes of a Ray cluster.

The run is put into Ray's object store once, U once a round; clients' states travel with their blocks and are kept here.
Blocks are trained twig by twig and added up on their node, branch by branch: one sum a branch travels. Where a block
is trained changes nothing. What dies with a process or a node is trained again.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedbiad.cohort import Cohort
from fedbiad.errors import FedbiadError, RunError
from fedbiad.state import States, Store
from fedbiad.transports.base import Request, Updates
from fedbiad.transports.block import BlockTraining
from fedbiad.transports.branches import Cut
from fedbiad.transports.packing import arrays, pack
from fedbiad.transports.ray_tasks import Sums, add_twigs, train_twig

AHEAD = 2
"""Branches handed out for each node: one to train, one to go on with."""
RETRIES = 3
"""How often Ray by itself starts a task again whose process or node died."""
DEATHS = 2
"""How often a branch that Ray gave up is handed out again."""

Branch = list[Sequence[Cohort]]
"""The twigs of a branch."""


class RayCluster:
    """Blocks on the Ray cluster at `address`, or on one of this machine alone that lives as long as this object.

    A Ray that is already connected to is used as it is. `cut` is chosen to fit the cluster, if not given.
    """

    def __init__(
        self,
        training: BlockTraining,
        store: Store,
        seed: int,
        block: int,
        address: str | None = None,
        cut: Cut | None = None,
    ) -> None:
        self.training, self.store, self.seed, self.block, self.cut = training, store, seed, block, cut
        self._ray = _import_ray()
        self._connected = not self._ray.is_initialized()
        if self._connected:
            _connect(self._ray, address)
        # put by this process, whose node holds it for as long as it lives
        packed = self._ray.put(pack(training, self._ray.cloudpickle.Pickler))
        task = {"num_cpus": 1, "max_retries": RETRIES}
        train, add = self._ray.remote(num_returns=3, **task)(train_twig), self._ray.remote(**task)(add_twigs)
        self._run = _Run(self._ray, packed, train, add)

    @property
    def num_clients(self) -> int:
        """How many clients are registered."""
        return self.training.data.num_clients

    def exchange(self, request: Request) -> Iterator[Updates]:
        """Train the branches on the nodes; yield their blocks in order."""
        asked = request.cohort(self.seed)
        blocks = [asked.part(slice(i, i + self.block)) for i in range(0, len(asked), self.block)]
        cpus = self._cpus()
        cut = self.cut or Cut.fitting(len(blocks), list(cpus.values()))
        here = _Round(self._run, self.store, self._ray.put(arrays(request.u)), cpus, cut.branches(blocks))
        try:
            for i in range(len(here.branches)):
                told, states, sums = self._arrived(here, i)
                for after in states:
                    self.store.take(_kept(after))
                yield from told[:-1]
                yield replace(told[-1], total=sums.total(), blocks=sums.blocks)
        finally:
            here.cancel()

    def close(self) -> None:
        """Leave the cluster; a local one ends."""
        if self._connected:
            self._connected = False
            self._ray.shutdown()

    def _cpus(self) -> dict[str, int]:
        """The CPUs of every node that is alive and has any."""
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        found = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in nodes}
        usable = {node: cpus for node, cpus in found.items() if cpus}
        if not usable:
            raise RunError(f"none of {len(nodes)} Ray nodes has a CPU; add one with `ray start --address HOST:PORT`")
        return usable

    def _arrived(self, here: _Round, i: int) -> tuple[list[Updates], list[States], Sums]:
        """What came of a branch; handed out again if it was lost, a few times."""
        lost = self._ray.exceptions
        for _ in range(1 + DEATHS):
            try:
                return here.result(i)
            except lost.RayTaskError as error:
                if isinstance(error.cause, FedbiadError):
                    raise error.cause from None
                if not isinstance(error.cause, lost.RayError):
                    raise
                last = error.cause
            except (
                lost.WorkerCrashedError, lost.NodeDiedError, lost.ObjectLostError, lost.OutOfMemoryError
            ) as error:  # fmt: skip
                last = error
            here.forget(i)
        first, final = here.branches[i][0][0], here.branches[i][-1][-1]
        why = str(last).strip().partition("\n")[0]
        raise RunError(
            f"round {first.round}: clients {first.ids[0]} to {final.ids[-1]} cannot be trained, their process or node "
            f"dies again and again ({why}); use a smaller engine.block, or nodes with more memory"
        )


@dataclass(frozen=True)
class _Run:
    """What stands in the cluster from the first round to the last."""

    ray: Any
    packed: Any
    train: Any
    add: Any


@dataclass(frozen=True)
class _Sent:
    """A branch under way: its node, what its twigs tell and remember, and its sum."""

    node: str
    blocks: int
    told: list[Any]
    states: list[Any]
    sums: Any


class _Round:
    """The branches of a round: which are under way, and where."""

    def __init__(self, run: _Run, store: Store, u: Any, cpus: dict[str, int], branches: list[Branch]) -> None:
        self.branches = branches
        self._ray, self._run, self._store, self._u, self._cpus = run.ray, run, store, u, cpus
        self._sent: dict[int, _Sent] = {}
        self._busy: set[int] = set()
        self._next = 0

    def result(self, i: int) -> tuple[list[Updates], list[States], Sums]:
        """What came of a branch; meanwhile every node that is done with one is given another."""
        if i not in self._sent:
            self._send(i)
        while i in self._busy:
            self._fill()
            places = {self._sent[j].sums: j for j in self._busy}
            done, _ = self._ray.wait(list(places), num_returns=1, fetch_local=False)
            self._busy -= {places[sums] for sums in done}
        sent = self._sent[i]
        told, states, sums = (self._ray.get(part) for part in (sent.told, sent.states, sent.sums))
        del self._sent[i]
        return [block for twig in told for block in twig], [block for twig in states for block in twig], sums

    def forget(self, i: int) -> None:
        """Whatever came of a branch is of no use."""
        self._sent.pop(i, None)
        self._busy.discard(i)

    def cancel(self) -> None:
        """End what is under way and no one waits for any more."""
        for i in self._busy:
            for twig in self._sent[i].told:
                self._ray.cancel(twig)

    def _fill(self) -> None:
        while self._next < len(self.branches) and len(self._busy) < AHEAD * len(self._cpus):
            self._send(self._next)

    def _send(self, i: int) -> None:
        """Hand a branch to the node that will be done with it first."""
        self._next = max(self._next, i + 1)
        blocks = sum(map(len, self.branches[i]))
        waiting = dict.fromkeys(self._cpus, 0)
        for j in self._busy:
            waiting[self._sent[j].node] += self._sent[j].blocks
        node = min(self._cpus, key=lambda name: (waiting[name] + blocks) / self._cpus[name])
        there = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=True)
        train, add = (task.options(scheduling_strategy=there).remote for task in (self._run.train, self._run.add))
        parts = [
            train(self._run.packed, self._u, list(twig), [self._store.lend(block.ids) for block in twig])
            for twig in self.branches[i]
        ]
        told, states, sums = (list(column) for column in zip(*parts, strict=True))
        total = sums[0] if len(sums) == 1 else add(*sums)
        self._sent[i] = _Sent(node, blocks, told, states, total)
        self._busy.add(i)


def _kept(states: States) -> States:
    """States in memory of this process, so that Ray's store can let go of them."""
    return replace(
        states,
        remembered={
            client: {name: part.copy() for name, part in parts.items()} for client, parts in states.remembered.items()
        },
    )


def _import_ray() -> Any:
    try:
        ray = importlib.import_module("ray")
        importlib.import_module("ray.util.scheduling_strategies")
    except ImportError:
        raise RunError("engine.transport = 'ray' needs Ray: pip install 'fedbiad[ray]'") from None
    return ray


def _connect(ray: Any, address: str | None) -> None:
    """Connect quietly; Ray takes over SIGTERM, which here ends a run after its round."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # of a local one: as fast as this process, not after all others
    own = {"include_dashboard": False} if address is None else {}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address is not None and address != "auto":
            _knock(address)
        ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, **own)
    except Exception as error:  # a wrong address, a timeout, another version: Ray has no class of its own for them
        why = str(error).strip().partition("\n")[0]
        if address is None:
            raise RunError(f"Ray cannot be started on this machine: {why}") from None
        raise RunError(
            f"no Ray cluster at {address}: {why}; start one with `ray start --head`, "
            "or leave the address out for one of this machine alone"
        ) from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _knock(address: str) -> None:
    """See at once that nothing answers: Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("not host:port, ray://host:port or auto")
    socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
