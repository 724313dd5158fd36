"""The engine against itself, as ratios in one run: forms of local training, methods, workers, and how time grows.

    python benchmarks/engine.py [--repeats 7] [--out results/engine.json]

The work is that of benchmarks/peers: an MLP 784-128-10 on MNIST, 1000 clients of 60 images, 100 a round, batches of
10, at 1 and 5 local epochs; without evaluation. `of the limit` compares with the time the plain form's multiplications
would take at the speed of a matrix product measured in the same run, on one thread: the dual form may exceed it.
Where PTB's text is, rounds of its language model by workers, too.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import Work, interleaved, machine, product_speed, spread

from fedbiad.cohort import Cohort
from fedbiad.data.base import FederatedData, load
from fedbiad.errors import DataError
from fedbiad.experiment import Experiment, assemble, build
from fedbiad.files import write_atomically
from fedbiad.models import MLP
from fedbiad.plan import EnginePlan, TrainingPlan
from fedbiad.plan import load as load_plan
from fedbiad.plan_problems import resolve
from fedbiad.training.forms import Form

IMAGES, CLIENTS, SELECTED, BATCH, UNITS = 60, 1000, 100, 10, 128


def federated() -> FederatedData:
    """MNIST dealt at random to 1000 clients of 60 images."""
    found = load("mnist")
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(found.train_targets)))
    return FederatedData(
        found.train_inputs.flatten(1)[order], found.train_targets[order], np.arange(0, CLIENTS * IMAGES + 1, IMAGES),
        found.test_inputs.flatten(1), found.test_targets, "test", 10, 0,
    )  # fmt: skip


def experiment(
    data: FederatedData, name: str = "fedavg", epochs: int = 5, form: Form = "auto", units: int = UNITS,
    selected: int = SELECTED, workers: int = 1, block: int = 25,
) -> Experiment:  # fmt: skip
    """The work by one method, half of the rows dropped where rows are dropped."""
    method, compressor, problems = resolve(name, 0.5, {}, {})
    if method is None or problems:
        raise SystemExit("; ".join(problems))
    training = TrainingPlan(0.1, epochs * IMAGES // BATCH, BATCH, selected)
    engine = EnginePlan(form=form, block=block, workers=workers)
    return assemble(method, MLP(784, (units,), 10), data, training, engine, 10**6, 0, selected, 10**6, compressor)


def rounds(ready: Experiment, count: int = 1) -> Work:
    """The next rounds of a run that goes on."""
    running = ready.run(ready.initial())

    def work() -> None:
        for _ in range(count):
            next(running)

    return work


def meet(data: FederatedData) -> None:
    """Find out of every client's samples what training wants to know: rounds are timed with clients met before."""
    everyone = data.local(Cohort(0, 1, tuple(range(CLIENTS))), 1, BATCH)
    everyone.facts()
    for client in range(CLIENTS):
        everyone.gram(client)


def table(
    title: str, variants: dict[str, Experiment], repeats: int, count: int = 1, warm_up: int = 2
) -> dict[str, Any]:
    """Time the variants in turns, print ratios to the first, and give back the numbers."""
    times = interleaved({label: rounds(ready, count) for label, ready in variants.items()}, repeats, warm_up=warm_up)
    for ready in variants.values():
        ready.close()
    found = {label: {name: value / count for name, value in spread(own).items()} for label, own in times.items()}
    reference = next(iter(found.values()))["median"]
    print(f"\n{title}")
    for label, own in found.items():
        form = variants[label].transport.training.work.chosen[0]
        own["ratio"] = own["median"] / reference
        print(f"  {label:28} {form:8} {1e3 * own['median']:9.2f} ms a round  {own['ratio']:6.2f}  "
              f"({1e3 * own['least']:.2f} to {1e3 * own['most']:.2f})")  # fmt: skip
    return found


def language_by_workers(repeats: int) -> dict[str, Any]:
    """Rounds of ten clients of PTB's language model at its real size; nothing where its data are not there."""
    plan = {"method": "fedavg", "rounds": "1000", "evaluate_every": "1000", "training.selected": "10"}
    try:
        by = {f"{n} workers": build(load_plan("ptb", {**plan, "engine.workers": str(n)})) for n in (1, 2)}
    except DataError:
        return {}
    return table("FedAvg, PTB, 10 clients a round, by workers", by, repeats, warm_up=1)


