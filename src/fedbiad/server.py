"""Algorithm 1, Aggregate: the only round loop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedbiad import streams
from fedbiad.aggregation import AGGREGATIONS, server_step
from fedbiad.arrays import Params
from fedbiad.client import Updates
from fedbiad.errors import RunError
from fedbiad.methods.base import Method
from fedbiad.rows import Layout
from fedbiad.transports.base import Request, Transport

VALUE_BYTES = 4
"""The paper counts 32 bits a weight and 1 bit a dropping label."""


@dataclass(frozen=True)
class Server:
    """What the server of a run is told once."""

    method: Method
    layout: Layout
    seed: int
    selected: int  # c = max(floor(kappa K), 1): clients selected each round
    server_step: float = 1.0  # gamma

    def aggregate(self, transport: Transport, u: Params, start: int, rounds: int) -> Iterator[RoundOutcome]:
        """Rounds start+1 .. R from U_start; line numbers are those of Algorithm 1."""
        sizes = transport.sizes()
        mean = AGGREGATIONS[self.method.aggregation]
        for r in range(start + 1, rounds + 1):  # line 1
            began = time.perf_counter()
            chosen = select_clients(self.seed, r, len(sizes), self.selected)  # line 2
            tally, total = Tally(self.layout), mean.init(self.layout)
            for updates in transport.exchange(Request(r, u, chosen)):  # lines 3-6
                tally.add(updates)
                good = updates.only_usable()
                mean.add(total, self.layout, good.pattern, good.u, [sizes[k] for k in good.ids])
            if total.weight == 0:
                raise RunError(_all_failed(r, tally.failed))
            u = server_step(u, mean.finish(total, u), self.server_step)  # line 7
            yield RoundOutcome(r, u, tally, time.perf_counter() - began)


@dataclass(frozen=True)
class RoundOutcome:
    """U_r and what happened on the way to it."""

    round: int
    u: Params
    tally: Tally
    seconds: float


class Tally:
    """Counts over the updates of a round."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._losses: list[float] = []
        self.upload_bytes: list[int] = []
        self.failed: list[int] = []
        self.checks = self.resampled = self.noise_drawn = self.noise_weights = 0
        self.kept_rows = 0.0

    def add(self, updates: Updates) -> None:
        """Count a block; clients that failed are named and otherwise left out."""
        self.failed += [k for k, usable in zip(updates.ids, updates.usable, strict=True) if not usable]
        good = updates.only_usable()
        self._losses += good.losses.mean(1).tolist()
        self.upload_bytes += upload_bytes(self._layout, good.pattern)
        self.kept_rows += float(good.pattern.mean(1).sum())
        self.checks += good.checks * len(good.ids)
        self.resampled += int(good.resampled.sum())
        self.noise_drawn += updates.noise_drawn
        self.noise_weights += updates.noise_weights

    def record(self) -> dict[str, object]:
        """The round as plain numbers."""
        clients = len(self._losses)
        return {
            "clients": clients,
            "failed": self.failed,
            "train_loss": float(np.mean(self._losses)),
            "upload_bytes": sum(self.upload_bytes),
            "upload_bytes_per_client": sum(self.upload_bytes) / clients,
            "kept_rows_share": self.kept_rows / clients,
            "resampled_share": self.resampled / self.checks if self.checks else None,
            "noise_skipped_share": 1 - self.noise_drawn / self.noise_weights if self.noise_weights else None,
        }


def upload_bytes(layout: Layout, pattern: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> list[int]:
    """Nominal upload of each client: 32 bits a kept weight and, where rows were dropped, 1 bit a label."""
    labels = np.where(pattern.all(1), 0, -(-layout.num_rows // 8))
    sizes: list[int] = (layout.kept_weights(pattern) * VALUE_BYTES + labels).tolist()
    return sizes


def select_clients(seed: int, round_: int, clients: int, count: int) -> tuple[int, ...]:
    """C_r: a random set of c clients, in ascending order."""
    chosen = streams.stream(seed, round_, streams.SERVER, "selection").choice(clients, count, replace=False)
    return tuple(sorted(int(k) for k in chosen))


def _all_failed(round_: int, failed: list[int]) -> str:
    return (
        f"round {round_}: the loss or the weights of all {len(failed)} clients became infinite or not a number; "
        "lower training.learning_rate (or the server step), and start anew with another --out"
    )
