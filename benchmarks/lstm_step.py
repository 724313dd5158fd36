"""One local step of the language model, as ratios in one run: every row group at p = 0.5, compact and masked; and
FedAvg's with the words that are not in the client's data as one Gaussian term.

    python benchmarks/lstm_step.py [--words 10000] [--own-words 2442] [--shapes 4x20,20x35] [--repeat 7]
                                   [--only absent] [--out results/lstm.json]

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
from fedbiad.arrays import Params, Pattern
from fedbiad.files import write_atomically
from fedbiad.models import LSTM
from fedbiad.models.absent import AbsentWords
from fedbiad.training.batches import Batch
from fedbiad.training.compact import CompactStep
from fedbiad.training.local_words import LocalWords
from fedbiad.training.masked import MaskedStep
from fedbiad.training.step import LocalStep

KINDS = ("output-columns", "output-words", "embedding-columns", "embedding-words", "gates-ih", "gates-hh", "lstm-units",
         "paper")  # fmt: skip
CLIENTS = 1
ROUND = 20
"""Steps of a round: the moments of the absent words are made once for all of them."""
STEPS = 5
"""Steps a turn: a client's own steps follow on each other, too."""


def main() -> None:
    """Time every variant at every shape, print the tables and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=10_000)
    parser.add_argument("--own-words", type=int, default=2442, help="in the client's data: the mean of 100 PTB clients")
    parser.add_argument("--only", choices=["absent"], help="FedAvg's step with and without the term; writes nothing")
    parser.add_argument("--shapes", default="4x20,20x35", help="sequences x tokens, comma-separated")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("results/lstm.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"machine": machine(), "steps": {}}
    for shape in arguments.shapes.split(","):
        batch, bptt = map(int, shape.split("x"))
        samples = OwnWords(arguments.words, arguments.own_words, batch, bptt)
        kinds = () if arguments.only else KINDS
        times = measured(LSTM(arguments.words), samples, kinds, arguments.repeat)
        found["steps"][f"{batch} x {bptt}"] = times
        print(f"\none step of {batch} x {bptt} tokens, {arguments.words:,} words, {arguments.own_words:,} of them "
              f"in the client's data: fedavg {1e3 * times['fedavg']:.1f} ms = 1")  # fmt: skip
        for label, value in times.items():
            print(f"{label:30} {value / times['fedavg']:5.3f}")
    if arguments.only:  # a part is no file for the page
        return
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.out, (json.dumps(found, indent=1) + "\n").encode())
    print(f"\nwritten to {arguments.out}")


class OwnWords:
    """A client's samples: one batch of words drawn from its own."""

    def __init__(self, words: int, own: int, batch: int, bptt: int) -> None:
        self.own = torch.randperm(words)[:own]
        inputs, targets = torch.randint(0, own, (CLIENTS, batch, bptt)), torch.randint(0, own, (CLIENTS, batch * bptt))
        self._batch = Batch(self.own[inputs], self.own[targets])

    def batch(self, step: int) -> Batch:
        """The same whatever the step."""
        return self._batch

    def whole(self) -> Batch:
        """The one batch."""
        return self._batch

    def present(self, classes: int) -> Pattern:
        """Which words are its own [clients, classes]."""
        found = np.zeros((CLIENTS, classes), dtype=np.bool_)
        found[:, self.own.numpy()] = True
        return found


def measured(model: LSTM, samples: OwnWords, kinds: tuple[str, ...], repeats: int) -> dict[str, float]:
    """Median seconds of every variant."""
    batch = samples.batch(0)
    steps: dict[str, Work] = {"fedavg": stepper(model, "lstm-units", 0.0, batch, CompactStep)}
    steps["fedavg, gaussian absent words"], moments = absent_words(model, samples)
    for kind in kinds:
        steps[f"{kind}, compact"] = stepper(model, kind, 0.5, batch, CompactStep)
        steps[f"{kind}, masked"] = stepper(model, kind, 0.5, batch, MaskedStep)
    steps["limit"] = products(model, batch.targets.shape[1])
    medians = {
        label: spread(own)["median"] for label, own in interleaved({**steps, "moments": moments}, repeats).items()
    }
    share = medians.pop("moments") / ROUND
    times = {label: value / STEPS for label, value in medians.items()}
    return {**times, "the same with its moments": times["fedavg, gaussian absent words"] + share}


def absent_words(model: LSTM, samples: OwnWords) -> tuple[Work, Work]:
    """FedAvg's step with the Gaussian term, and all that is made for it once a round."""
    received, layout = whole_model(model), model.layout("lstm-units")

    def begin() -> tuple[LocalWords, Params, AbsentWords]:
        words = LocalWords(samples, model.vocabulary)
        return words, words.only(received), words.absent(received)

    words, u, absent = begin()
    u = {name: value.clone() for name, value in u.items()}
    local = CompactStep(model, layout, u, layout.all_rows(CLIENTS), learning_rate=1.0, clip=0.25, absent=absent)
    return lambda: [local.update(local.sample_weights(v), words.batch(v), {}) for v in range(STEPS)], begin


def whole_model(model: LSTM) -> Params:
    """Its first parameters, for every client."""
    return {name: value.unsqueeze(0).repeat(CLIENTS, *[1] * value.dim())
            for name, value in model.init(np.random.default_rng(0)).items()}  # fmt: skip


def stepper(model: LSTM, rows: str, p: float, batch: Batch, form: type[LocalStep]) -> Work:
    """A step on its own copy of the model."""
    layout, u = model.layout(rows), whole_model(model)
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
