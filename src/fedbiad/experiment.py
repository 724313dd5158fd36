"""From a plan, or from a user's own model and data, to the records of a run."""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedbiad import streams
from fedbiad.aggregation import MajorityVote
from fedbiad.arrays import IntArray, Params, ServerState
from fedbiad.client import LocalTraining
from fedbiad.compressors import Compressor
from fedbiad.data import FederatedData, MappedData, federate, text
from fedbiad.data import load as load_data
from fedbiad.data.base import ClientData
from fedbiad.data.language import LanguageData, federate_text
from fedbiad.errors import DataError, LayoutError, PlanError
from fedbiad.methods import Method
from fedbiad.models import CNN, LSTM, MLP, Model, TorchModule
from fedbiad.network import Network, lttr, time_to_accuracy
from fedbiad.plan import CORPORA, NO_WORDS, EnginePlan, Plan, TrainingPlan, selected_count, to_toml
from fedbiad.plan_problems import key_problems_of, resolve
from fedbiad.publishing import Publisher
from fedbiad.rows import Layout
from fedbiad.sending import Channel
from fedbiad.server import RoundOutcome, Server, select_clients
from fedbiad.state import MemoryStore, Store
from fedbiad.state_files import FileStore
from fedbiad.theory import total_input_data
from fedbiad.training import local_words
from fedbiad.training.evaluate import evaluate
from fedbiad.transports.block import BlockTraining
from fedbiad.transports.inprocess import InProcess
from fedbiad.transports.ray_cluster import RayCluster
from fedbiad.transports.workers import Workers

Record = dict[str, Any]
"""One round as plain numbers: a line of rounds.jsonl."""

WATCHED_ROUNDS = 60

LAST = 5
"""The mean accuracy of this many last rounds is reported beside the last one's."""


@dataclass(frozen=True)
class Experiment:
    """Everything assembled, ready to run."""

    model: Model
    data: ClientData
    transport: InProcess | Workers | RayCluster
    server: Server
    rounds: int
    seed: int
    evaluate_every: int = 1
    evaluate_last: int = LAST
    top: int = 1
    threads: int = 1
    """That judge U side by side: the workers rest meanwhile."""

    @property
    def notes(self) -> list[str]:
        """What a user should know of the data before the run."""
        left_out = self.data.left_out if isinstance(self.data, LanguageData) else ()
        if not left_out:
            return []
        some = ", ".join(left_out[:5]) + (" ..." if left_out[5:] else "")
        return [f"{len(left_out)} clients have less text than one window and are left out: {some}"]

    def close(self) -> None:
        """End what the transport started and the store needs."""
        self.transport.close()
        self.transport.store.close()

    def initial(self) -> Params:
        """U_0."""
        return self.model.init(streams.stream(self.seed, 0, streams.SERVER, "init"))

    def run(
        self, u: Params, start: int = 0, state: ServerState | None = None, before: Record | None = None
    ) -> Iterator[tuple[Record, RoundOutcome]]:
        """Rounds start+1 .. R from U_start and the server's state then, each with its record; `before` is the last."""
        u = {name: u[name] for name in self.model.shapes}  # one order of sums, whatever a checkpoint's order
        u = self.transport.training.work.laid_out(u)
        for batch in itertools.islice(self.data.evaluation(), 1):  # so that what judges is loaded before round 1
            evaluate(self.model, u, [batch], self.top)
        totals = {way: (before or {}).get(f"total_{way}", {}) for way in ("upload", "download")}
        for outcome in self.server.aggregate(self.transport, u, start, self.rounds, state):
            began = time.perf_counter()
            due = outcome.round % self.evaluate_every == 0 or outcome.round > self.rounds - self.evaluate_last
            due = due and self.data.eval_size > 0
            metrics = evaluate(self.model, outcome.u, self.data.evaluation(), self.top, self.threads) if due else None
            counted = outcome.tally.record()
            totals = {way: _added(so_far, counted[way]) for way, so_far in totals.items()}
            yield (
                {
                    "round": outcome.round,
                    "accuracy": metrics.accuracy if metrics else None,
                    "loss": metrics.loss if metrics else None,
                    **({"top1": metrics.top1 if metrics else None} if self.top > 1 else {}),
                    **counted,
                    **{f"total_{way}": total for way, total in totals.items()},
                    "seconds": {
                        "training": outcome.seconds,
                        "evaluation": time.perf_counter() - began,
                        **outcome.tally.seconds(),
                    },
                },
                outcome,
            )


