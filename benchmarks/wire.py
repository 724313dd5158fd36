"""The wire on MNIST: messages against entropy and the paper's count, and its time against local training.

    python benchmarks/wire.py [--rounds 10] [--clients 6] [--repeat 30]

First whole runs by the paper's protocol, every message counted. Then FedAvg's updates of a few clients that take part
in every round (residuals spread over more and more entries: the hardest case), in detail. Then times: medians of
interleaved repeats, as ratios to the training of one client in the same run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, replace
from math import lgamma, log

import numpy as np
import torch

from fedbiad import compressors, wire
from fedbiad import plan as plans
from fedbiad.arrays import ClientState, Params
from fedbiad.coding.parts import blocks_of
from fedbiad.coding.positions import put_positions
from fedbiad.coding.sink import Sink
from fedbiad.coding.values import entropy_bits, put_bits, put_levels
from fedbiad.compressors import DGC, STC, Compressor
from fedbiad.data import FederatedData
from fedbiad.experiment import Experiment, build, load_federated
from fedbiad.messages import ReplyMessage, Report
from fedbiad.payloads import Dense, Levels, Part, Payload, Signs, Sparse, Ternary
from fedbiad.plan import Plan
from fedbiad.sending import flatten, segments
from fedbiad.transports.base import Request
from fedbiad.transports.inprocess import InProcess

RUN = 1
RUNS = (
    "fedavg",
    "fedbiad",
    "dgc:paper",
    "dgc",
    "stc:paper",
    "stc",
    "fedpaq:paper",
    "fedpaq",
    "signsgd",
    "half",
    "fedbiad+dgc:paper",
)
NAMES: dict[str, Compressor] = {
    "dgc, model": compressors.PAPER["dgc"],
    "dgc, tensor": DGC(warmup=(), dense_biases=False),
    "dgc, own paper": DGC(warmup=()),
    "stc, model": compressors.PAPER["stc"],
    "stc, tensor": STC(),
    "fedpaq": compressors.COMPRESSORS["fedpaq"],
    "fedpaq, max": compressors.PAPER["fedpaq"],
    "signsgd": compressors.COMPRESSORS["signsgd"],
    "half": compressors.COMPRESSORS["half"],
}


@dataclass(frozen=True)
class Line:
    """Figures of one message; bits an entry sent."""

    entries: int
    encoded: int
    paper: int
    alike: float
    """Positions at one density, or levels and signs by their histogram: the entropy."""
    coded: float
    """Positions, levels or signs as they are coded."""


def main() -> None:
    """Measure and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--repeat", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    plan = plans.load("mnist", {"method": "fedavg", "rounds": str(arguments.rounds)})
    data = load_federated(plan)
    assert isinstance(data, FederatedData)
    runs(plan, data)
    experiment = build(plan, data)
    sizes(experiment, tuple(range(0, 7 * arguments.clients, 7)), arguments.rounds)
    variants = {
        "step by step": {"block": 1, "form": "compact"},
        "fused": {"block": 1},
        "fused, in a block": {"block": 20},
    }
    trainers = {label: build(plan.replace(engine=engine), data) for label, engine in variants.items()}
    times(experiment, trainers, arguments.repeat)


# ---------------------------------------------------------------------- bytes


def runs(plan: Plan, data: FederatedData) -> None:
    """Print what whole runs send, as shares of the paper's count."""
    print(f"mean message of {plan.rounds} rounds, {plan.selected_clients} clients a round:")
    print(f"{'':16} {'bytes':>8} {'of paper':>9} {'round 1':>8} {'last':>8}")
    for name in RUNS:
        experiment = build(plan.replace(method=name), data)
        sent = [record["upload"] for record, _ in experiment.run(experiment.initial())]
        encoded, paper = (sum(counts[key] for counts in sent) for key in ("encoded", "paper"))
        first, last = (counts["encoded"] / counts["paper"] for counts in (sent[0], sent[-1]))
        mean = encoded / (plan.rounds * plan.selected_clients)
        print(f"{name:16} {mean:8.0f} {encoded / paper:9.3f} {first:8.3f} {last:8.3f}", flush=True)


def sizes(experiment: Experiment, ids: tuple[int, ...], rounds: int) -> None:
    """Print what every compressor's messages come to in the last round, means over the clients."""
    layout, u = experiment.server.layout, experiment.initial()
    states = {(name, k): compressor.init_client(layout.num_weights) for name, compressor in NAMES.items() for k in ids}
    lines: dict[str, list[Line]] = {name: [] for name in NAMES}
    outcomes = experiment.server.aggregate(experiment.transport, u, 0, rounds)
    for round_ in range(1, rounds + 1):
        replies = trained(experiment, u, round_, ids)
        for name, compressor in NAMES.items():
            lines[name] = []
            for k in ids:
                reply, states[name, k] = compressed(experiment, replies[k], compressor, states[name, k])
                lines[name].append(line(experiment, reply))
        u = next(outcomes).u
    print(f"\nround {rounds}, mean of {len(ids)} clients; bits an entry sent, positions, levels or signs alone:")
    print(f"{'':16} {'entries':>8} {'bytes':>8} {'of paper':>9} {'(worst)':>8} {'entropy':>8} {'coded':>7}")
    for name, found in lines.items():
        shares = [one.encoded / one.paper for one in found]
        entries, encoded, alike, coded = np.mean([(o.entries, o.encoded, o.alike, o.coded) for o in found], axis=0)
        print(
            f"{name:16} {entries:8.0f} {encoded:8.0f} {statistics.mean(shares):9.3f} {max(shares):8.3f} {alike:8.3f} "
            f"{coded:7.3f}"
        )


