"""Algorithm 1, Aggregate: the only round loop."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedbiad import streams
from fedbiad.aggregation import AGGREGATIONS, Aggregation, SumTree, server_step
from fedbiad.arrays import FloatArray, IntArray, Params, ServerState
from fedbiad.cohort import Cohort
from fedbiad.errors import RunError
from fedbiad.methods.base import Method, Reports
from fedbiad.network import Network, slowest_seconds
from fedbiad.publishing import Publisher
from fedbiad.rows import Layout
from fedbiad.transports.base import Counts, Request, Transport, Updates


@dataclass(frozen=True)
class Server:
    """What the server of a run is told once."""

    method: Method
    layout: Layout
    seed: int
    selected: int  # c = max(floor(kappa K), 1): clients selected each round
    server_step: float = 1.0  # gamma
    network: Network = field(default_factory=Network)
    vote: Aggregation | None = None
    """Takes the place of the method's mean where clients send votes."""
    publisher: Publisher | None = None
    """Publishes increments of U; None: clients fetch U itself, every round."""

    def aggregate(
        self, transport: Transport, u: Params, start: int, rounds: int, state: ServerState | None = None
    ) -> Iterator[RoundOutcome]:
        """Rounds start+1 .. R from U_start; line numbers are those of Algorithm 1."""
        state = self.method.init_server(self.layout) if state is None else state
        publisher, published = self.publisher, None
        if publisher is not None:
            state, published = publisher.split(state, u)
        mean = self.vote or AGGREGATIONS[self.method.aggregation]
        for r in range(start + 1, rounds + 1):  # line 1
            began = time.perf_counter()
            chosen = Cohort(self.seed, r, select_clients(self.seed, r, transport.num_clients, self.selected))  # line 2
            assigned = self.method.assign(self.layout, chosen, state, u)
            offer = publisher.offer(published, chosen) if publisher and published else None
            tally, sums = Tally(self.layout, self.network, self.seed), SumTree()
            for updates in transport.exchange(Request(r, u, chosen.ids, assigned, offer)):  # lines 3-6
                arrived = time.perf_counter()
                tally.add(updates)
                if updates.total is not None:
                    sums.push(updates.total, updates.blocks)
                tally.aggregation += time.perf_counter() - arrived
            finishing = time.perf_counter()
            if sums.empty or (total := sums.finish()).weight == 0:
                raise RunError(_all_failed(r, tally.failed))
            stepped = server_step(u, mean.finish(total, u), self.server_step)  # line 7
            reports = tally.reports()
            if publisher and published:
                stepped, published = publisher.publish(published, u, stepped, r, reports.ids)
            u = stepped
            state = self.method.observe(self.layout, state, reports)
            tally.aggregation += time.perf_counter() - finishing
            known = {**state, **(published.arrays() if published else {})}
            yield RoundOutcome(r, u, known, tally, time.perf_counter() - began)


@dataclass(frozen=True)
class RoundOutcome:
    """U_r and what happened on the way to it."""

    round: int
    u: Params
    state: ServerState
    tally: Tally
    seconds: float