def build(
    plan: Plan, data: FederatedData | LanguageData | MappedData | None = None, states: Path | None = None
) -> Experiment:
    """Load the data of a plan (unless given) and assemble it; `states` is where clients' states go, if to disk."""
    data = data or load_federated(plan)
    model = build_model(plan, data)
    method, compressor = plan.resolved()
    run = hashlib.blake2b(to_toml(plan.written_out()).encode(), digest_size=4).digest()
    return assemble(
        method, model, data, plan.training, plan.engine, plan.rounds, plan.seed, plan.selected_clients,
        plan.evaluate_every, compressor, plan.network, plan.watch, int.from_bytes(run, "little"),
        plan.top, states, plan.evaluate_last,
    )  # fmt: skip


def load_federated(plan: Plan) -> FederatedData | LanguageData | MappedData:
    """The data of a plan, spread over its clients."""
    settings = plan.data
    if settings.path is not None:
        mapped = MappedData(Path(settings.path), plan.evaluate_on)
        if mapped.num_clients != settings.clients:
            raise DataError(f"{settings.path} has {mapped.num_clients} clients, not data.clients = {settings.clients}")
        return mapped
    if settings.name in CORPORA:
        corpus = text.load(settings.name, words=settings.vocabulary, cased=settings.cased,
                           collection=settings.collection, users=settings.clients)  # fmt: skip
        return federate_text(corpus, clients=settings.clients, seed=plan.seed, bptt=settings.bptt,
                             evaluate_on=plan.evaluate_on, carry=settings.carry)  # fmt: skip
    return federate(
        load_data(settings.name, settings.image_size), partition=settings.partition, clients=settings.clients,
        seed=plan.seed, labels_per_client=settings.labels_per_client, concentration=settings.concentration,
        evaluate_on=plan.evaluate_on,
    )  # fmt: skip


def build_lstm(plan: Plan) -> LSTM:
    """The plan's language model; it takes nothing from the data but the number of words."""
    return LSTM(plan.data.vocabulary or 1, plan.model.embedding, plan.model.hidden[0], plan.model.layers)


def build_model(plan: Plan, data: FederatedData | LanguageData | MappedData) -> Model:
    """The plan's model, its ends fitted to the data."""
    if isinstance(data, LanguageData):
        return build_lstm(plan)
    if plan.model.name == "mlp":
        return MLP(math.prod(data.sample_shape), tuple(plan.model.hidden), data.classes)
    if len(data.sample_shape) != 3 or data.sample_shape[1] != data.sample_shape[2]:
        raise DataError(f"the cnn reads images [channels, side, side], not {list(data.sample_shape)}; use the mlp")
    channels, side = data.sample_shape[:2]
    if side % 4:
        raise DataError(f"the cnn pools twice: image side {side} is not a multiple of 4; set data.image_size")
    return CNN(side, plan.model.filters, plan.model.hidden[0], data.classes, channels)


def assemble(
    method: Method, model: Model, data: ClientData, training: TrainingPlan, engine: EnginePlan, rounds: int,
    seed: int, selected: int, evaluate_every: int = 1, compressor: Compressor | None = None,
    network: Network | None = None, watch: int | None = None, run: int = 0, top: int = 1,
    states: Path | None = None, evaluate_last: int = LAST,
) -> Experiment:  # fmt: skip
    """Put the parts together; the posterior noise takes m = m_R, the data seen by the last round."""
    if training.dropout and not model.dropout_sites:
        raise DataError("ordinary dropout knows no site in this model; put nn.Dropout into the module instead")
    obstacle = local_words.obstacle(method, model, model.layout(method.row_kind))
    if training.absent_words == "gaussian" and obstacle is not None:
        raise PlanError([f"absent_words = 'gaussian' does not fit: {obstacle}; use 'exact'"], "training")
    selected = min(selected, data.num_clients)
    layout = told_layout(method, model, training)
    work = local_training(method, model, training, engine, rounds, data.sizes)
    watched = _often_selected(seed, data.num_clients, selected, rounds) if watch is None else watch
    vote = majority(compressor, training.learning_rate)
    alike = vote is not None or method.weighting == "clients"
    network = network or Network()
    channel = Channel(layout, run, compressor, engine.wire, network)
    blocks = BlockTraining(work, data, channel, alike, watched)
    fresh = partial(method.init_client, layout)
    store: Store = FileStore(fresh, states) if engine.store == "disk" else MemoryStore(fresh)
    transport = _transport(engine, blocks, store, seed)
    publisher = None
    if training.increments is not None:
        publisher = Publisher(layout, training.increments, training.lost_copies, engine.wire)
    server = Server(method, layout, seed, selected, training.server_step, network, vote, publisher)
    return Experiment(model, data, transport, server, rounds, seed, evaluate_every, evaluate_last, top, engine.workers)


