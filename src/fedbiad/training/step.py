"""One local iteration for a block of clients, in two forms that give the same numbers.

`MaskedStep` (masked.py) is the reference: full tensors, dropped rows multiplied by zero. `CompactStep` (compact.py)
computes only what the held rows need. Both sample theta (line 14 of Algorithm 1) and then update U (line 15).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedbiad import spike_and_slab
from fedbiad.arrays import Params, Pattern
from fedbiad.models.base import Model
from fedbiad.rows import Layout
from fedbiad.spike_and_slab import Positions
from fedbiad.training.batches import Batch
from fedbiad.training.objective import cross_entropy

Form = Literal["auto", "masked", "compact"]


@dataclass
class Noise:
    """Posterior noise of a block: its size, each client's key, and how much of it was drawn."""

    std: float
    keys: list[int]
    drawn: int = 0
    weights: int = 0

    def add(self, positions: Mapping[str, Positions], mu: Params, step: int) -> Params:
        """theta ~ N(mu, std^2 I); positions in the full model make it independent of the form of the step."""
        if self.std == 0.0:
            return mu
        theta = {}
        for name, value in mu.items():
            theta[name], drawn = spike_and_slab.sample(value, self.std, self.keys, step, positions[name])
            self.drawn += drawn
            self.weights += value.numel()
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
        scale: float = 1.0,
        noise: Noise | None = None,
        learning_rate: float,
        weight_decay: float = 0.0,
    ) -> None:
        self.model, self.layout, self.scale = model, layout, scale
        self.noise = noise or Noise(0.0, [])
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.full = u
        self.pattern = pattern

    def set_pattern(self, pattern: Pattern) -> None:
        """Hold other rows from now on; what dropped rows have learned stays in U."""
        raise NotImplementedError

    def sample_weights(self, step: int) -> Params:
        """theta ~ beta o N(U, s^2 I), held rows scaled; line 14 of Algorithm 1."""
        raise NotImplementedError

    def outputs(self, theta: Params, inputs: Tensor, unit_masks: dict[str, Tensor]) -> Tensor:
        """The model's outputs [clients, batch, classes]."""
        raise NotImplementedError

    def descend(self, gradients: Params) -> None:
        """U <- U - eta [beta o grad_U L]; line 15."""
        raise NotImplementedError

    def finish(self) -> Params:
        """The trained parameters U^{k,V} [clients, ...] in full."""
        raise NotImplementedError

    @torch.no_grad()
    def loss(self, theta: Params, batch: Batch) -> Tensor:
        """Each client's loss at theta, without ordinary dropout [clients]."""
        return cross_entropy(self.outputs(theta, batch.inputs, {}), batch.targets, batch.weight)

    def update(self, theta: Params, batch: Batch, unit_masks: dict[str, Tensor]) -> Tensor:
        """One SGD iteration at the sampled theta; returns each client's loss before it [clients].

        Eq. (local_update): U^{k,v+1} = U^{k,v} - eta [beta^{k,v} o grad_U L^k(pi^{k,v})].
        """
        leaves = {name: value.detach().requires_grad_() for name, value in theta.items()}
        losses = cross_entropy(self.outputs(leaves, batch.inputs, unit_masks), batch.targets, batch.weight)
        # clients are independent, so the gradient of the sum holds each client's own gradient
        gradients = torch.autograd.grad(losses.sum(), list(leaves.values()), materialize_grads=True)
        with torch.no_grad():
            self.descend(dict(zip(leaves, gradients, strict=True)))
        return losses.detach()

    def offsets(self) -> dict[str, int]:
        """Where each parameter begins in the full model, in the layout's order whatever the order of U."""
        sizes = [math.prod(shape) for shape in self.layout.shapes.values()]
        return dict(zip(self.layout.shapes, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
