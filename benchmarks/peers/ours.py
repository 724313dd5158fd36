"""This project: FedAvg, assembled as a plan would be."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
import torch
import work

from fedbiad.data import FederatedData
from fedbiad.experiment import LAST, Experiment, assemble
from fedbiad.methods import FedAvg
from fedbiad.models import MLP
from fedbiad.plan import EnginePlan, TrainingPlan
from fedbiad.training.evaluate import evaluate


def federated(data: work.Data) -> FederatedData:
    """The prepared arrays as the run's data."""
    starts = np.arange(0, work.CLIENTS * work.SAMPLES + 1, work.SAMPLES)
    return FederatedData(
        torch.from_numpy(data.inputs).flatten(0, 1), torch.from_numpy(data.targets).flatten(), starts,
        torch.from_numpy(data.test_inputs), torch.from_numpy(data.test_targets), "test", work.CLASSES, 0,
    )  # fmt: skip


def engine(asked: work.Arguments) -> EnginePlan:
    """How the work is done: a block of clients for each worker."""
    return EnginePlan(block=-(-work.SELECTED // asked.workers), threads=asked.threads, workers=asked.workers)


def experiment(asked: work.Arguments, data: work.Data) -> Experiment:
    """The run; it is longer than asked because a run judges each of its last rounds."""
    iterations = asked.epochs * work.SAMPLES // work.BATCH
    training = TrainingPlan(work.LEARNING_RATE, iterations, work.BATCH, work.SELECTED)
    return assemble(
        FedAvg(), MLP(work.INPUTS, (work.HIDDEN,), work.CLASSES), federated(data), training, engine(asked),
        asked.total + LAST, work.SEED, work.SELECTED, work.EVALUATE_EVERY,
    )  # fmt: skip


def main() -> None:
    """Run the rounds and print the line."""
    asked = work.arguments(__doc__)
    torch.set_num_threads(asked.threads)
    data = work.load(asked.data)
    run = experiment(asked, data)
    first = {name: torch.from_numpy(value) for name, value in data.weights.items()}
    watch = work.Stopwatch(asked)
    for record, outcome in run.run(first):

        def accuracy(known: float | None = record["accuracy"], u: dict[str, torch.Tensor] = outcome.u) -> float:
            return evaluate(run.model, u, run.data.evaluation()).accuracy if known is None else known

        watch.round_over(outcome.round, accuracy)
        if outcome.round == asked.total:
            break
    print(watch.line("ours", version("fedbiad")))


if __name__ == "__main__":
    main()
