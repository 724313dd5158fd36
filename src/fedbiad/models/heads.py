"""What stands on a model's outputs: from them to each client's loss, and to the gradient with respect to them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedbiad.arrays import FloatArray, IntArray, Pattern
from fedbiad.compiling import fast, part
from fedbiad.vector_math import exponential

LANES = 64
"""Numbers looked at side by side."""

Head = Callable[[Tensor], Tensor]
"""From outputs [clients, samples, classes] to each client's loss [clients]."""


@dataclass(frozen=True)
class Likelihood:
    """The mean negative log likelihood of the right answers, its gradient stated; any part of the samples at a time.

    `targets` [clients, samples]; `weight` alike makes it a weighted mean. `rows` [clients, kept]: of `classes` outputs
    only these are there, ascending; the logit of the others is 0.
    """

    targets: Tensor
    weight: Tensor | None = None
    rows: Tensor | None = None
    classes: int = 0

    def __call__(self, outputs: Tensor) -> Tensor:
        """Each client's loss; the outputs stay as they are."""
        return self.part(outputs.clone(), 0)

    def part(
        self, outputs: Tensor, first: int, bias: tuple[Tensor, Tensor] | None = None, rest: Tensor | None = None
    ) -> Tensor:
        """What the samples from `first` on add to each client's loss; the outputs become the gradient, in place.

        `bias`: what is still to be added to the outputs [clients, classes], and where its gradient is added up.
        `rest`: the logits of one class beside the outputs [clients, samples], never the answer; its gradient likewise.
        """
        span = slice(first, first + outputs.shape[1])
        places, there = self._places(self.targets[:, span])
        none = outputs.new_empty(len(outputs), 0)
        added, found = (none, none) if bias is None else bias
        losses = outputs.new_zeros(len(outputs))
        absent = 0 if self.rows is None else self.classes - outputs.shape[2]
        rest = outputs.new_full(places.shape, -math.inf) if rest is None else rest
        likelihood(
            outputs.numpy(), added.numpy(), places.numpy(), there.numpy(), self._shares(outputs)[:, span].numpy(),
            absent, rest.numpy(), losses.numpy(), found.numpy(),
        )  # fmt: skip
        return losses

    def _shares(self, outputs: Tensor) -> Tensor:
        """How much each sample counts in its client's mean [clients, samples]."""
        if self.weight is None:
            return outputs.new_full((1, 1), 1.0 / self.targets.shape[1]).expand(self.targets.shape)
        total = self.weight.sum(1, keepdim=True)
        return self.weight / torch.where(total > 0, total, torch.ones_like(total))

    def _places(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Where the right answers stand among the outputs [clients, samples], and which are there."""
        if self.rows is None:
            return targets, torch.ones(1, 1, dtype=torch.bool).expand(targets.shape)
        places = torch.searchsorted(self.rows.contiguous(), targets.contiguous()).clamp(max=self.rows.shape[1] - 1)
        return places, self.rows.gather(1, places) == targets


@part
def highest(row: FloatArray, lanes: FloatArray) -> float:
    """The largest number, looked for in lanes: a compiler does not dare to, for a NaN might be among them."""
    whole = len(row) - len(row) % LANES
    lanes[:] = row[0]
    for start in range(0, whole, LANES):
        for j in range(LANES):
            z = row[start + j]
            lanes[j] = z if z > lanes[j] else lanes[j]
    top: float = row[0]
    for j in range(LANES):
        top = max(top, lanes[j])
    for c in range(whole, len(row)):
        top = max(top, row[c])
    return top


@fast
def likelihood(
    outputs: FloatArray, bias: FloatArray, places: IntArray, there: Pattern, shares: FloatArray, absent: int,
    rest: FloatArray, losses: FloatArray, bias_found: FloatArray,
) -> None:  # fmt: skip
    """The losses [clients] of logits [clients, samples, classes], which become their gradient row by row.

    `absent` further classes have the logit 0, one more that of `rest` [clients, samples]; -inf: it is not there.
    """
    clients, samples, classes = outputs.shape
    zero = outputs.dtype.type(0)
    lanes = np.empty(LANES, outputs.dtype)
    for k in range(clients):
        for i in range(samples):
            row = outputs[k, i]
            if bias.shape[1]:
                for c in range(classes):
                    row[c] += bias[k, c]
            top = max(highest(row, lanes), rest[k, i])
            if absent:
                top = max(top, zero)
            target, share = places[k, i], shares[k, i]
            right = row[target] if there[k, i] else zero
            rest[k, i] = exponential(rest[k, i] - top)
            weight = rest[k, i]
            for c in range(classes):
                raised = exponential(row[c] - top)
                row[c] = raised
                weight += raised
            if absent:
                weight += absent * exponential(-top)
            losses[k] += (np.log(weight) + top - right) * share
            factor = share / weight
            for c in range(classes):
                row[c] *= factor
            rest[k, i] *= factor
            if there[k, i]:
                row[target] -= share
            if bias_found.shape[1]:
                for c in range(classes):
                    bias_found[k, c] += row[c]


def losses_and_errors(head: Head, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Each client's loss [clients] and its gradient with respect to the outputs, which are used up."""
    if isinstance(head, Likelihood):
        return head.part(outputs, 0), outputs
    outputs = outputs.detach().requires_grad_()
    with torch.enable_grad():
        losses = head(outputs)
        (errors,) = torch.autograd.grad(losses.sum(), outputs)
    return losses.detach(), errors
