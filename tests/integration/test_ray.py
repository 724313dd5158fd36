"""Runs on a real Ray of three nodes come out the same to the bit, also when processes and nodes die in mid-round."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray.cluster_utils import Cluster

from fedbiad import plan as plans
from fedbiad import runner
from fedbiad.errors import PlanError, RunError
from fedbiad.experiment import Experiment, build
from fedbiad.plan import Plan
from fedbiad.transports import ray_cluster
from fedbiad.transports.branches import Cut
from fedbiad.transports.ray_cluster import RayCluster
from running import EVERY, nothing, outcome

# Ray leaves pipes and logs of the processes it started to the garbage collector
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SYSTEM = {
    "worker_niceness": 0,  # as fast as the rest of the tests
    "health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3,
}  # fmt: skip
"""A dead node is noticed within seconds."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three nodes of one CPU each, this process connected to the first; the last test takes one away."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    before, handler = torch.get_num_threads(), signal.getsignal(signal.SIGTERM)
    torch.set_num_threads(1)
    head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 100 << 20, "_system_config": SYSTEM}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            nodes.add_node(num_cpus=1, object_store_memory=100 << 20, wait=False)
        nodes.wait_for_nodes()
        ray.init(nodes.address, log_to_driver=False, logging_level=logging.ERROR)
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()
        signal.signal(signal.SIGTERM, handler)
        torch.set_num_threads(before)


def small(method: str, **settings: str) -> Plan:
    """Two rounds of nine of 20 clients, in blocks of one."""
    few = {"rounds": "2", "data.clients": "20", "model.hidden": "[16]", "training.selected": "9", "engine.block": "1",
           "compressors.evidence.budget": "0.05"}  # fmt: skip
    return plans.load("digits", {**few, "method": method, **settings})


def on_ray(plan: Plan, cut: Cut | None = None) -> Experiment:
    """The plan on the cluster this process is connected to."""
    experiment = build(plan)
    local = experiment.transport
    return replace(experiment, transport=RayCluster(local.training, local.store, local.seed, local.block, cut=cut))


def came_to(experiment: Experiment) -> dict[str, Any]:
    """Model, clients' states and records of a run, without times."""
    records, u = [], experiment.initial()
    for record, end in experiment.run(u):
        del record["seconds"]
        records.append(record)
        u = end.u
    states = {name: part.tobytes() for name, part in experiment.transport.store.dump().items()}
    experiment.close()
    return {"model": {name: value.numpy().tobytes() for name, value in u.items()}, "states": states, "records": records}


@pytest.mark.usefixtures("cluster")
class TestTheSameToTheBit:
    @pytest.mark.parametrize("method", EVERY)
    def test_methods_and_compressors(self, method: str) -> None:
        plan = small(method)
        assert plan.engine.transport == "local"
        remote = plan.replace(engine={**plans.to_dict(plan)["engine"], "transport": "ray"})
        experiment = build(remote)
        assert isinstance(experiment.transport, RayCluster)
        assert came_to(experiment) == came_to(build(plan))

    @pytest.mark.parametrize("cut", [Cut(1, 1), Cut(1, 4), Cut(2, 2), Cut(2, 8), Cut(16, 16)])
    def test_any_cut(self, cut: Cut) -> None:
        plan = small("feddrop+dgc", rounds="1")
        assert came_to(on_ray(plan, cut)) == came_to(build(plan))

    def test_several_processes_of_one_machine(self) -> None:
        plan = small("feddrop+dgc", **{"engine.workers": "2"})
        assert came_to(build(plan)) == came_to(on_ray(small("feddrop+dgc")))


@pytest.mark.usefixtures("cluster")
def test_a_problem_of_the_plan_found_on_a_node_is_told_as_at_home() -> None:
    with pytest.raises(PlanError, match="not exact here") as caught:
        came_to(on_ray(small("fedbiad", **{"engine.form": "dual"})))
    assert len(caught.value.problems) == 1


