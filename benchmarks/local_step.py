"""One round of local training, as ratios in one run: block sizes, forms of the step, methods.

    python benchmarks/local_step.py [--data fmnist] [--repeat 5]

Variants are interleaved and the median of the repeats is taken, so a busy machine shifts all of them alike.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time

import torch

from fedbiad import plan as plans
from fedbiad.experiment import Experiment, build, load_federated
from fedbiad.plan import EnginePlan, Plan

VARIANTS: dict[str, tuple[str, EnginePlan]] = {
    "fedavg": ("fedavg", EnginePlan()),
    "fedavg, block 1": ("fedavg", EnginePlan(block=1)),
    "fedavg, block 5": ("fedavg", EnginePlan(block=5)),
    "fedavg, block 10": ("fedavg", EnginePlan(block=10)),
    "fedavg, block 50": ("fedavg", EnginePlan(block=50)),
    "feddrop": ("feddrop", EnginePlan()),
    "feddrop, masked": ("feddrop", EnginePlan(form="masked")),
    "fedbiad": ("fedbiad", EnginePlan()),
    "fedbiad, no noise": ("fedbiad", EnginePlan()),
    "fedbiad, no noise, trend local": ("fedbiad", EnginePlan()),
    "fedbiad, masked": ("fedbiad", EnginePlan(form="masked")),
    "fedbiad-letter": ("fedbiad-letter", EnginePlan()),
}


def main() -> None:
    """Time one round of every variant and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist", help="a plan: mnist, fmnist or digits")
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    base = plans.load(arguments.data)
    data = load_federated(base)
    experiments = {label: build(variant(base, label), data) for label in VARIANTS}
    times: dict[str, list[float]] = {label: [] for label in VARIANTS}
    for _ in range(arguments.repeat):
        for label, experiment in experiments.items():
            times[label].append(one_round(experiment))
    reference = statistics.median(times["fedavg"])
    print(f"{arguments.data}: one round, median of {arguments.repeat}; fedavg in blocks of 20 = {reference:.3f} s = 1")
    for label, values in times.items():
        ratios = [value / reference for value in values]
        print(f"{label:30} {statistics.median(ratios):5.2f}   (from {min(ratios):.2f} to {max(ratios):.2f})")


def variant(base: Plan, label: str) -> Plan:
    """The plan of a variant."""
    method, engine = VARIANTS[label]
    trend = "local" if "trend local" in label else "batch"
    options = {"fedbiad": {"noise": 0.0, "trend": trend}} if "no noise" in label else {}
    return base.replace(method=method, engine=dataclasses.asdict(engine), methods=options)


def one_round(experiment: Experiment) -> float:
    """Seconds of one round from U_0, without evaluation."""
    rounds = experiment.server.aggregate(experiment.transport, experiment.initial(), 0, 1)
    began = time.perf_counter()
    next(rounds)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