def local_steps(data: FederatedData, repeats: int) -> dict[str, Any]:
    """What one more local iteration of a client costs in stage one, its checks and changes of pattern included.

    The difference between the local training times of rounds with many and with few iterations: what is done once a
    round drops out. The rounds are of few clients, so that all variants come by turns within a second: busy spells of
    a machine last longer. One goes before them without a clock: else only the first would not find the clients' data
    in the cache.
    """
    few, many, selected, warm_up, count = 5, 85, 10, 5, min(50, 10 * repeats)
    names = ("fedavg", "feddrop", "fedbiad")
    variants = [("fedavg", few, False), *((name, epochs, True) for name in names for epochs in (few, many))]
    found: dict[str, Any] = {}
    print("\none more local iteration of a client, half of the units dropped by feddrop and fedbiad")
    for width in (128, 256):
        ready = [experiment(data, name, epochs, units=width, selected=selected) for name, epochs, _ in variants]
        running = [own.run(own.initial()) for own in ready]
        records = [[next(own)[0] for own in running] for _ in range(warm_up + count)]
        seconds = {key: [row[i]["seconds"]["local"] for row in records[warm_up:]] for i, key in enumerate(variants)}
        for name in names:
            pairs = zip(seconds[name, few, True], seconds[name, many, True], strict=True)
            own = spread([(long - short) / ((many - few) * IMAGES // BATCH) for short, long in pairs])
            first = found.setdefault(f"fedavg, {width} units", own)
            found[f"{name}, {width} units"] = {**own, "ratio": own["median"] / first["median"]}
            print(f"  {name:8} {width} units  {1e6 * own['median']:6.2f} us  {own['median'] / first['median']:.3f}")
    return found


def profile(work: Work, count: int = 20) -> dict[str, float]:
    """The share of a round's time in the functions that take most of it themselves."""
    watcher = cProfile.Profile()
    watcher.runcall(lambda: [work() for _ in range(count)])
    stats: dict[tuple[str, int, str], tuple[int, int, float, float, Any]] = vars(pstats.Stats(watcher))["stats"]
    own = {f"{Path(file).stem}.{name}" if file != "~" else name.strip("<>"): times[2]
           for (file, _, name), times in stats.items()}  # fmt: skip
    total = sum(own.values())
    largest = sorted(own, key=own.__getitem__, reverse=True)[:10]
    return {name: own[name] / total for name in largest}


def main() -> None:
    """Run all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("results/engine.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data, repeats = federated(), arguments.repeats
    meet(data)
    found: dict[str, Any] = {"machine": machine(), "product_speed": product_speed()}

    def ours(**options: Any) -> Experiment:
        return experiment(data, **options)

    for epochs in (1, 5):
        forms = {form: ours(epochs=epochs, form=form) for form in ("fused", "dual", "compact", "masked")}
        found[f"forms, {epochs} epochs"] = own = table(f"FedAvg, {epochs} local epochs", forms, repeats)
        # forward and the weights' gradient of both layers, and what flows back into the hidden one
        plain = 2 * SELECTED * epochs * IMAGES * (2 * 784 * UNITS + 3 * UNITS * 10)
        own["fused"]["of_limit"] = plain / found["product_speed"] / own["fused"]["median"]
        print(f"  fused at {own['fused']['of_limit']:.2f} of the limit of the plain form's multiplications")
    names: tuple[str, ...] = ("fedavg", "feddrop", "fedbiad", "afd", "fedmp", "fjord", "heterofl")
    found["methods"] = table("methods at p = 0.5, 5 epochs", {name: ours(name=name) for name in names}, repeats)
    names = ("fedavg", "fedavg+evidence", "fedavg+fedpaq", "fedavg+signsgd", "fedavg+stc", "fedavg+dgc")
    found["compressors"] = table("compressors, 5 epochs", {name: ours(name=name) for name in names}, repeats)
    grow: dict[str, tuple[str, Callable[[int], Experiment], tuple[int, ...]]] = {
        "block": ("clients of a block", lambda n: ours(block=n), (25, 5, 10, 50, 100)),
        "clients": ("clients a round", lambda n: ours(selected=n, block=10), (100, 10, 50, 200, 500)),
        "width": ("hidden units", lambda n: ours(units=n), (128, 32, 64, 256, 512)),
        "epochs": ("local epochs", lambda n: ours(epochs=n), (5, 1, 2, 10, 20)),
    }
    for key, (title, make, values) in grow.items():
        found[key] = table(f"FedAvg by {title}", {str(n): make(n) for n in values}, repeats)
    for epochs in (1, 5):
        by = {f"{n} workers": ours(epochs=epochs, workers=n) for n in (1, 2)}
        found[f"workers, {epochs} epochs"] = table(f"FedAvg, {epochs} epochs, by workers", by, repeats, 10, warm_up=6)
    found["workers, PTB"] = language_by_workers(min(repeats, 5))
    found["local steps"] = local_steps(data, repeats)
    found["profile"] = {name: profile(rounds(ours(name=name, block=50))) for name in ("fedavg", "fedbiad")}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.out, (json.dumps(found, indent=1) + "\n").encode())
    print(f"\nwritten to {arguments.out}")


if __name__ == "__main__":
    main()
