"""Evidence coding on the updates of real clients: bytes, the best possible ones, and time against local training.

    python benchmarks/evidence.py [--plans fmnist,ptb] [--rounds 1,5] [--clients 0,3] [--repeat 10] [--draws 50]
                                  [--form compact]

Sizes and variances for steps of 16, 64 and 256 mean changes; times as ratios to local training, by turns in one run;
how often chance makes a message too long; what duels cancel. `--kept 10000` checks as many budgets on random updates.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod

import numpy as np
import torch

from fedbiad import plan as plans
from fedbiad import wire
from fedbiad.arrays import FloatArray
from fedbiad.coding.multiples import multiples_bits, put_multiples
from fedbiad.coding.sink import Sink
from fedbiad.coding.values import entropy_bits
from fedbiad.compressors import Evidence, Room, Segment
from fedbiad.compressors.duels import masses, rounded
from fedbiad.compressors.evidence import CEILING
from fedbiad.data import FederatedData
from fedbiad.experiment import Experiment, build, load_federated
from fedbiad.messages import ReplyMessage, Report
from fedbiad.payloads import Dense, Float32, Multiples, Payload
from fedbiad.rows import Layout
from fedbiad.sending import flatten
from fedbiad.theory import added_variance, least_rate
from fedbiad.transports.base import Request

SETTINGS = {"fmnist": {"training.learning_rate": "0.12", "training.server_step": "2.0"}, "ptb": {}}
"""Where FedAvg learns best (docs/results.md)."""
STEPS = (16, 64, 256)
BUDGETS = (0.002, 0.005, 0.01)
RUN = 1
SAMPLED = 500_000
"""Weights whose variances the least rate is worked out from."""
Blocks = list[tuple[int, int]]


@dataclass(frozen=True)
class Update:
    """What one client changed in one round."""

    round: int
    client: int
    delta: Float32


def main() -> None:
    """Record, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", default="fmnist,ptb")
    parser.add_argument("--rounds", default="1,5")
    parser.add_argument("--clients", default="0,3")
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--form", default="auto", help="of the local training that times are shares of")
    parser.add_argument("--draws", type=int, default=50, help="draws of each update for what depends on chance")
    parser.add_argument("--kept", type=int, default=0, help="random updates whose budget is checked")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    numbers = [[int(n) for n in text.split(",")] for text in (arguments.rounds, arguments.clients)]
    for name in arguments.plans.split(","):
        plan = plans.load(name, {"method": "fedavg", **SETTINGS.get(name, {})})
        data = load_federated(plan)
        updates = recorded(build(plan, data), *numbers)
        experiment = build(plan.replace(engine={"block": 1, "form": arguments.form}), data)
        sizes(name, experiment.server.layout, updates)
        times(name, experiment, updates, arguments.repeat)
        retried(name, experiment.server.layout, updates, arguments.draws)
        if name == "fmnist":
            cancelled(experiment, updates, arguments.draws)
    if arguments.kept:
        budgets(arguments.kept)


def recorded(experiment: Experiment, rounds: Sequence[int], clients: Sequence[int]) -> list[Update]:
    """The updates of these clients in these rounds of FedAvg."""
    layout, u, found = experiment.server.layout, experiment.initial(), []
    outcomes = experiment.server.aggregate(experiment.transport, u, 0, max(rounds))
    for round_ in range(1, max(rounds) + 1):
        if round_ in rounds:
            for client in clients:
                (updates,) = experiment.transport.exchange(Request(round_, u, (client,)))
                if updates.total is None:
                    raise SystemExit(f"client {client} failed in round {round_}")
                # the sum over a block of one client is its weight times its change
                change = flatten(layout, updates.total.moved) / np.float32(updates.total.weight)
                found.append(Update(round_, client, change))
        if round_ < max(rounds):
            u = next(outcomes).u
    return found


def blocks_of(layout: Layout) -> Blocks:
    """Every parameter as a matrix of its first axis by all others; a vector is one row."""
    return [(s[0], prod(s[1:])) if len(s) > 1 else (1, s[0]) for s in layout.shapes.values()]


# ---------------------------------------------------------------------- bytes


