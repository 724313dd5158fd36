"""What messages tell about which words a client has: rows of the embedding that show a change, right and wrong.

    python benchmarks/privacy.py [--plan ptb] [--clients 2] [--budgets 0.005] [--floors 0,0.001,0.01] [--run DIR]

A word that is in none of a client's windows of a round has a change of exactly 0, so FedAvg's message names the words.
Messages of evidence coding are judged against that: which rows have an entry, and how well the best threshold on their
number tells words that are there from others (true less false positives; 0: nothing is told, 1: everything).
Clients are trained from the initial model, or from the last checkpoint of a run.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import torch

from fedbiad import plan as plans
from fedbiad import theory
from fedbiad.arrays import IntArray, Pattern
from fedbiad.cohort import Cohort
from fedbiad.compressors import Evidence
from fedbiad.errors import UpdateError
from fedbiad.experiment import build
from fedbiad.payloads import Multiples
from fedbiad.rundir import RunDir

TABLE = "embedding.weight"


def main() -> None:
    """Train some clients, send what they learned, and judge it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", default="ptb")
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--budgets", default="0.005")
    parser.add_argument("--floors", default="0,0.001,0.01")
    parser.add_argument("--run", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    budgets, floors = ([float(part) for part in text.split(",")] for text in (arguments.budgets, arguments.floors))
    plan = plans.load(arguments.plan, {"method": "fedavg"})
    experiment = build(plan)
    u, round_ = experiment.initial(), 1
    if arguments.run is not None:
        last, _ = RunDir.open(arguments.run).checkpoints.load()
        if last is None:
            raise SystemExit(f"{arguments.run} has no checkpoint")
        u, round_ = {name: last.u[name] for name in u}, last.round + 1
    table, (words, width) = next(iter(experiment.server.layout.shapes.items()))
    if table != TABLE:
        raise SystemExit(f"{arguments.plan} has no words: its first parameter is {table}")
    training, lines = experiment.transport.training, []
    for client in range(arguments.clients):
        cohort = Cohort(plan.seed, round_, (client,))
        received, _ = training.channel.download(u, cohort)
        own, trained, senders = training.local(received, cohort, experiment.transport.store.lend((client,)))
        change = training.channel.change(trained, 0, senders)
        there: Pattern = np.abs(change.delta[: words * width].reshape(words, width)).max(axis=1) > 0
        for budget, floor in product(budgets, floors):
            channel = replace(training.channel, compressor=Evidence(budget=budget, floor=floor))
            try:
                reply, _ = channel.reply(own, trained, 0, senders, change)
            except UpdateError as error:
                print(f"budget {budget}, floor {floor}: {error}")
                continue
            (part,) = reply.payload.parts
            assert isinstance(part, Multiples)
            counts = np.bincount(part.positions[part.positions < words * width] // width, minlength=words)
            noise = theory.added_variance(change.delta.astype(np.float64), float(part.step), floor)
            energy = float(np.square(change.delta, dtype=np.float64).sum())
            lines.append((budget, floor, there.sum(), *told(there, counts), noise / energy))
    heads = ("budget", "floor", "words there", "rows shown", "right", "of those there", "told apart", "noise / energy")
    print(" | ".join(heads))
    for budget, floor in product(budgets, floors):
        own_lines = [line for line in lines if line[:2] == (budget, floor)]
        if own_lines:
            found = np.mean(own_lines, axis=0)
            print(" | ".join([f"{budget:g}", f"{floor:g}", f"{found[2]:.0f}", f"{found[3]:.0f}",
                              *(f"{share:.2f}" for share in found[4:])]))  # fmt: skip


def told(there: Pattern, counts: IntArray) -> tuple[float, float, float, float]:
    """Rows shown, the share of them that is right, the share of words shown, and how well counts tell them apart."""
    shown = counts > 0
    apart = max(
        float((counts[there] >= least).mean() - (counts[~there] >= least).mean()) for least in np.unique(counts)
    )
    right = float((shown & there).sum()) / max(int(shown.sum()), 1)
    return float(shown.sum()), right, float(shown[there].mean()), apart


if __name__ == "__main__":
    main()