def test_without_ray_one_is_told_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RunError, match=r"pip install 'fedbiad\[ray\]'"):
        build(small("fedavg", **{"engine.transport": "ray"}))


@pytest.mark.parametrize(
    ("address", "why"),
    [("127.0.0.1:1", "Connection refused"), ("ray://nowhere", "not host:port"), ("6379", "not host")],
)
def test_no_cluster_at_an_address(address: str, why: str) -> None:
    with pytest.raises(RunError, match=rf"no Ray cluster at {address}: .*{why}.*`ray start --head`"):
        ray_cluster._connect(ray, address)


def test_sigterm_ends_a_run_as_it_did_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(*_: object, **__: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as Ray does
        raise RuntimeError("no memory\nand more")

    monkeypatch.setattr(ray, "init", init)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RunError, match=r"Ray cannot be started on this machine: no memory$"):
        ray_cluster._connect(ray, None)
    assert signal.getsignal(signal.SIGTERM) == before


def training_on(raylet: int) -> int | None:
    """A process of a node that trains just now."""
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            parent = int(status.read_text().split("PPid:")[1].split()[0])
            title = (status.parent / "cmdline").read_bytes()
        except (OSError, IndexError):
            continue  # it ended
        if parent == raylet and title.startswith(b"ray::train_twig"):
            return int(status.parent.name)
    return None


def in_mid_round(raylet: int, kill: Callable[[int], None]) -> threading.Thread:
    """Once a process of this node trains, `kill` is called with its id; joining waits for that."""

    def watch() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            process = training_on(raylet)
            if process is not None:
                kill(process)
                return
            time.sleep(0.005)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def raylet_of(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def long(**settings: str) -> Plan:
    """Blocks that take long enough to be met at work."""
    return small("fedbiad", **{"training.iterations": "50", "rounds": "1", **settings})


def test_a_process_killed_in_mid_round(cluster: Cluster) -> None:
    killed: list[int] = []

    def kill(process: int) -> None:
        os.kill(process, signal.SIGKILL)
        killed.append(process)

    watch = in_mid_round(raylet_of(cluster.head_node), kill)
    found = came_to(on_ray(long()))
    watch.join()
    assert killed
    assert found == came_to(build(long()))


@pytest.mark.usefixtures("cluster")
def test_a_process_that_dies_whenever_it_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "train_twig", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    monkeypatch.setattr(ray_cluster, "RETRIES", 0)
    monkeypatch.setattr(ray_cluster, "DEATHS", 1)
    with pytest.raises(RunError, match=r"round 1: clients \d+ to \d+ cannot be trained.*smaller engine\.block"):
        came_to(on_ray(small("fedavg"), Cut(16, 16)))


def test_a_node_killed_in_mid_round(cluster: Cluster) -> None:
    lost = next(iter(cluster.worker_nodes))
    killed: list[int] = []

    def kill(process: int) -> None:
        os.kill(raylet_of(lost), signal.SIGKILL)  # its processes end with it
        killed.append(process)

    watch = in_mid_round(raylet_of(lost), kill)
    found = came_to(on_ray(long(rounds="2"), Cut(1, 2)))
    watch.join()
    assert killed
    assert sum(node["Alive"] for node in ray.nodes()) == 2
    assert found == came_to(build(long(rounds="2")))


def test_the_command_starts_a_ray_of_its_own(tmp_path: Path) -> None:
    arguments = ["run", "digits", "--out", str(tmp_path / "ray"), "--transport", "ray", "--quiet"]
    for key, value in {"rounds": "2", "model.hidden": "[16]", "method": "feddrop"}.items():
        arguments += ["--set", f"{key}={value}"]
    ended = subprocess.run([sys.executable, "-m", "fedbiad", *arguments], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    plan = plans.load("digits", {"rounds": "2", "model.hidden": "[16]", "method": "feddrop"})
    runner.start(plan, tmp_path / "local", nothing)
    assert outcome(tmp_path / "ray") == outcome(tmp_path / "local")
