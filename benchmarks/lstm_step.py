"""One local step of the language model, as ratios in one run: every row group at p = 0.5, compact and masked.

    python benchmarks/lstm_step.py [--words 10000] [--shapes 4x20,20x35] [--repeat 7] [--out results/lstm.json]

Variants are interleaved and the median of the repeats is taken, so a busy machine shifts all of them alike. `limit` is
the time the step's multiplications alone would take at the speed of a large matrix product measured in the same run.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import Work, interleaved, machine, spread

from fedbiad import patterns
from fedbiad.files import write_atomically
from fedbiad.models import LSTM
from fedbiad.training.batches import Batch
from fedbiad.training.compact import CompactStep
from fedbiad.training.masked import MaskedStep
from fedbiad.training.step import LocalStep

KINDS = ("output-columns", "output-words", "embedding-columns", "embedding-words", "gates-ih", "gates-hh", "lstm-units",
         "paper")  # fmt: skip
CLIENTS = 1
STEPS = 5
"""Steps a turn: a client's own steps follow on each other, too."""


def main() -> None:
    """Time every variant at every shape, print the tables and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=10_000)
    parser.add_argument("--shapes", default="4x20,20x35", help="sequences x tokens, comma-separated")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("results/lstm.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"machine": machine(), "steps": {}}
    for shape in arguments.shapes.split(","):
        batch, bptt = map(int, shape.split("x"))
        found["steps"][f"{batch} x {bptt}"] = measured(LSTM(arguments.words), batch, bptt, arguments.repeat)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.out, (json.dumps(found, indent=1) + "\n").encode())
    print(f"\nwritten to {arguments.out}")


def measured(model: LSTM, batch: int, bptt: int, repeats: int) -> dict[str, float]:
    """Median seconds of every variant."""
    words, shape = model.vocabulary, (CLIENTS, batch, bptt)
    samples = Batch(torch.randint(0, words, shape), torch.randint(0, words, (CLIENTS, batch * bptt)))
    steps: dict[str, Work] = {"fedavg": stepper(model, "lstm-units", 0.0, samples, CompactStep)}
    for kind in KINDS:
        steps[f"{kind}, compact"] = stepper(model, kind, 0.5, samples, CompactStep)
        steps[f"{kind}, masked"] = stepper(model, kind, 0.5, samples, MaskedStep)
    steps["limit"] = products(model, batch * bptt)
    times = {label: spread(own)["median"] / STEPS for label, own in interleaved(steps, repeats).items()}
    print(f"\none step of {batch} x {bptt} tokens, {words:,} words: fedavg {1e3 * times['fedavg']:.1f} ms = 1")
    for label, value in times.items():
        print(f"{label:28} {value / times['fedavg']:5.2f}")
    return times


def stepper(model: LSTM, rows: str, p: float, batch: Batch, form: type[LocalStep]) -> Work:
    """A step on its own copy of the model."""
    layout = model.layout(rows)
    u = {name: value.unsqueeze(0).repeat(CLIENTS, *[1] * value.dim())
         for name, value in model.init(np.random.default_rng(0)).items()}  # fmt: skip
    drawn = patterns.draw(layout, p, np.random.default_rng(0).random((CLIENTS, layout.num_rows)))
    local = form(model, layout, u, drawn, scale=1.0 / (1.0 - p), learning_rate=1.0, clip=0.25)
    return lambda: [local.update(local.sample_weights(step), batch, {}) for step in range(STEPS)]


def products(model: LSTM, tokens: int) -> Work:
    """As many multiplications as a whole step needs (three passes over every matrix), in one large product."""
    weights = sum(shape[0] * shape[1] for name, shape in model.shapes.items() if len(shape) == 2 and "emb" not in name)
    side = round((3 * weights * tokens) ** (1 / 3))
    left, right = torch.rand(side, side), torch.rand(side, side)
    return lambda: [torch.mm(left, right) for _ in range(STEPS)]


if __name__ == "__main__":
    main()
