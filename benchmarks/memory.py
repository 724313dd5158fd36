"""Peak memory and time of a round for more and more registered clients, 100 of them selected a round.

    python benchmarks/memory.py [--clients 1000,10000,100000,1000000] [--rounds 10] [--store disk] [--out memory.json]

Every client has 60 images of 28 x 28 bytes in a memory-mapped file, MNIST's if they are there, else random ones.
Clients are stretches of the same 60,000 images, overlapping from the 1,001st on: a million separate ones would fill
47 GB. Each number of clients is run in a process of its own; its peak memory is what the system counted, files mapped
included. CPU time is that of a round with its evaluation; unlike the time of a round it does not depend on what else
the machine does. Last, a round of PTB's language model with 10 and with all 100 of its clients, where the data are
there: the clients' weights are never all in memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import machine

from fedbiad.data import Scaling, write_mapped_pool
from fedbiad.data.mnist import Arrays, read_mnist
from fedbiad.errors import DataError
from fedbiad.experiment import build
from fedbiad.files import write_atomically
from fedbiad.plan import from_dict, load

SAMPLES, SELECTED = 60, 100
PTB = "ptb"


def main() -> None:
    """Measure every number of clients and print the table; with --run be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="1000,10000,100000,1000000")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--store", default="memory", choices=["memory", "disk"])
    parser.add_argument("--out", type=Path, help="where to write the numbers as JSON")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run == Path(PTB):
        print(json.dumps(language(int(arguments.clients))))
        return
    if arguments.run:
        print(json.dumps(measured(arguments.run, int(arguments.clients), arguments.rounds, arguments.store)))
        return
    lines = []
    print(f"fedbiad, {SELECTED} clients a round, {arguments.rounds} rounds, states: {arguments.store}")
    print(
        f"{'registered':>10} {'peak MB':>8} {'of first':>8} {'ms a round':>11} {'of first':>8} {'(from  to)':>14} "
        f"{'CPU ms':>8} {'of first':>8}"
    )
    with tempfile.TemporaryDirectory(prefix="fedbiad-memory-") as scratch:
        for count in map(int, arguments.clients.split(",")):
            directory = Path(scratch) / str(count)
            write(directory, count)
            lines.append(in_a_process(directory, count, arguments.rounds, arguments.store))
            show(lines[-1], lines[0])
    texts = [text for count in (10, 100) if (text := in_a_process(Path(PTB), count, 1, arguments.store))]
    for text in texts:
        print(f"PTB, {text['selected']} of 100 clients a round: {text['peak_bytes'] / 1e6:.0f} MB; "
              f"the weights of one are {text['weight_bytes'] / 1e6:.1f} MB")  # fmt: skip
    if arguments.out:
        told = {"machine": machine(), "rows": lines, "ptb": texts}
        write_atomically(arguments.out, (json.dumps(told, indent=1) + "\n").encode())


def write(directory: Path, count: int) -> None:
    """So many clients of 60 images each."""
    try:
        images, labels, test_images, test_labels = read_mnist()
    except DataError:
        images, labels, test_images, test_labels = random_images()
    last = len(images) - SAMPLES
    numbers = np.arange(count, dtype=np.int64)
    # one after another, and where the images end again from the start, shifted by an image
    starts = (SAMPLES * numbers + numbers // (last // SAMPLES + 1)) % (last + 1)
    write_mapped_pool(
        directory, (images[:, None], labels), starts, np.full(count, SAMPLES), (test_images[:, None], test_labels), 10,
        scaling=Scaling(255.0, 0.1307, 0.3081),
    )  # fmt: skip


def random_images() -> Arrays:
    """As many as MNIST has."""
    stream = np.random.default_rng(0)
    parts = [(stream.integers(0, 256, (n, 28, 28)), stream.integers(0, 10, n)) for n in (60_000, 10_000)]
    (train, train_labels), (test, test_labels) = [(x.astype(np.uint8), y.astype(np.uint8)) for x, y in parts]
    return train, train_labels, test, test_labels


def in_a_process(directory: Path, count: int, rounds: int, store: str) -> dict[str, Any]:
    """What a fresh process measures."""
    command = [sys.executable, __file__, "--run", str(directory), "--clients", str(count), "--rounds", str(rounds)]
    found = subprocess.run([*command, "--store", store], check=True, capture_output=True, text=True)
    line: dict[str, Any] = json.loads(found.stdout)
    return line


def measured(directory: Path, count: int, rounds: int, store: str) -> dict[str, Any]:
    """Run the rounds here; what this process needed at most, from its start on."""
    torch.set_num_threads(1)
    plan = from_dict({
        "method": "fedbiad", "rounds": rounds, "dropout_rate": 0.2, "engine": {"store": store},
        "data": {"name": "mapped", "path": str(directory), "clients": count, "partition": "users"},
        "training": {"learning_rate": 0.1, "selected": SELECTED},
    })  # fmt: skip
    began = time.perf_counter()
    experiment = build(plan)
    opened = time.perf_counter() - began
    seconds, work = list[float](), [time.process_time()]
    for record, _ in experiment.run(experiment.initial()):
        seconds.append(record["seconds"]["training"])
        work.append(time.process_time())
    seen = len(experiment.transport.store)
    experiment.close()
    peak = peak_bytes()
    return {
        "clients": count, "selected": SELECTED, "store": store, "seen": seen, "peak_bytes": peak,
        "open_seconds": opened, "round_seconds": statistics.median(seconds), "rounds": seconds,
        "cpu_seconds": statistics.median(np.diff(work).tolist()),
    }  # fmt: skip


def language(selected: int) -> dict[str, Any]:
    """A round of FedBIAD on PTB at its real size, with few iterations: what is held does not depend on them."""
    torch.set_num_threads(1)
    changes = {"rounds": "1", "training.iterations": "2", "training.selected": str(selected), "evaluate_last": "1"}
    try:
        experiment = build(load(PTB, {**changes, "method": "fedbiad"}))
    except DataError:
        return {}
    for _ in experiment.run(experiment.initial()):
        pass
    weights = experiment.server.layout.num_weights
    experiment.close()
    return {"selected": selected, "weight_bytes": 4 * weights, "peak_bytes": peak_bytes()}


def peak_bytes() -> int:
    """What this process needed at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def show(line: dict[str, Any], first: dict[str, Any]) -> None:
    """One line of the table."""
    memory, pace, work = (line[key] / first[key] for key in ("peak_bytes", "round_seconds", "cpu_seconds"))
    spread = f"({min(line['rounds']) * 1e3:.0f} to {max(line['rounds']) * 1e3:.0f})"
    print(f"{line['clients']:10,} {line['peak_bytes'] / 1e6:8.0f} {memory:8.3f} {line['round_seconds'] * 1e3:11.0f} "
          f"{pace:8.2f} {spread:>14} {line['cpu_seconds'] * 1e3:8.0f} {work:8.2f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
