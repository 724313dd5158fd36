"""One local step of the language model, as ratios in one run: every row group at p = 0.5, compact and masked.

    python benchmarks/lstm_step.py [--words 10000] [--batch 4] [--bptt 20] [--repeat 7]

Variants are interleaved and the median of the repeats is taken, so a busy machine shifts all of them alike. `flop` is
the time the step's multiplications alone would take at the speed of a large matrix product measured in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from fedbiad import patterns
from fedbiad.models import LSTM
from fedbiad.training.batches import Batch
from fedbiad.training.compact import CompactStep
from fedbiad.training.masked import MaskedStep
from fedbiad.training.step import LocalStep

KINDS = ("output-columns", "output-words", "embedding-columns", "embedding-words", "gates-ih", "gates-hh", "lstm-units",
         "paper")  # fmt: skip
CLIENTS = 1


def main() -> None:
    """Time every variant and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--bptt", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = LSTM(arguments.words)
    shape = (CLIENTS, arguments.batch, arguments.bptt)
    batch = Batch(
        torch.randint(0, arguments.words, shape), torch.randint(0, arguments.words, (CLIENTS, shape[1] * shape[2]))
    )
    steps: dict[str, Callable[[], object]] = {"fedavg": stepper(model, "units", 0.0, batch, CompactStep)}
    for kind in KINDS:
        steps[f"{kind}, compact"] = stepper(model, kind, 0.5, batch, CompactStep)
        steps[f"{kind}, masked"] = stepper(model, kind, 0.5, batch, MaskedStep)
    steps["flop"] = products(model, shape[1] * shape[2])
    times: dict[str, list[float]] = {label: [] for label in steps}
    for _ in range(arguments.repeat + 1):
        for label, step in steps.items():
            began = time.perf_counter()
            step()
            times[label].append(time.perf_counter() - began)
    median = {label: statistics.median(values[1:]) for label, values in times.items()}  # the first is a warm-up
    full = median["fedavg"]
    print(f"one step of {shape[1]} x {shape[2]} tokens, {arguments.words:,} words: fedavg {1e3 * full:.1f} ms = 1")
    for label, value in median.items():
        print(f"{label:28} {value / full:5.2f}")


def stepper(model: LSTM, rows: str, p: float, batch: Batch, form: type[LocalStep]) -> Callable[[], object]:
    """A step on its own copy of the model."""
    layout = model.layout(rows)
    u = {name: value.unsqueeze(0).repeat(CLIENTS, *[1] * value.dim())
         for name, value in model.init(np.random.default_rng(0)).items()}  # fmt: skip
    drawn = [patterns.draw(layout, p, np.random.default_rng(k)) for k in range(CLIENTS)]
    local = form(model, layout, u, np.stack(drawn), scale=1.0 / (1.0 - p), learning_rate=1.0, clip=0.25)
    return lambda: local.update(local.sample_weights(0), batch, {})


def products(model: LSTM, tokens: int) -> Callable[[], object]:
    """As many multiplications as a whole step needs (three passes over every matrix), in one large product."""
    weights = sum(shape[0] * shape[1] for name, shape in model.shapes.items() if len(shape) == 2 and "emb" not in name)
    side = round((3 * weights * tokens) ** (1 / 3))
    left, right = torch.rand(side, side), torch.rand(side, side)
    return lambda: torch.mm(left, right)


if __name__ == "__main__":
    main()