class Tally:
    """Counts over the updates of a round."""

    def __init__(self, layout: Layout, network: Network, seed: int) -> None:
        self._layout, self._network, self._seed = layout, network, seed
        self._blocks: list[Updates] = []
        self.aggregation = 0.0
        """Seconds the server itself needed."""

    def add(self, updates: Updates) -> None:
        """Count a block; of what it sent only the counts are kept."""
        self._blocks.append(updates.without_sums())

    @property
    def failed(self) -> dict[int, str]:
        """Clients left out, and why."""
        return {client: why for block in self._blocks for client, why in block.failed.items()}

    def reports(self) -> Reports:
        """What a method may learn from: nothing that depends on how fast this machine is."""
        ids = np.array(self._ids, dtype=np.int64)
        return Reports(
            tuple(self._ids), self._joined([block.loss for block in self._blocks]),
            self._joined([self._layout.kept_weights(b.pattern) for b in self._blocks]) / self._layout.num_weights,
            self._transfer(ids), self._network.slowness(ids, self._seed),
            np.concatenate([block.pattern for block in self._blocks]),
        )  # fmt: skip

    def record(self) -> dict[str, Any]:
        """The round as plain numbers."""
        blocks, clients = self._blocks, len(self._ids)
        checks, drawn = sum(int(b.checks.sum()) for b in blocks), sum(b.noise_drawn for b in blocks)
        weights = sum(b.noise_weights for b in blocks)
        patterns = np.concatenate([block.pattern for block in blocks])
        watched = [block.watched for block in blocks if block.watched]
        errors = [block.error for block in blocks if block.error is not None]
        return {
            "clients": clients,
            "failed": list(self.failed),
            **({"reasons": sorted(set(self.failed.values()))} if self.failed else {}),
            "train_loss": float(np.mean(self._joined([b.loss for b in blocks]))),
            "upload": self._count("upload"),
            "download": self._count("download"),
            **({"message_error": float(self._joined(errors).mean())} if errors else {}),
            "kept_rows_share": float(patterns.mean(1).mean()),
            "resampled_share": sum(int(b.resampled.sum()) for b in blocks) / checks if checks else None,
            "noise_skipped_share": 1 - drawn / weights if weights else None,
            **({"row_holders": patterns.sum(0).tolist()} if patterns.shape[1] <= MAPPED_ROWS else {}),
            **({"watched": vars(watched[0])} if watched else {}),
        }

    def seconds(self) -> dict[str, float]:
        """Local training of a client (mean), the slowest client with its transfers, aggregation, the whole round."""
        ids = np.array(self._ids, dtype=np.int64)
        local = self._joined([block.local_seconds for block in self._blocks])
        slowed = local * self._network.slowness(ids, self._seed)
        slowest = slowest_seconds(slowed, self._transfer(ids), 0.0)
        return {
            "local": float(slowed.mean()), "slowest": slowest, "aggregation": self.aggregation,
            "round": slowest + self.aggregation,
        }  # fmt: skip

    @property
    def _ids(self) -> list[int]:
        return [client for block in self._blocks for client in block.ids]

    def _transfer(self, ids: IntArray) -> FloatArray:
        """Seconds of download and upload of the clients that arrived, on their own links."""
        up = self._joined([self._travelling(b.upload) for b in self._blocks])
        down = self._joined([self._travelling(b.download)[b.arrived] for b in self._blocks])
        network, seed = self._network, self._seed
        return network.download_seconds(ids, down, seed) + network.upload_seconds(ids, up, seed)

    def _travelling(self, counts: Counts) -> IntArray:
        return counts.paper if self._network.count == "paper" else counts.encoded

    def _count(self, way: str) -> dict[str, int | None]:
        totals = [getattr(block, way).total() for block in self._blocks]
        names: list[str] = list(totals[0])
        known = {name: [total[name] for total in totals] for name in names}
        return {name: None if None in values else sum(values) for name, values in known.items()}

    @staticmethod
    def _joined(parts: Sequence[FloatArray | IntArray]) -> FloatArray:
        return np.concatenate(parts).astype(np.float64)


MAPPED_ROWS = 4096
"""Up to this many rows, a round's record tells how many clients sent each."""


def select_clients(seed: int, round_: int, clients: int, count: int) -> tuple[int, ...]:
    """C_r: a random set of c clients, in ascending order."""
    chosen = streams.stream(seed, round_, streams.SERVER, "selection").choice(clients, count, replace=False)
    return tuple(sorted(int(k) for k in chosen))


def _all_failed(round_: int, failed: dict[int, str]) -> str:
    reasons = "; ".join(sorted(set(failed.values())))
    return (
        f"round {round_}: all {len(failed)} clients had to be left out ({reasons}); "
        "lower training.learning_rate (or the server step), and start anew with another --out"
    )
