"""The client half of the Flower app, in a module of its own: Ray's workers then import it instead of unpickling it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
import torch_model
import work
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict  # type: ignore[import-not-found]
from flwr.clientapp import ClientApp  # type: ignore[import-not-found]
from torch import nn


@functools.cache
def mlp() -> nn.Sequential:
    """The model of this worker; every message brings its weights."""
    return torch_model.mlp()


@functools.cache
def tensors(directory: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """The clients' inputs and targets, read once by each worker."""
    data = work.load(directory)
    return torch.from_numpy(data.inputs), torch.from_numpy(data.targets)


def train(message: Any, context: Any) -> Any:
    """Train the client whose turn it is."""
    config = message.content["config"]
    torch.set_num_threads(config["threads"])
    inputs, targets = (part[context.node_config["partition-id"]] for part in tensors(Path(config["data"])))
    model = mlp()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=work.LEARNING_RATE)
    for _ in range(config["epochs"]):
        for batch in torch_model.shuffled(work.SAMPLES, work.BATCH):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs[batch]), targets[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": work.SAMPLES})}
    return Message(content=RecordDict(content), reply_to=message)


app = ClientApp()
app.train()(train)