def majority(compressor: Compressor | None, learning_rate: float) -> MajorityVote | None:
    """What takes the place of the method's mean where clients send votes."""
    share = None if compressor is None else compressor.vote_step
    return None if share is None else MajorityVote(share * learning_rate)


def told_layout(method: Method, model: Model, training: TrainingPlan) -> Layout:
    """The rows of a method in a model, and whether clients send the words of their own data alone."""
    layout = model.layout(method.row_kind)
    if training.word_mean == "all":
        return layout
    if not model.words:
        raise PlanError([NO_WORDS.format(type(model).__name__)], "training")
    return replace(layout, words=model.words)


def _transport(
    engine: EnginePlan, training: BlockTraining, store: Store, seed: int
) -> InProcess | Workers | RayCluster:
    block = training.work.block
    if engine.transport == "ray":
        return RayCluster(training, store, seed, block, engine.address)
    if engine.workers > 1:
        return Workers(training, store, seed, block, engine.workers)
    return InProcess(training, store, seed, block)


def local_training(
    method: Method, model: Model, training: TrainingPlan, engine: EnginePlan, rounds: int, sizes: IntArray | None
) -> LocalTraining:
    """What clients of these sizes are told; None: clients are not known, so that no form depends on them."""
    std, largest = 0.0, None
    if sizes is not None:
        std = method.noise_std(model.structure, total_input_data(rounds, training.iterations, sizes))
        largest = None if isinstance(model, LSTM) else int(sizes.max())
    work = LocalTraining(
        method, model, model.layout(method.row_kind), training.iterations, training.batch, training.learning_rate,
        training.weight_decay, training.dropout, std, engine.form, training.clip, largest, training.absent_words,
        engine.block,
    )  # fmt: skip
    _ = work.chosen  # a form that is not exact here is refused before anything runs
    return work


def _often_selected(seed: int, clients: int, selected: int, rounds: int) -> int:
    """The client selected most often in the first rounds."""
    chosen = [select_clients(seed, r, clients, selected) for r in range(1, min(rounds, WATCHED_ROUNDS) + 1)]
    seen, times = np.unique(np.concatenate(chosen), return_counts=True)
    return int(seen[times.argmax()])


def _added(so_far: Record, more: Record) -> Record:
    """Two counts of bytes together; what is not known of one is not known of both."""
    return {name: None if value is None else value + (so_far.get(name) or 0) for name, value in more.items()}


def summarise(records: Sequence[Record], target_accuracy: float | None = None) -> Record:
    """What a run came to: last accuracy, mean of the last five, bytes, time."""
    judged = [record for record in records if record["accuracy"] is not None]
    last = judged[-LAST:]
    shares = [r["resampled_share"] for r in records if r["resampled_share"] is not None]
    return {
        "rounds": records[-1]["round"],
        "accuracy": judged[-1]["accuracy"] if judged else None,
        "accuracy_last_five": float(np.mean([record["accuracy"] for record in last])) if judged else None,
        "loss": judged[-1]["loss"] if judged else None,
        "train_loss": records[-1]["train_loss"],
        **{f"{way}_per_client": _per_client(records, way) for way in ("upload", "download")},
        **{name: records[-1][name] for name in ("total_upload", "total_download")},
        "lttr": lttr(records),
        "target_accuracy": target_accuracy,
        "time_to_accuracy": None if target_accuracy is None else time_to_accuracy(records, target_accuracy),
        "resampled_share": float(np.mean(shares)) if shares else None,
        "failed_updates": sum(len(record["failed"]) for record in records),
        "seconds": sum(record["seconds"]["training"] + record["seconds"]["evaluation"] for record in records),
    }


def _per_client(records: Sequence[Record], way: str) -> Record:
    """Mean bytes of a client and round, by name; those left out of a round have downloaded, too."""
    asked = [record["clients"] + (len(record["failed"]) if way == "download" else 0) for record in records]
    found: Record = {}
    for name in records[0][way]:
        totals = [record[way][name] for record in records]
        found[name] = None if None in totals else float(np.mean(np.array(totals) / asked))
    return found


