"""Local training on the output rows of a client's own words; the words it lacks are one Gaussian term.

The rows of absent words stay as they were received, so nothing is learned of them: their change is exactly 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedbiad.arrays import Params, Pattern
from fedbiad.methods.base import Method
from fedbiad.models.absent import BIAS, WEIGHT, AbsentWords, moments
from fedbiad.models.base import Model
from fedbiad.models.lstm import LSTM
from fedbiad.rows import Layout
from fedbiad.training.batches import Batch, LocalSamples

Softmax = Literal["exact", "gaussian"]
"""Words that are not in a client's data: each by itself, or all of them one Gaussian term."""

NOWHERE = -1e30
"""The bias of a place without a word: its probability is 0, whatever is read."""


class LocalWords:
    """The words in the data of each client of a block; clients are padded to the one that has most.

    It is also what the block trains on: the samples of `data`, each right answer as its place among the own words.
    """

    def __init__(self, data: LocalSamples, words: int) -> None:
        self._data, self._own = data, data.present(words)
        counts = self._own.sum(1)
        self._there = np.arange(counts.max())[None, :] < counts[:, None]
        self._place = torch.from_numpy(np.cumsum(self._own, axis=1) - 1)

    def batch(self, step: int) -> Batch:
        """The mini-batch of iteration `step`."""
        return self._placed(self._data.batch(step))

    def whole(self) -> Batch:
        """Every sample of every client, clients padded to the largest."""
        return self._placed(self._data.whole())

    def present(self, classes: int) -> Pattern:
        """Which words each client has at all [clients, words]."""
        return self._own

    def _placed(self, batch: Batch) -> Batch:
        return replace(batch, targets=self._place.gather(1, batch.targets))

    def only(self, received: Params) -> Params:
        """Received parameters [clients, ...] with the output rows of own words only."""
        weight, bias = received[WEIGHT], received[BIAS]
        kept = self._there.shape[1]
        rows, biases = weight.new_zeros(len(weight), kept, weight.shape[2]), bias.new_full((len(bias), kept), NOWHERE)
        for k, own in enumerate(self._places(self._own)):
            rows[k, : len(own)], biases[k, : len(own)] = weight[k].index_select(0, own), bias[k, own]
        return {**received, WEIGHT: rows, BIAS: biases}

    def absent(self, received: Params) -> AbsentWords:
        """The moments of the words each client lacks."""
        found = [
            moments(received[WEIGHT][k].index_select(0, lacking), received[BIAS][k, lacking])
            for k, lacking in enumerate(self._places(~self._own))
        ]
        log_mass, mean, covariance = (torch.stack(parts) for parts in zip(*found, strict=True))
        return AbsentWords(log_mass, mean, covariance)

    def everywhere(self, moved: Params) -> Params:
        """What was learned [clients, ...], each row at its word; absent words have learned nothing."""
        full = dict(moved)
        own, there = torch.from_numpy(self._own), torch.from_numpy(self._there)
        for name in (WEIGHT, BIAS):
            full[name] = moved[name].new_zeros(*own.shape, *moved[name].shape[2:])
            full[name][own] = moved[name][there]
        return full

    @staticmethod
    def _places(words: Pattern) -> list[Tensor]:
        return [torch.from_numpy(np.flatnonzero(row)) for row in words]


def obstacle(method: Method, model: Model, layout: Layout) -> str | None:
    """Why absent words cannot be one Gaussian term; None: they can."""
    if not isinstance(model, LSTM):
        return "the model has no output over words"
    if any(group.output for group in layout.groups):
        return f"rows = {method.row_kind!r} drop words of the output layer: what the term stands for would change"
    if type(method).objective is not Method.objective or type(method).silenced is not Method.silenced:
        return "the method has a loss of its own, over every word by itself"
    return None
