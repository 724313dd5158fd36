"""The work every simulator does, and how it is timed: whatever a peer's script needs besides the peer.

Runs in every peer's environment, so it imports nothing but NumPy.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

INPUTS, HIDDEN, CLASSES = 784, 128, 10
CLIENTS, SAMPLES, SELECTED = 1000, 60, 100
BATCH = 10
LEARNING_RATE = 0.1
EVALUATE_EVERY = 10
SEED = 0

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
PARTS = ("inputs", "targets", "test_inputs", "test_targets")
WEIGHTS = ("layer1.weight", "layer1.bias", "layer2.weight", "layer2.bias")
SHAPES = ((HIDDEN, INPUTS), (HIDDEN,), (CLASSES, HIDDEN), (CLASSES,))


@dataclass(frozen=True)
class Data:
    """Inputs [clients, samples, 784] and targets [clients, samples], the test set, and the first weights."""

    inputs: Floats
    targets: Labels
    test_inputs: Floats
    test_targets: Labels
    weights: dict[str, Floats]


@functools.cache
def load(directory: Path) -> Data:
    """What `prepare` wrote; each process reads it once."""
    inputs, targets, test_inputs, test_targets = (np.load(directory / f"{name}.npy") for name in PARTS)
    weights = {name: np.load(directory / f"{name}.npy") for name in WEIGHTS}
    return Data(inputs, targets, test_inputs, test_targets, weights)


def deal(images: int) -> npt.NDArray[np.int64]:
    """Which images each client has [clients, samples]: one fixed shuffle, cut into equal parts."""
    return np.random.default_rng(SEED).permutation(images).reshape(CLIENTS, -1)


def first_weights() -> dict[str, Floats]:
    """Weights as torch's `nn.Linear` draws them: uniform within 1 / sqrt(inputs of the layer), biases too."""
    rng = np.random.default_rng(SEED)
    bounds = (INPUTS**-0.5, INPUTS**-0.5, HIDDEN**-0.5, HIDDEN**-0.5)
    return {
        name: rng.uniform(-bound, bound, shape).astype(np.float32)
        for name, shape, bound in zip(WEIGHTS, SHAPES, bounds, strict=True)
    }


@dataclass(frozen=True)
class Arguments:
    """What a peer's script is asked to do."""

    data: Path
    epochs: int
    rounds: int
    warmup: int
    threads: int
    workers: int

    @property
    def total(self) -> int:
        """Rounds in all, those of the warm-up included."""
        return self.warmup + self.rounds


def arguments(description: str | None) -> Arguments:
    """The command line of a peer's script."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, required=True, help="the directory of the prepared arrays")
    parser.add_argument("--epochs", type=int, default=1, help="local epochs")
    parser.add_argument("--rounds", type=int, default=8, help="rounds that are timed")
    parser.add_argument("--warmup", type=int, default=2, help="rounds before them")
    parser.add_argument("--threads", type=int, default=1, help="threads of each worker")
    parser.add_argument("--workers", type=int, default=1, help="processes (or devices) that train clients")
    given = parser.parse_args()
    if min(given.epochs, given.rounds, given.warmup, given.threads, given.workers) < 1:
        parser.error("epochs, rounds, warmup, threads and workers must be at least 1")
    return Arguments(given.data, given.epochs, given.rounds, given.warmup, given.threads, given.workers)


@dataclass
class Stopwatch:
    """Times the rounds after the warm-up, their evaluations included."""

    asked: Arguments
    evaluations: dict[int, float] = field(default_factory=dict)
    began: float = 0.0
    seconds: float = 0.0

    def round_over(self, number: int, evaluate: Callable[[], float]) -> None:
        """Call after each round (from 1) with what gives the accuracy then: it is asked in every tenth round."""
        if number % EVALUATE_EVERY == 0:
            self.evaluations[number] = evaluate()
        if number == self.asked.warmup:
            self.began = time.perf_counter()
        if number == self.asked.total:
            self.seconds = time.perf_counter() - self.began
            if number not in self.evaluations:
                self.evaluations[number] = evaluate()

    def line(self, peer: str, version: str) -> str:
        """The run as one line of JSON."""
        asked = self.asked
        return json.dumps(
            {
                "peer": peer,
                "version": version,
                "epochs": asked.epochs,
                "rounds": asked.rounds,
                "seconds": round(self.seconds, 4),
                "rounds_per_second": round(asked.rounds / self.seconds, 4),
                "accuracy": self.evaluations[asked.total],
                "threads": asked.threads,
                "workers": asked.workers,
                "evaluations": self.evaluations,
            }
        )