@dataclass(frozen=True)
class SimulationResult:
    """The trained weights and how the run went."""

    params: Params
    records: list[Record]

    @property
    def summary(self) -> Record:
        """Last accuracy, mean of the last five, bytes, time."""
        return summarise(self.records)


def simulate(
    *,
    model: nn.Module | Model,
    clients: Sequence[tuple[Tensor, Tensor]] | MappedData,
    test: tuple[Tensor, Tensor] | None = None,
    layout: Layout | None = None,
    method: str | Method = "fedbiad",
    rounds: int = 10,
    learning_rate: float = 0.1,
    iterations: int = 20,
    batch: int = 10,
    selected: float | int = 1.0,
    server_step: float = 1.0,
    dropout: float = 0.0,
    seed: int = 0,
    evaluate_every: int = 1,
    threads: int = 1,
    workers: int = 1,
    store: Literal["memory", "disk"] = "memory",
    on_round: Callable[[Record], None] | None = None,
) -> SimulationResult:
    """Train your own model on your own clients: (inputs, class labels) each, judged on `test` after every round.

    An `nn.Module` needs its `layout`: which entries of which parameters one dropping label drops together; the method's
    option `rows` does not apply then. `selected` is a share (1.0: all) or a number of clients (1: one) a round. Torch
    works with `threads` threads meanwhile: more than one pays only for large models on idle cores. `workers` processes
    train blocks of clients side by side, to the same result; a script that asks for more than one must guard its main
    part with `if __name__ == "__main__":`. Too many clients for memory: a `MappedData`, which brings its own test
    samples, and `store="disk"`, which keeps what clients remember in a temporary directory.
    """
    training = TrainingPlan(learning_rate, iterations, batch, selected, server_step, dropout)
    registered = clients.num_clients if isinstance(clients, MappedData) else len(clients)
    count = selected_count(selected, registered)
    problems = key_problems_of(training)
    if rounds < 1:
        problems.append(f"rounds: should be at least 1, not {rounds}")
    if registered and count > registered:
        problems.append(f"selected = {count} clients a round, but {registered} exist")
    named = resolve(method, 0.5, {}, {}) if isinstance(method, str) else (method, None, key_problems_of(method))
    chosen, compressor, problems = named[0], named[1], problems + named[2]
    if problems or chosen is None:
        raise PlanError(problems, "simulate")
    if isinstance(clients, MappedData) and test is not None:
        raise DataError("a MappedData brings its own test samples; leave `test` out")
    data = clients if isinstance(clients, MappedData) else _own_data(clients, test)
    engine = EnginePlan(workers=workers, store=store)
    experiment = assemble(
        chosen, _own_model(model, layout), data, training, engine, rounds, seed, count, evaluate_every, compressor
    )
    records, u = [], experiment.initial()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for record, outcome in experiment.run(u):
            records.append(record)
            u = outcome.u
            if on_round:
                on_round(record)
    finally:
        torch.set_num_threads(before)
        experiment.close()
    return SimulationResult(u, records)


def _own_model(model: nn.Module | Model, layout: Layout | None) -> Model:
    if isinstance(model, Model):
        if layout is not None:
            raise LayoutError(f"{type(model).__name__} states its own rows; leave `layout` out")
        return model
    if layout is None:
        raise DataError("an nn.Module needs a layout: simulate(layout=Layout(module_shapes(model), groups), ...)")
    return TorchModule(model, layout)


def _own_data(clients: Sequence[tuple[Tensor, Tensor]], test: tuple[Tensor, Tensor] | None) -> FederatedData:
    sizes = [len(targets) for _, targets in clients]
    empty = [k for k, (inputs, targets) in enumerate(clients) if len(targets) == 0 or len(inputs) != len(targets)]
    if not clients or empty:
        raise DataError(f"every client needs as many inputs as labels, and at least one; look at clients {empty[:5]}")
    test = test or (clients[0][0][:0], clients[0][1][:0])
    wrong = [k for k, (_, targets) in enumerate([*clients, test]) if targets.dtype != torch.int64]
    if wrong:
        raise DataError(f"labels must be whole numbers (torch.int64); look at clients {wrong[:5]} or the test set")
    targets = torch.cat([y for _, y in clients])
    classes = int(torch.cat([targets, test[1]]).max()) + 1
    starts = np.cumsum([0, *sizes])
    return FederatedData(torch.cat([x for x, _ in clients]), targets, starts, *test, "test", classes, 0)
