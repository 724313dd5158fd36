"""What Ray costs: the same rounds in this process and on a local Ray with one CPU, as ratios in one run.

    python benchmarks/ray_overhead.py [--repeat 5] [--data mnist]

Variants are interleaved and the median of the repeats is taken, so a busy machine shifts all of them alike; processor
time of this process stands beside, which others at work do not change. Blocks with hardly anything to train (a step of
one sample) show the overhead itself: of a round, of a task, of a block in a twig.
"""

from __future__ import annotations

import argparse
import logging
import os
import pickle
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import ray
import torch

from fedbiad import plan as plans
from fedbiad.experiment import Experiment, build
from fedbiad.plan import Plan
from fedbiad.transports.branches import Cut
from fedbiad.transports.ray_cluster import RayCluster

BLOCKS = 64
EMPTY = {
    "method": "fedavg", "data.clients": "100", "engine.block": "1", "training.iterations": "1", "training.batch": "1",
}  # fmt: skip


def main() -> None:
    """Time every variant and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--data", default="mnist", help="the plan of the real blocks")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0")
    ray.init("local", num_cpus=1, object_store_memory=500 << 20, include_dashboard=False, log_to_driver=False,
             logging_level=logging.ERROR)  # fmt: skip
    try:
        empty(arguments.repeat)
        real(arguments.data, arguments.repeat)
        bookkeeping(arguments.data)
    finally:
        ray.shutdown()


def empty(repeat: int) -> None:
    """The overhead itself, in milliseconds."""
    one, many = (plans.load("digits", {**EMPTY, "training.selected": str(count)}) for count in (1, BLOCKS))
    found = medians({
        "one": build(one), "many": build(many),
        "ray, one": on_ray(one, Cut(1, 1)),
        "ray, many, a task each": on_ray(many, Cut(1, 1)),
        "ray, many, branches of 16": on_ray(many, Cut(1, 16)),
        "ray, many, one task": on_ray(many, Cut(BLOCKS, BLOCKS)),
    }, repeat)  # fmt: skip
    print(f"blocks with hardly anything to train, median of {repeat} rounds (processor time here, its main thread's)")
    print(f"  a round of one block: {found['one']} here, {found['ray, one']} on Ray")
    for label, last, first in (
        ("each further block:", "many", "one"),
        ("  on Ray, a branch of its own:", "ray, many, a task each", "ray, one"),
        ("  on Ray, a task in a branch of 16:", "ray, many, branches of 16", "ray, one"),
        ("  on Ray, in the same task:", "ray, many, one task", "ray, one"),
    ):
        print(f"  {label} {found[last].each_further(found[first], BLOCKS - 1)}")


def real(data: str, repeat: int) -> None:
    """Real blocks of 20 clients, as a ratio."""
    for method in ("fedavg", "fedbiad", "feddrop+dgc"):
        plan = plans.load(data, {"method": method, "training.selected": "200"})
        found = medians({"here": build(plan), "ray": on_ray(plan)}, repeat)
        print(f"{data}, {method}, 10 blocks of 20 clients: {found['here']} here, {found['ray']} on Ray, "
              f"{found['ray'].wall / found['here'].wall:.2f} times that")  # fmt: skip


def bookkeeping(data: str, clients: int = 1000) -> None:
    """What the first process does for every client, on Ray too: its state lent, packed and taken back, the record."""
    for method in ("fedavg", "fedbiad", "feddrop+dgc"):
        experiment = build(plans.load(data, {"method": method, "training.selected": str(clients)}))
        transport, server = experiment.transport, experiment.server
        began = time.process_time()
        outcome = next(server.aggregate(transport, experiment.initial(), 0, 1))
        trained = time.process_time() - began
        began = time.process_time()
        packed = 0
        for start in range(0, clients, 20):
            states = transport.store.lend(range(start, min(start + 20, clients)))
            packed += len(pickle.dumps(states, protocol=5))
            transport.store.take(states)
        kept = time.process_time() - began
        began = time.process_time()
        outcome.tally.record()
        outcome.tally.reports()
        outcome.tally.seconds()
        told = time.process_time() - began
        print(f"{data}, {method}, processor time a client: {1e3 * trained / clients:.2f} ms in a round here; of it "
              f"{1e3 * kept / clients:.3f} ms for its state of {packed / clients:.0f} bytes, "
              f"{1e3 * told / clients:.3f} ms for its line in the record")  # fmt: skip


def on_ray(plan: Plan, cut: Cut | None = None) -> Experiment:
    """The plan on the Ray this process is connected to."""
    experiment = build(plan)
    local = experiment.transport
    return replace(experiment, transport=RayCluster(local.training, local.store, local.seed, local.block, cut=cut))


@dataclass(frozen=True)
class Cost:
    """Seconds on the clock, and of processor time in this process and its main thread."""

    wall: float
    cpu: float
    main: float

    def __str__(self) -> str:
        return f"{1e3 * self.wall:.2f} ms ({1e3 * self.cpu:.2f}, {1e3 * self.main:.2f})"

    @classmethod
    def now(cls) -> Cost:
        """What the clocks show."""
        return cls(time.perf_counter(), time.process_time(), time.thread_time())

    def since(self, before: Cost) -> Cost:
        """What was spent in between."""
        return Cost(self.wall - before.wall, self.cpu - before.cpu, self.main - before.main)

    def each_further(self, first: Cost, count: int) -> Cost:
        """What each of the blocks after the first costs."""
        more = self.since(first)
        return Cost(more.wall / count, more.cpu / count, more.main / count)

    @classmethod
    def median(cls, costs: Sequence[Cost]) -> Cost:
        """Each number's own."""
        return cls(*(statistics.median(getattr(cost, name) for cost in costs) for name in ("wall", "cpu", "main")))


def medians(experiments: dict[str, Experiment], repeat: int) -> dict[str, Cost]:
    """A round without evaluation; the first, which starts processes and compiles, does not count."""
    costs: dict[str, list[Cost]] = {label: [] for label in experiments}
    for _ in range(1 + repeat):
        for label, experiment in experiments.items():
            rounds = experiment.server.aggregate(experiment.transport, experiment.initial(), 0, 1)
            before = Cost.now()
            next(rounds)
            costs[label].append(Cost.now().since(before))
    return {label: Cost.median(values[1:]) for label, values in costs.items()}


if __name__ == "__main__":
    main()
