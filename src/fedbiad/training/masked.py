"""The reference step: full tensors, dropped rows multiplied by zero."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedbiad.arrays import Params, Pattern
from fedbiad.models.base import Gradient, Gradients, Outer, Rows
from fedbiad.rows import AxisMasks, on_axis
from fedbiad.spike_and_slab import shifted
from fedbiad.training.batches import Batch
from fedbiad.training.clipping import clip_factor, squared_norm
from fedbiad.training.step import LocalStep, Objective


class MaskedStep(LocalStep):
    """theta = beta o (U + noise) on full tensors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._positions = {name: shifted(offset) for name, offset in self.offsets().items()}
        self.set_pattern(self.pattern)

    def set_pattern(self, pattern: Pattern) -> None:
        self.pattern = pattern
        dtype = next(iter(self.full.values())).dtype
        masks = self.layout.axis_masks(pattern, self.scale, dtype)
        self._scaled = self._factors(masks)
        self._absent = {} if self.absent is None else self.absent.masked(masks).params
        self._looked_at = {name: (_times(torch.ones(()), own) != 0).numpy() for name, own in self._scaled.items()}
        self._held = self._factors(self.layout.axis_masks(pattern, 1.0, dtype)) if self.weight_decay else {}

    def sample_weights(self, step: int) -> Params:
        sampled = self.noise.add(self._positions, self.full, step, self._looked_at)
        return {name: _times(value, self._scaled.get(name, [])) for name, value in sampled.items()} | self._absent

    def gradients(
        self, theta: Params, batch: Batch, unit_masks: dict[str, Tensor], objective: Objective
    ) -> tuple[Tensor, Gradients]:
        """As the base has it; units that are dropped remember nothing, as if they were not there."""
        found = super().gradients(theta, batch, unit_masks, objective)
        held = [self._pattern_of(group) for group in self.model.recurrent_groups]
        self.memory.only_units(held)
        return found

    def _pattern_of(self, group: str) -> Tensor | None:
        rows = self.layout.ranges.get(group)
        return None if rows is None else torch.from_numpy(self.pattern[:, rows])

    def descend(self, gradients: Gradients, decay: bool = True) -> None:
        # theta = mask o U, so the gradient with respect to U is the mask times that with respect to theta
        steps = {
            name: _times(_dense(gradients[name], u.shape), self._scaled.get(name, [])) for name, u in self.full.items()
        }
        if self.clip is not None:
            factor = clip_factor([squared_norm(step) for step in steps.values()], self.clip)
            steps = {name: step * factor.view(-1, *[1] * (step.dim() - 1)) for name, step in steps.items()}
        for name, u in self.full.items():
            if self.weight_decay and decay:
                u.add_(_times(u, self._held.get(name, [])), alpha=-self.learning_rate * self.weight_decay)
            u.add_(steps[name], alpha=-self.learning_rate)

    def trained(self) -> Params:
        return self.full

    def _factors(self, masks: AxisMasks) -> dict[str, list[Tensor]]:
        dims = {name: value.dim() for name, value in self.full.items()}
        return {name: [on_axis(mask, axis, dims[name]) for axis, mask in axes] for name, axes in masks.items()}


def _dense(gradient: Gradient, shape: torch.Size) -> Tensor:
    if isinstance(gradient, Rows):
        return gradient.dense(shape)
    return gradient.dense() if isinstance(gradient, Outer) else gradient


def _times(value: Tensor, factors: list[Tensor]) -> Tensor:
    for factor in factors:
        value = torch.mul(value, factor)
    return value
