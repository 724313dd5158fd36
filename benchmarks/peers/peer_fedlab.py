"""FedLab: its FedAvg server and serial trainer.

One worker: the standalone pipeline. More: a server process and as many client processes, each training its share of a
round's clients one after another.
"""

from __future__ import annotations

import logging
import random
import socket
import sys
import types
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import torch
import torch_model
import work
from torch import Tensor
from torch import multiprocessing as mp

# FedLab imports torchvision for data sets that are not used here; builds of it fit one build of torch only.
sys.modules["torchvision"] = torchvision = types.ModuleType("torchvision")
torchvision.transforms = types.ModuleType("torchvision.transforms")  # type: ignore[attr-defined]

from fedlab.contrib.algorithm.fedavg import (  # type: ignore[import-not-found]  # noqa: E402
    FedAvgSerialClientTrainer,
    FedAvgServerHandler,
)
from fedlab.contrib.dataset.basic_dataset import FedDataset  # type: ignore[import-not-found]  # noqa: E402
from fedlab.core.client.manager import PassiveClientManager  # type: ignore[import-not-found]  # noqa: E402
from fedlab.core.network import DistNetwork  # type: ignore[import-not-found]  # noqa: E402
from fedlab.core.server.manager import SynchronousServerManager  # type: ignore[import-not-found]  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # type: ignore[import-not-found]  # noqa: E402


class Batches:
    """One client's samples, shuffled anew in each epoch; less work than a `DataLoader` has with them."""

    def __init__(self, inputs: Tensor, targets: Tensor, size: int) -> None:
        self.inputs, self.targets, self.size = inputs, targets, size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in torch_model.shuffled(len(self.targets), self.size):
            yield self.inputs[batch], self.targets[batch]


class Clients(FedDataset):  # type: ignore[misc]
    """The prepared arrays as FedLab's data set."""

    def __init__(self, data: work.Data) -> None:
        self.inputs, self.targets = torch.from_numpy(data.inputs), torch.from_numpy(data.targets)

    def get_dataloader(self, client: int, batch_size: int) -> Batches:
        """What the trainer iterates over, once for each epoch."""
        return Batches(self.inputs[client], self.targets[client], batch_size)


class Handler(FedAvgServerHandler):  # type: ignore[misc]
    """FedLab's server, with the time stopped after each round."""

    def __init__(self, watch: work.Stopwatch, data: work.Data) -> None:
        super().__init__(torch_model.first_mlp(data), watch.asked.total, work.SELECTED / work.CLIENTS)
        self.watch = watch
        self.test = torch_model.test_set(data)

    def global_update(self, buffer: Any) -> None:
        """The mean of the clients' weights; the round is counted after this."""
        super().global_update(buffer)
        self.watch.round_over(self.round + 1, self.accuracy)

    def accuracy(self) -> float:
        """The share of the test set that is right."""
        return torch_model.accuracy(self.model, self.test)


def trainer(asked: work.Arguments, data: work.Data, clients: int) -> Any:
    """FedLab's trainer of one client after another."""
    serial = FedAvgSerialClientTrainer(torch_model.first_mlp(data), clients)
    serial.setup_dataset(Clients(data))
    serial.setup_optim(asked.epochs, work.BATCH, work.LEARNING_RATE)
    return serial


def client_process(asked: work.Arguments, rank: int, port: int) -> None:
    """One of the client processes; the ids it is sent are those of the whole federation."""
    prepare(asked)
    share = work.CLIENTS // asked.workers + (rank <= work.CLIENTS % asked.workers)
    network = DistNetwork(("127.0.0.1", str(port)), asked.workers + 1, rank)
    PassiveClientManager(network, trainer(asked, work.load(asked.data), share)).run()


def prepare(asked: work.Arguments) -> None:
    """What each process sets before it starts."""
    logging.disable(logging.INFO)
    random.seed(work.SEED)
    torch.manual_seed(work.SEED)
    torch.set_num_threads(asked.threads)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def main() -> None:
    """Run the rounds and print the line."""
    asked = work.arguments(__doc__)
    prepare(asked)
    data, watch = work.load(asked.data), work.Stopwatch(asked)
    handler = Handler(watch, data)
    if asked.workers == 1:
        pipeline = StandalonePipeline(handler, trainer(asked, data, work.CLIENTS))
        pipeline.evaluate = lambda: None  # an example that prints; the handler evaluates
        pipeline.main()
    else:
        port, spawn = free_port(), mp.get_context("spawn")
        ranks = range(1, asked.workers + 1)
        processes = [spawn.Process(target=client_process, args=(asked, rank, port), daemon=True) for rank in ranks]
        for process in processes:
            process.start()
        network = DistNetwork(("127.0.0.1", str(port)), asked.workers + 1, 0)
        SynchronousServerManager(network, handler, mode="GLOBAL").run()
        for process in processes:
            process.join()
    print(watch.line("fedlab", version("fedlab")))


if __name__ == "__main__":
    main()
