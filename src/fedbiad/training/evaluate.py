"""How good the global model is: U_r itself, unscaled and without noise."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch

from fedbiad.arrays import FloatArray, IntArray, Params
from fedbiad.compiling import fast
from fedbiad.models.base import Memory, Model
from fedbiad.models.heads import LANES, highest
from fedbiad.training.batches import Batch
from fedbiad.vector_math import exponential


class Metrics(NamedTuple):
    """Mean negative log likelihood and the share of samples whose answer is among the k likeliest."""

    loss: float
    accuracy: float
    top1: float


@torch.no_grad()
def evaluate(model: Model, u: Params, batches: Iterable[Batch], top: int = 1, threads: int = 1) -> Metrics:
    """Judge parameters U on labelled samples [1, samples, ...], batch by batch; sequences may run on between them.

    Batches that do not follow on each other are judged by several `threads`; the sums keep their order.
    """
    params = {name: value.unsqueeze(0) for name, value in u.items()}
    memory = Memory()
    found: list[tuple[float, float, float, float]] = []
    with ThreadPoolExecutor(threads if model.compacts else 1) as pool:  # a user's module may not stand several
        apart: list[Future[tuple[float, float, float, float]]] = []
        for batch in batches:
            if batch.continues is None:
                apart.append(pool.submit(_judge, model, params, batch, top, None))
            else:
                memory.only_where(batch.continues)
                found.append(_judge(model, params, batch, top, memory))
        found += [judged.result() for judged in apart]
    loss, right, first, samples = (sum(column) for column in zip(*found, strict=True))
    return Metrics(loss / samples, right / samples, first / samples)


@torch.no_grad()
def _judge(
    model: Model, params: Params, batch: Batch, top: int, memory: Memory | None
) -> tuple[float, float, float, float]:
    """Sums over one batch: loss, answers among the k likeliest, answers that are the likeliest, samples."""
    outputs = model.answers(params, batch, memory)[0]
    targets = batch.targets[0]
    weight = torch.ones(len(targets)) if batch.weight is None else batch.weight[0]
    nll, ahead = (torch.from_numpy(found) for found in judged(outputs.numpy(), targets.numpy()))
    return (
        float((nll.double() * weight).sum()), float(((ahead < top) * weight).sum()),
        float(((ahead < 1) * weight).sum()), float(weight.sum()),
    )  # fmt: skip


@fast
def judged(outputs: FloatArray, targets: IntArray) -> tuple[FloatArray, IntArray]:
    """Of every sample the negative log likelihood, and how many answers are likelier than the right one.

    Of equals the first is the likelier one; what is not a number stands before everything.
    """
    samples, classes = outputs.shape
    nll, ahead = np.empty(samples, outputs.dtype), np.zeros(samples, np.int64)
    lanes = np.empty(LANES, outputs.dtype)
    for i in range(samples):
        row, target = outputs[i], targets[i]
        own, top = row[target], highest(row, lanes)
        weight = outputs.dtype.type(0)
        for c in range(classes):
            weight += exponential(row[c] - top)
        nll[i] = np.log(weight) + top - own
        count = 0
        for c in range(target):
            count += not row[c] < own
        for c in range(target + 1, classes):
            count += not row[c] <= own
        ahead[i] = count
    return nll, ahead
