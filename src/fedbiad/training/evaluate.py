"""How good the global model is: U_r itself, unscaled and without noise."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedbiad.arrays import Params
from fedbiad.models.base import Model

BATCH = 2000


class Metrics(NamedTuple):
    """Mean negative log likelihood and share of right answers."""

    loss: float
    accuracy: float


@torch.no_grad()
def evaluate(model: Model, u: Params, inputs: Tensor, targets: Tensor) -> Metrics:
    """Judge parameters U on labelled samples, in batches."""
    params = {name: value.unsqueeze(0) for name, value in u.items()}
    loss, right = 0.0, 0
    for x, y in zip(torch.split(inputs, BATCH), torch.split(targets, BATCH), strict=True):
        outputs = model.forward(params, x.unsqueeze(0), {})[0]
        loss += float(torch.nn.functional.cross_entropy(outputs, y, reduction="sum"))
        right += int((outputs.argmax(1) == y).sum())
    return Metrics(loss / len(targets), right / len(targets))
