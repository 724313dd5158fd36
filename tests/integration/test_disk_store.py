"""Runs with clients' states on disk: bit for bit those with states in memory, also when stopped, killed or resumed."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from fedbiad import simulate
from fedbiad.data import MappedData, write_mapped
from fedbiad.errors import DataError, RunError
from fedbiad.experiment import build
from fedbiad.models import MLP
from fedbiad.runner import Stopped, resume, start
from fedbiad.state_files import FileStore, Shards
from running import nothing, outcome, small_plan, stop_after

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from kill_test import kill_until

METHODS = ["fedbiad", "feddrop+dgc"]
DISK: dict[str, Any] = {"engine": {"store": "disk"}}


STORES: tuple[Literal["memory", "disk"], ...] = ("memory", "disk")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def in_memory(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the runs come to with states in memory."""
    found = {}
    for method in METHODS:
        path = tmp_path_factory.mktemp("memory") / method
        start(small_plan(method), path, nothing)
        found[method] = outcome(path)
    return found


@pytest.mark.parametrize("method", METHODS)
class TestTheSameAsInMemory:
    def test_undisturbed(self, tmp_path: Path, in_memory: dict[str, dict[str, Any]], method: str) -> None:
        seen = list[int]()

        def look(_: object) -> None:
            seen.append(len(Shards(tmp_path / "run" / "states")))

        start(small_plan(method, **DISK), tmp_path / "run", look)
        assert outcome(tmp_path / "run") == in_memory[method]
        assert seen[0] == 4  # those selected in the first round
        assert seen == sorted(seen)
        assert not (tmp_path / "run" / "states").exists()  # all of it is in the checkpoint

    def test_stopped(self, tmp_path: Path, in_memory: dict[str, dict[str, Any]], method: str) -> None:
        with pytest.raises(Stopped):
            start(small_plan(method, **DISK), tmp_path / "run", nothing, stop_after(3))
        assert not (tmp_path / "run" / "states").exists()
        resume(tmp_path / "run", nothing, warn=nothing)
        assert outcome(tmp_path / "run") == in_memory[method]

    def test_killed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: dict[str, dict[str, Any]], method: str
    ) -> None:
        """States of rounds after the last checkpoint, and torn ones, are left behind; they do not count."""
        plan = small_plan(method, engine={"store": "disk", "checkpoint_every": 2})
        with monkeypatch.context() as patched:
            patched.setattr(FileStore, "close", nothing)
            with pytest.raises(KeyboardInterrupt):
                start(plan, tmp_path / "run", interrupt_after(3))
        (left,) = (tmp_path / "run" / "states").iterdir()
        left.write_bytes(left.read_bytes()[:-100])
        resume(tmp_path / "run", nothing, warn=nothing)
        assert outcome(tmp_path / "run") == in_memory[method]


def interrupt_after(rounds: int) -> Any:
    def on_round(record: dict[str, Any]) -> None:
        if record["round"] == rounds:
            raise KeyboardInterrupt

    return on_round


def test_with_real_signals(tmp_path: Path) -> None:
    assert kill_until(1, ["disk"], random.Random(0), tmp_path) >= 1


def test_trouble_with_the_files_ends_a_run_with_advice(tmp_path: Path) -> None:
    experiment = build(small_plan(**DISK), states=tmp_path / "states")
    (tmp_path / "states").write_text("a file")
    with pytest.raises(RunError, match="clients' states cannot be written"):
        next(experiment.run(experiment.initial()))


def test_simulate_in_a_temporary_directory() -> None:
    inputs = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    clients = [(inputs[i::4], (inputs[i::4, 0] > 0).long()) for i in range(4)]
    ends = [
        simulate(model=MLP(3, (6,), 2), clients=clients, test=clients[0], rounds=3, method="fedbiad+dgc", store=store)
        for store in STORES
    ]
    assert all(torch.equal(value, ends[1].params[name]) for name, value in ends[0].params.items())


def test_simulate_with_mapped_clients(tmp_path: Path) -> None:
    inputs = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    clients = [(inputs[i::4], (inputs[i::4, 0] > 0).long()) for i in range(4)]
    write_mapped(tmp_path / "own", clients, clients[0], 2)
    mapped = MappedData(tmp_path / "own")
    one = simulate(model=MLP(3, (6,), 2), clients=clients, test=clients[0], rounds=2, selected=0.5)
    two = simulate(model=MLP(3, (6,), 2), clients=mapped, rounds=2, selected=0.5)
    assert all(torch.equal(value, two.params[name]) for name, value in one.params.items())
    assert one.summary["accuracy"] == two.summary["accuracy"]
    with pytest.raises(DataError, match="brings its own test samples"):
        simulate(model=MLP(3, (6,), 2), clients=mapped, test=clients[0])
