"""Self-distillation: a narrow sub-model also learns to answer as the wide one does (FjORD)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from fedbiad.arrays import Pattern
from fedbiad.training.batches import Batch
from fedbiad.training.step import LocalStep, Objective


def distilled_update(
    step: LocalStep,
    wide: Pattern,
    narrow: Pattern,
    iteration: int,
    batch: Batch,
    unit_masks: dict[str, Tensor],
    objective: Objective,
) -> Tensor:
    """One SGD iteration on the wide sub-model's loss plus the narrow one's distance to its answers.

    Both gradients are taken at the same U. Returns the wide sub-model's loss before the iteration [clients].
    """
    answers: list[Tensor] = []

    def taught(outputs: Tensor, batch: Batch) -> Tensor:
        answers.append(outputs.detach().softmax(2))
        return objective(outputs, batch)

    def imitated(outputs: Tensor, batch: Batch) -> Tensor:
        return soft_cross_entropy(outputs, answers[0], batch.weight)

    before = replace(step.memory)  # both read the same past; the wide one is remembered
    step.set_pattern(wide)
    losses, gradients = step.gradients(step.sample_weights(iteration), batch, unit_masks, taught)
    remembered, step.memory = step.memory, before
    step.set_pattern(narrow)
    _, imitating = step.gradients(step.sample_weights(iteration), batch, unit_masks, imitated)
    step.memory = remembered
    with torch.no_grad():
        step.descend(imitating, decay=False)
        step.set_pattern(wide)
        step.descend(gradients)
    return losses


def soft_cross_entropy(outputs: Tensor, answers: Tensor, weight: Tensor | None = None) -> Tensor:
    """Each client's mean of - sum_c answers_c ln softmax(outputs)_c: the divergence from the answers, plus a constant.

    Outputs and answers [clients, batch, classes]; `weight` [clients, batch] as in `cross_entropy`.
    """
    nll = -(answers * functional.log_softmax(outputs, 2)).sum(2)
    if weight is None:
        return nll.mean(1)
    return (weight * nll).sum(1) / weight.sum(1).clamp(min=1)
