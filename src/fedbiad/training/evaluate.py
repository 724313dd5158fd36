"""How good the global model is: U_r itself, unscaled and without noise."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from fedbiad.arrays import Params
from fedbiad.models.base import WHOLE, Memory, Model
from fedbiad.training.batches import Batch


class Metrics(NamedTuple):
    """Mean negative log likelihood and the share of samples whose answer is among the k likeliest."""

    loss: float
    accuracy: float
    top1: float


@torch.no_grad()
def evaluate(model: Model, u: Params, batches: Iterable[Batch], top: int = 1) -> Metrics:
    """Judge parameters U on labelled samples [1, samples, ...], batch by batch; sequences may run on between them."""
    params = {name: value.unsqueeze(0) for name, value in u.items()}
    memory = Memory()
    loss, right, first, samples = 0.0, 0.0, 0.0, 0.0
    for batch in batches:
        if batch.continues is not None:
            memory.only_where(batch.continues)
        outputs = model.forward(params, batch.inputs, {}, WHOLE, None if batch.continues is None else memory)[0]
        targets = batch.targets[0]
        weight = torch.ones(len(targets)) if batch.weight is None else batch.weight[0]
        nll = torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
        loss += float((nll.double() * weight).sum())
        likeliest = outputs.topk(min(top, outputs.shape[1]), dim=1).indices == targets[:, None]
        right += float((likeliest.any(1) * weight).sum())
        first += float((likeliest[:, 0] * weight).sum())
        samples += float(weight.sum())
    return Metrics(loss / samples, right / samples, first / samples)
