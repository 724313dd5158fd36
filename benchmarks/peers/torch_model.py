"""The model of the work in torch, for the peers that train torch models."""

from __future__ import annotations

import torch
import work
from torch import Tensor, nn


def mlp() -> nn.Sequential:
    """The model, its weights still to come."""
    return nn.Sequential(nn.Linear(work.INPUTS, work.HIDDEN), nn.ReLU(), nn.Linear(work.HIDDEN, work.CLASSES))


def first_state(data: work.Data) -> dict[str, Tensor]:
    """The first weights under the model's own names."""
    names = zip(mlp().state_dict(), work.WEIGHTS, strict=True)
    return {own: torch.from_numpy(data.weights[name]) for own, name in names}


def first_mlp(data: work.Data) -> nn.Sequential:
    """The model with the first weights."""
    model = mlp()
    model.load_state_dict(first_state(data))
    return model


def test_set(data: work.Data) -> tuple[Tensor, Tensor]:
    """Inputs and targets the model is judged on."""
    return torch.from_numpy(data.test_inputs), torch.from_numpy(data.test_targets)


@torch.no_grad()
def accuracy(model: nn.Module, test: tuple[Tensor, Tensor]) -> float:
    """The share of the test set that is right."""
    inputs, targets = test
    return float((model(inputs).argmax(1) == targets).double().mean())


def shuffled(samples: int, batch: int) -> Tensor:
    """One epoch's batches [batches, batch] of sample numbers."""
    return torch.randperm(samples).view(-1, batch)
