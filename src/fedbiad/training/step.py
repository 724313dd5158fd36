"""One local iteration for a block of clients, in two forms that give the same numbers.

`MaskedStep` (masked.py) is the reference: full tensors, dropped rows multiplied by zero. `CompactStep` (compact.py)
computes only what the held rows need. Both sample theta (line 16 of Algorithm 1) and then update U (line 17).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedbiad import spike_and_slab
from fedbiad.arrays import Params, Pattern
from fedbiad.models.absent import AbsentWords
from fedbiad.models.base import WHOLE, Gradients, Kept, Memory, Model
from fedbiad.models.heads import Head, Likelihood
from fedbiad.rows import Layout
from fedbiad.spike_and_slab import Held, Positions
from fedbiad.training.batches import Batch
from fedbiad.training.objective import cross_entropy

Objective = Callable[[Tensor, Batch], Tensor]
"""From outputs [clients, batch, classes] with every class in its place to losses [clients]."""


def plain_objective(outputs: Tensor, batch: Batch) -> Tensor:
    """The mean negative log likelihood."""
    return cross_entropy(outputs, batch.targets, batch.weight)


@dataclass
class Noise:
    """Posterior noise of a block: its size, each client's key, and how much of it was drawn."""

    std: float
    keys: list[int]
    drawn: int = 0
    weights: int = 0

    def add(
        self, positions: Mapping[str, Positions], mu: Params, step: int, held: Mapping[str, Held] | None = None
    ) -> Params:
        """theta ~ N(mu, std^2 I), where an entry is held, if that is told.

        Positions in the full model make it independent of the form of the step.
        """
        if self.std == 0.0:
            return mu
        theta, held = {}, held or {}
        for name, value in mu.items():
            own = held.get(name)
            theta[name], drawn = spike_and_slab.sample(value, self.std, self.keys, step, positions[name], held=own)
            self.drawn += drawn
            self.weights += value.numel() if own is None else value.numel() // own.size * int(own.sum())
        return theta


class LocalStep:
    """What both forms share. `u` is a block's own copy of the received parameters [clients, ...]."""

    def __init__(
        self,
        model: Model,
        layout: Layout,
        u: Params,
        pattern: Pattern,
        *,
        scale: float | Tensor = 1.0,
        noise: Noise | None = None,
        learning_rate: float,
        weight_decay: float = 0.0,
        clip: float | None = None,
        absent: AbsentWords | None = None,
    ) -> None:
        self.model, self.layout, self.scale = model, layout, scale
        self.noise = noise or Noise(0.0, [])
        self.learning_rate, self.weight_decay, self.clip = learning_rate, weight_decay, clip
        self.full, self.absent = u, absent
        self.pattern = pattern
        self.memory = Memory()

    def set_pattern(self, pattern: Pattern) -> None:
        """Hold other rows from now on; what dropped rows have learned stays in U."""
        raise NotImplementedError

    def sample_weights(self, step: int) -> Params:
        """theta ~ beta o N(U, s^2 I), held rows scaled; line 16 of Algorithm 1."""
        raise NotImplementedError

    def output_rows(self) -> tuple[Tensor | None, int]:
        """The classes that are there [clients, kept], where some are not, and how many there are in all."""
        return None, 0

    def full_outputs(self, outputs: Tensor) -> Tensor:
        """The model's outputs with every class in its place."""
        return outputs

    @property
    def kept(self) -> Kept:
        """The rows that are there, where the step computes with fewer than all."""
        return WHOLE

    def kept_masks(self, unit_masks: dict[str, Tensor]) -> dict[str, Tensor]:
        """The part of ordinary dropout's masks that meets computed units."""
        return unit_masks

    def descend(self, gradients: Gradients, decay: bool = True) -> None:
        """U <- U - eta [beta o grad_U L], the gradient clipped, and weight decay unless told otherwise; line 17."""
        raise NotImplementedError

    def trained(self) -> Params:
        """U^{k,v}, the parameters as trained by now [clients, ...], in full: the step's own."""
        raise NotImplementedError

    @torch.no_grad()
    def loss(self, theta: Params, batch: Batch, objective: Objective = plain_objective) -> Tensor:
        """Each client's loss at theta, without ordinary dropout [clients]."""
        outputs = self.full_outputs(self.model.forward(theta, batch.inputs, {}, self.kept))
        return objective(outputs, batch)

    def update(
        self, theta: Params, batch: Batch, unit_masks: dict[str, Tensor], objective: Objective = plain_objective
    ) -> Tensor:
        """One SGD iteration at the sampled theta; returns each client's loss before it [clients].

        Eq. (local_update): U^{k,v+1} = U^{k,v} - eta [beta^{k,v} o grad_U L^k(pi^{k,v})].
        """
        losses, gradients = self.gradients(theta, batch, unit_masks, objective)
        with torch.no_grad():
            self.descend(gradients)
        return losses

    def gradients(
        self, theta: Params, batch: Batch, unit_masks: dict[str, Tensor], objective: Objective
    ) -> tuple[Tensor, Gradients]:
        """Each client's loss at theta [clients] and its gradient."""

        head: Head = lambda outputs: objective(self.full_outputs(outputs), batch)  # noqa: E731
        if objective is plain_objective:
            head = Likelihood(batch.targets, batch.weight, *self.output_rows())
        memory = None
        if batch.continues is not None:
            memory = self.memory
            memory.only_where(batch.continues)
        masks = self.kept_masks(unit_masks)
        return self.model.loss_and_gradients(theta, batch.inputs, masks, head, self.kept, memory)

    def offsets(self) -> dict[str, int]:
        """Where each parameter begins in the full model, in the layout's order whatever the order of U."""
        sizes = [math.prod(shape) for shape in self.layout.shapes.values()]
        return dict(zip(self.layout.shapes, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
