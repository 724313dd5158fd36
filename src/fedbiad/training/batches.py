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
    """Samples of a block of clients in a common pool: of each client a run of consecutive ones."""

    def __init__(self, inputs: Tensor, targets: Tensor, spans: list[slice], schedule: IntArray, batch: int) -> None:
        self._inputs, self._targets, self.spans, self._batch = inputs, targets, spans, batch
        self.schedule = schedule
        """Which of its own samples each client visits [clients, steps x batch]."""
        starts = np.array([own.start for own in spans])
        self._visits = torch.from_numpy(schedule + starts[:, None])
        self._whole: Batch | None = None

    def samples(self, client: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the client at this place, not copied."""
        return self._inputs[self.spans[client]], self._targets[self.spans[client]]

    @property
    def sizes(self) -> list[int]:
        """How many samples each client has."""
        return [own.stop - own.start for own in self.spans]

    def batch(self, step: int) -> Batch:
        """The mini-batch of iteration `step`."""
        chosen = self._visits[:, step * self._batch : (step + 1) * self._batch]
        return Batch(self._inputs[chosen], self._targets[chosen])

    def present(self, classes: int) -> Pattern:
        """Which classes each client has at all [clients, classes]."""
        found = np.zeros((len(self.spans), classes), dtype=np.bool_)
        for i, own in enumerate(self.spans):
            found[i, self._targets[own].numpy()] = True
        return found

    def whole(self) -> Batch:
        """Every sample of every client, clients padded to the largest."""
        if self._whole is None:
            sizes = np.array(self.sizes)
            padded = np.stack([np.resize(np.arange(own.start, own.stop), sizes.max()) for own in self.spans])
            real = torch.from_numpy(np.arange(sizes.max())[None, :] < sizes[:, None]).to(self._inputs.dtype)
            chosen = torch.from_numpy(padded)
            self._whole = Batch(self._inputs[chosen], self._targets[chosen], real)
        return self._whole
