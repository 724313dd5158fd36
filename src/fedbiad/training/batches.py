"""The data of a block of clients: mini-batches by schedule, or everything a client has, padded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedbiad.arrays import IntArray, Pattern


@dataclass(frozen=True)
class Batch:
    """Inputs [clients, batch, ...], targets [clients, batch], weight 0 where a sample is padding.

    `continues` [clients]: whose sequences follow on those of the batch before; None where samples are no sequences.
    """

    inputs: Tensor
    targets: Tensor
    weight: Tensor | None = None
    continues: Tensor | None = None


class LocalSamples(Protocol):
    """What a block of clients trains on in a round."""

    def batch(self, step: int) -> Batch:
        """The mini-batch of iteration `step`."""
        ...

    def whole(self) -> Batch:
        """Every sample of every client, clients padded to the largest."""
        ...

    def present(self, classes: int) -> Pattern:
        """Which classes each client has at all [clients, classes]."""
        ...


class LocalData:
    """Samples of a block of clients, taken from a common pool."""

    def __init__(
        self, inputs: Tensor, targets: Tensor, members: list[IntArray], schedule: IntArray, batch: int
    ) -> None:
        self._inputs, self._targets, self._members, self._batch = inputs, targets, members, batch
        self._visits = torch.from_numpy(np.stack([own[visits] for own, visits in zip(members, schedule, strict=True)]))
        self._whole: Batch | None = None

    def batch(self, step: int) -> Batch:
        """The mini-batch of iteration `step`."""
        chosen = self._visits[:, step * self._batch : (step + 1) * self._batch]
        return Batch(self._inputs[chosen], self._targets[chosen])

    def present(self, classes: int) -> Pattern:
        """Which classes each client has at all [clients, classes]."""
        found = np.zeros((len(self._members), classes), dtype=np.bool_)
        for i, own in enumerate(self._members):
            found[i, self._targets[own].numpy()] = True
        return found

    def whole(self) -> Batch:
        """Every sample of every client, clients padded to the largest."""
        if self._whole is None:
            longest = max(len(own) for own in self._members)
            padded = np.stack([np.resize(own, longest) for own in self._members])
            sizes = np.array([len(own) for own in self._members])
            real = torch.from_numpy(np.arange(longest)[None, :] < sizes[:, None]).to(self._inputs.dtype)
            chosen = torch.from_numpy(padded)
            self._whole = Batch(self._inputs[chosen], self._targets[chosen], real)
        return self._whole
