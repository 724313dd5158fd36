"""What stands on a model's outputs: from them to each client's loss, and to the gradient with respect to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

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

    def part(self, outputs: Tensor, first: int) -> Tensor:
        """What the samples from `first` on add to each client's loss; the outputs become the gradient, in place."""
        span = slice(first, first + outputs.shape[1])
        places, there = self._places(self.targets[:, span])
        share = self._shares(outputs)[:, span, None]
        right = outputs.gather(2, places)
        if there is not None:
            right = right * there
        top = outputs.amax(2, keepdim=True)
        absent = 0 if self.rows is None else self.classes - outputs.shape[2]
        if absent:
            top = top.clamp(min=0.0)
        outputs.sub_(top).exp_()
        weight = outputs.sum(2, keepdim=True)
        if absent:
            weight = weight + absent * (-top).exp()
        losses = ((weight.log() + top - right) * share).sum((1, 2))
        outputs.mul_(share / weight)
        outputs.scatter_add_(2, places, -share if there is None else -share * there)
        return losses

    def _shares(self, outputs: Tensor) -> Tensor:
        """How much each sample counts in its client's mean [clients, samples]."""
        if self.weight is None:
            return outputs.new_full((1, 1), 1.0 / self.targets.shape[1]).expand(self.targets.shape)
        total = self.weight.sum(1, keepdim=True)
        return self.weight / torch.where(total > 0, total, torch.ones_like(total))

    def _places(self, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """Where the right answers stand among the outputs [clients, samples, 1], and which are there (None: all)."""
        if self.rows is None:
            return targets.unsqueeze(2), None
        places = torch.searchsorted(self.rows.contiguous(), targets.contiguous()).clamp(max=self.rows.shape[1] - 1)
        there = self.rows.gather(1, places) == targets
        return places.unsqueeze(2), there.unsqueeze(2)


def losses_and_errors(head: Head, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Each client's loss [clients] and its gradient with respect to the outputs, which are used up."""
    if isinstance(head, Likelihood):
        return head.part(outputs, 0), outputs
    outputs = outputs.detach().requires_grad_()
    with torch.enable_grad():
        losses = head(outputs)
        (errors,) = torch.autograd.grad(losses.sum(), outputs)
    return losses.detach(), errors