def trained(experiment: Experiment, u: Params, round_: int, ids: tuple[int, ...]) -> dict[int, ReplyMessage]:
    """The replies of these clients without compression."""
    layout, training, replies = experiment.server.layout, experiment.transport.training, {}
    # each by itself and of weight 1: the sum over its block is its own change
    single = InProcess(replace(training, alike=True), experiment.transport.store, experiment.seed, block=1)
    for updates in single.exchange(Request(round_, u, ids)):
        [k], [rows] = updates.ids, updates.pattern
        assert updates.total is not None
        change = flatten(layout, updates.total.moved)
        part = Dense(change if rows.all() else change[layout.kept_entries(rows)])
        report = Report(float(np.float32(updates.loss[0])), int(updates.checks[0]), int(updates.resampled[0]))
        pattern = None if rows.all() else rows
        samples = int(training.data.sizes[k])
        replies[k] = ReplyMessage(RUN, round_, k, samples, pattern, Payload((part,), True), report)
    return replies


def compressed(
    experiment: Experiment, reply: ReplyMessage, compressor: Compressor, state: ClientState
) -> tuple[ReplyMessage, ClientState]:
    """A reply with its difference compressed, and what the client remembers."""
    layout = experiment.server.layout
    rows = layout.all_rows(1)[0] if reply.pattern is None else reply.pattern
    where = np.flatnonzero(layout.kept_entries(rows))
    stream = np.random.default_rng(reply.client)
    payload, state = compressor.compress(
        reply.payload.values(), where, segments(layout, rows), state, reply.round, stream
    )
    return replace(reply, payload=payload), state


def line(experiment: Experiment, reply: ReplyMessage) -> Line:
    """The figures of one reply; the message must come back as it was."""
    layout = experiment.server.layout
    data = wire.encode_reply(layout, reply)
    got = wire.decode_reply(data, layout, RUN, reply.round, reply.client)
    if got.payload.values().tobytes() != reply.payload.values().tobytes():
        raise SystemExit(f"client {reply.client}: the message changed on the way")
    shapes = tuple((layout.shapes if reply.pattern is None else layout.kept_shapes(reply.pattern)).values())
    labels = 0 if reply.pattern is None else layout.num_rows
    entries, start, alike, coded = 0, 0, 0.0, 0.0
    for part in reply.payload.parts:
        count, entropy, bits = part_bits(part, shapes, start)
        entries, start, alike, coded = entries + count, start + part.size, alike + entropy, coded + bits
    paper = -(-reply.payload.paper_bits // 8) + -(-labels // 8)
    return Line(entries, len(data), paper, alike / max(entries, 1), coded / max(entries, 1))


def part_bits(part: Part, shapes: tuple[tuple[int, ...], ...], start: int) -> tuple[int, float, float]:
    """Entries sent, and the bits of what is entropy-coded about them: in theory and as written."""
    sink = Sink()
    if isinstance(part, Sparse | Ternary):
        count = len(part.positions)
        put_positions(sink, part.positions, blocks_of(shapes, start, start + part.size))
        return count, log2_choices(part.size, count), sink.bits()
    if isinstance(part, Levels):
        put_levels(sink, part.levels, part.steps)
        return part.size, entropy_bits(np.unique(part.levels, return_counts=True)[1]), sink.bits()
    if isinstance(part, Signs):
        ones = int(part.positive.sum())
        put_bits(sink, part.positive)
        return part.size, entropy_bits([ones, part.size - ones]), sink.bits()
    return part.size, 0.0, 0.0


def log2_choices(size: int, count: int) -> float:
    """log2 C(size, count)."""
    return (lgamma(size + 1) - lgamma(count + 1) - lgamma(size - count + 1)) / log(2)


# ---------------------------------------------------------------------- time


def times(experiment: Experiment, trainers: dict[str, Experiment], repeat: int) -> None:
    """Print encoding and decoding as shares of the local training of one client.

    Step by step is how a client trains any model; the fused form is the simulator's, for networks of one hidden layer.
    """
    layout, u, ids = experiment.server.layout, experiment.initial(), tuple(range(20))
    reply = trained(experiment, u, 1, ids)[3]
    messages = {"dense": reply}
    for name, compressor in NAMES.items():
        messages[name], _ = compressed(experiment, reply, compressor, compressor.init_client(layout.num_weights))
    training: dict[str, list[float]] = {label: [] for label in trainers}
    spent: dict[str, list[float]] = {name: [] for name in messages}
    for i in range(repeat):
        for label, trainer in trainers.items():
            asked = ids if "block" in label else (i % 20,)
            for updates in trainer.transport.exchange(Request(1, u, asked)):
                training[label].append(float(updates.local_seconds[0]))
        for name, message in messages.items():
            began = time.perf_counter()
            data = wire.encode_reply(layout, message)
            wire.decode_reply(data, layout, RUN, message.round, message.client)
            spent[name].append(time.perf_counter() - began)
    each = {label: statistics.median(own) for label, own in training.items()}
    told = ", ".join(f"{1000 * seconds:.1f} ms {label}" for label, seconds in each.items())
    print(f"\nencode + decode, against a client's training: {told}")
    print(f"{'':16} {'ms':>8} " + " ".join(f"{label:>17}" for label in each))
    for name, values in spent.items():
        median = statistics.median(values)
        print(f"{name:16} {1000 * median:8.2f} " + " ".join(f"{median / seconds:17.3f}" for seconds in each.values()))


if __name__ == "__main__":
    main()
