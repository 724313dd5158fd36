"""Blocks in several processes: the same to the bit, also when one of them is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from fedbiad.arrays import Params
from fedbiad.errors import RunError
from fedbiad.experiment import Record, build
from fedbiad.plan import load
from fedbiad.transports.workers import Workers
from running import EVERY


def run(name: str, workers: int, kill_in: int | None = None) -> tuple[Params, list[Record], dict[str, object]]:
    """Three rounds on digits; `kill_in`: a process is killed while that round begins."""
    changes = {"rounds": "3", "engine.workers": str(workers), "engine.block": "7", "training.selected": "0.5"}
    ready = build(load("digits", {**changes, "compressors.evidence.budget": "0.05"}).replace(method=name))
    records = []
    try:
        for record, outcome in ready.run(ready.initial()):
            records.append(record)
            if outcome.round + 1 == kill_in:
                assert isinstance(ready.transport, Workers)
                os.kill(ready.transport.processes()[0], signal.SIGKILL)
    finally:
        ready.close()
    return outcome.u, records, dict(ready.transport.store.dump())


@pytest.mark.parametrize("name", EVERY)
def test_several_processes_give_the_same_bits(name: str) -> None:
    alone, together = run(name, 1), run(name, 2)
    assert all(torch.equal(value, together[0][part]) for part, value in alone[0].items())
    timeless = [[{**record, "seconds": None} for record in own[1]] for own in (alone, together)]
    assert timeless[0] == timeless[1]
    assert alone[2].keys() == together[2].keys()
    assert all((value == together[2][part]).all() for part, value in alone[2].items())  # type: ignore[attr-defined]


def test_a_killed_process_changes_nothing() -> None:
    alone, killed = run("fedbiad", 1), run("fedbiad", 2, kill_in=2)
    assert all(torch.equal(value, killed[0][part]) for part, value in alone[0].items())


@dataclass(frozen=True)
class Deadly:
    """Data that kill every process but the first when they are looked at."""

    data: Any

    def local(self, *asked: object) -> Any:
        if multiprocessing.parent_process() is not None:
            os._exit(1)
        return self.data.local(*asked)

    @property
    def sizes(self) -> object:
        return self.data.sizes

    @property
    def num_clients(self) -> object:
        return self.data.num_clients


def test_a_block_with_which_processes_die_again_and_again_ends_the_run_and_not_its_first_process() -> None:
    ready = build(load("digits", {"engine.workers": "2", "engine.block": "7", "training.selected": "0.5"}))
    assert isinstance(ready.transport, Workers)
    deadly: Any = Deadly(ready.data)
    ready.transport.training = replace(ready.transport.training, data=deadly)
    try:
        with pytest.raises(RunError, match=r"round 1: the process that trains clients \d+ to \d+ dies again and again"):
            next(iter(ready.run(ready.initial())))
    finally:
        ready.close()