def sizes(name: str, layout: Layout, updates: Sequence[Update]) -> None:
    """Print real bytes against ideal ones and the least rate, means over the updates."""
    blocks, weights = blocks_of(layout), layout.num_weights
    print(
        f"{name}: {len(updates)} updates of {weights} weights; bytes, share of float32, bits a weight, added variance"
    )
    heads = ("D / mean", "sent", "bytes", "share", "of planned", "of row code", "bits", "least", "noise")
    print(" ".join(f"{head:>11}" for head in heads))
    for multiple in STEPS:
        lines = []
        for update in updates:
            step = np.float32(multiple * np.abs(update.delta).mean(dtype=np.float64))
            part = Multiples(weights, step, *rounded(update.delta, masses(update.delta), float(step), update.client))
            sink = Sink()
            put_multiples(sink, part, blocks)
            real = sink.plain_size() + len(sink.coded())
            exact = update.delta.astype(np.float64)
            noise = added_variance(exact, float(step))
            every = max(weights // SAMPLED, 1)  # of millions of weights a sample will do
            least = every * least_rate(model_variances(exact, blocks)[::every], noise / every) / weights
            planned, by_rows = multiples_bits(part, blocks) / 8, row_code_bits(part, blocks) / 8
            relative = noise / float(np.square(exact).sum())
            lines.append((len(part.positions), real, real / planned, real / by_rows, least, relative))
        sent, real, ratio, of_rows, least, noise = np.mean(lines, axis=0)
        share = real / weights / 4
        print(
            f"{multiple:11} {sent:11.0f} {real:11.0f} {share:11.4%} {ratio:11.4f} {of_rows:11.4f} {32 * share:11.4f} "
            f"{least:11.4f} {noise:11.1f}"
        )


def row_code_bits(part: Multiples, blocks: Blocks) -> float:
    """The ideal length of a simpler code: a byte a row for its density, then every cell, a sign and a size each."""
    bits, start = 1.0 * len(part.positions) + entropy_bits(np.bincount(np.abs(part.multiples))), 0
    for rows, columns in blocks:
        first, last = np.searchsorted(part.positions, (start, start + rows * columns))
        counts = np.bincount((part.positions[first:last] - start) // columns, minlength=rows)
        bits += 8 * rows + sum(entropy_bits([count, columns - count]) for count in counts.tolist())
        start += rows * columns
    return bits


def model_variances(delta: FloatArray, blocks: Blocks) -> FloatArray:
    """The variance of every weight if it is that of its row times that of its column."""
    found, start = [], 0
    for rows, columns in blocks:
        squares = np.square(delta[start : start + rows * columns]).reshape(rows, columns)
        total = squares.sum()
        model = np.outer(squares.sum(axis=1), squares.sum(axis=0)) / total if total else squares
        found.append((model if rows > 1 else np.full_like(squares, total / columns)).ravel())
        start += rows * columns
    return np.concatenate(found)


# ---------------------------------------------------------------------- time


def times(name: str, experiment: Experiment, updates: Sequence[Update], repeat: int) -> None:
    """Print compressing, encoding and decoding as shares of local training, all of them by turns in one run."""
    layout, u, training = experiment.server.layout, experiment.initial(), []
    work: dict[float, list[tuple[Callable[[], object], ...]]] = {budget: [] for budget in BUDGETS}
    used: dict[float, list[float]] = {budget: [] for budget in BUDGETS}
    for budget, update in product(BUDGETS, updates):
        compress, dense = prepared(layout, update, budget)
        message = ReplyMessage(RUN, update.round, update.client, 60, None, compress(), Report(0.5))
        data = wire.encode_reply(layout, message)
        wire.decode_reply(data, layout, RUN)  # compiled by now
        encode, decode = partial(wire.encode_reply, layout, message), partial(wire.decode_reply, data, layout, RUN)
        work[budget].append((compress, encode, decode))
        used[budget].append(len(data) / (budget * dense))
    spent: dict[float, list[list[float]]] = {budget: [] for budget in BUDGETS}
    for i in range(repeat):
        training.append(seconds(lambda i=i: list(experiment.transport.exchange(Request(1, u, (i,))))))  # type: ignore[misc]
        for budget, jobs in work.items():
            spent[budget] += [[seconds(job) for job in own] for own in jobs]
    alone = statistics.median(training)
    print(f"{name}: shares of local training, one client alone, {1000 * alone:.1f} ms; {repeat} repeats, CPU time")
    print(f"{'budget':>9} {'of it':>7} {'compress':>9} {'encode':>9} {'decode':>9} {'enc + dec':>9}")
    for budget in BUDGETS:
        compress_, encode_, decode_ = np.median(spent[budget], axis=0) / alone
        shares = " ".join(f"{share:9.3f}" for share in (compress_, encode_, decode_, encode_ + decode_))
        print(f"{budget:9} {np.mean(used[budget]):7.3f} {shares}", flush=True)


def seconds(job: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    began = time.process_time()
    job()
    return time.process_time() - began


def prepared(layout: Layout, update: Update, budget: float, key: int = 0) -> tuple[Callable[[], Payload], int]:
    """What compresses an update as the channel would, and the bytes of FedAvg's message."""
    segments, start = [], 0
    for (rows, columns), (param, shape) in zip(blocks_of(layout), layout.shapes.items(), strict=True):
        segments.append(Segment(param, slice(start, start + rows * columns), len(shape), rows))
        start += rows * columns
    empty = Payload((Dense(update.delta[:0]),), difference=True)
    bare = ReplyMessage(RUN, update.round, update.client, 60, None, empty, Report(0.5))
    room = Room(*wire.reply_room(layout, bare))
    compressor, where = Evidence(budget=budget).for_message(room), np.arange(start)

    def compress() -> Payload:
        return compressor.compress(update.delta, where, segments, {}, 1, np.random.default_rng(key))[0]

    return compress, room.dense


# ---------------------------------------------------------------------- chance


def retried(name: str, layout: Layout, updates: Sequence[Update], draws: int) -> None:
    """Print how often chance makes a message too long, so that it is drawn again with a longer step."""
    for budget in BUDGETS:
        again = 0
        for update in updates:
            steps = []
            for key in range(draws):
                (part,) = prepared(layout, update, budget, key)[0]().parts
                assert isinstance(part, Multiples)
                steps.append(float(part.step))
            again += sum(step > min(steps) for step in steps)
        print(f"{name}: budget {budget}: {again} of {draws * len(updates)} messages drawn again", flush=True)


def cancelled(experiment: Experiment, updates: Sequence[Update], draws: int) -> None:
    """Print the squared error of the first layer's outputs on images, duels against independent draws."""
    assert isinstance(experiment.data, FederatedData)
    images = experiment.data.inputs[:500].reshape(500, -1).numpy().astype(np.float64)
    rows, columns = blocks_of(experiment.server.layout)[0]
    for update in updates:
        delta = update.delta[: rows * columns]
        step, sums, errors = 64 * float(np.abs(update.delta).mean(dtype=np.float64)), masses(delta), []
        for key in range(draws):
            positions, multiples = rounded(delta, sums, step, key)
            duels = np.zeros(len(delta))
            duels[positions] = multiples
            sizes_ = np.abs(delta.astype(np.float64)) / step
            up = np.random.default_rng(key).random(len(delta)) < sizes_ % 1
            apart = np.sign(delta) * (np.floor(sizes_) + up)
            pair = [((one * step - delta).reshape(rows, columns) @ images.T) for one in (duels, apart)]
            errors.append([float(np.square(one).mean()) for one in pair])
        ratio = np.mean(errors, axis=0)
        print(f"round {update.round}, client {update.client}: outputs' error, duels / apart {ratio[0] / ratio[1]:.3f}")


# ---------------------------------------------------------------------- budgets


def budgets(count: int) -> None:
    """Print how random updates of random sizes keep random budgets."""
    rng, shares, above = np.random.default_rng(0), [], 0
    for key in range(count):
        rows, columns = (int(n) for n in rng.integers(2, 60, 2))
        size = rows * columns + rows
        delta = rng.standard_normal(size) * np.exp(rng.normal(0, rng.uniform(0, 2.5), size // 9 + 1)).repeat(9)[:size]
        segments = [Segment("w", slice(0, rows * columns), 2, rows), Segment("b", slice(rows * columns, size), 1)]
        limit = float(np.exp(rng.uniform(np.log(60), np.log(60 + size))))
        compressor = Evidence(bytes=int(limit)).for_message(Room(4 * size, 30))
        payload, _ = compressor.compress(
            delta.astype(np.float32), np.arange(size), segments, {}, 1, np.random.default_rng(key)
        )
        (part,) = payload.parts
        assert isinstance(part, Multiples)
        sink = Sink()
        put_multiples(sink, part, [(rows, columns), (1, rows)])
        coded = len(sink.coded())
        taken = 30 + 2 + (0 if coded < 128 else 1 if coded < 16384 else 2) + sink.plain_size() + coded
        above += taken > CEILING * int(limit)
        shares.append(taken / int(limit))
    print(f"{count} random updates: {above} above {CEILING} of the budget")
    print(f"shares of the budget from {min(shares):.3f} to {max(shares):.4f}, mean {np.mean(shares):.3f}")


if __name__ == "__main__":
    main()
