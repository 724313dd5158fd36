"""The compact step: the same numbers as the masked one, computed from the held rows only.

Exact because a dropped unit outputs relu(0) = 0: its row and its outgoing columns get no gradient. All clients of the
block must hold equally many rows of each group.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbiad.arrays import IntArray, Params, Pattern
from fedbiad.errors import LayoutError
from fedbiad.models.base import Gradients, Kept, Outer, Rows, factor
from fedbiad.rows import Layout, kept_rows
from fedbiad.spike_and_slab import Positions
from fedbiad.training.clipping import Grams, clip_factor, squared_norm
from fedbiad.training.step import LocalStep


class CompactStep(LocalStep):
    """Works on the gathered sub-model; a changed pattern writes it back and gathers anew."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.weight_decay and has_idle(self.layout):
            raise LayoutError(
                "weight decay also shrinks the columns that dropped weight rows leave idle, which the compact "
                "step does not touch; use form = 'masked' or rows = 'units'"
            )
        self._scales = {name: self._scale_of(name) for name in self.full}
        self._positions = {name: self._positions_of(name, offset) for name, offset in self.offsets().items()}
        self._gather(self.pattern)

    def set_pattern(self, pattern: Pattern) -> None:
        if np.array_equal(pattern, self.pattern):
            return
        self.layout.scatter(self.full, self.u, self.indices)
        self._gather(pattern)

    def _gather(self, pattern: Pattern) -> None:
        self.pattern = pattern
        groups = () if pattern.all() else self.layout.groups  # where all rows are held, the model is as it is
        self.indices = self.layout.kept_indices(pattern) if groups else {}
        self.u = self.layout.gather(self.full, self.indices)
        self._absent: Params = {}
        if self.absent is not None:
            masks = self.layout.axis_masks(pattern, self.scale, self.absent.mean.dtype)
            self._absent = self.absent.masked(masks).taken(self.indices).params
        self._kept = {
            group.name: torch.from_numpy(kept_rows(pattern[:, self.layout.ranges[group.name]], group.name))
            for group in groups
        }

    @property
    def kept(self) -> Kept:
        return self._kept

    def sample_weights(self, step: int) -> Params:
        theta: Params = {}
        for name, value in self.noise.add(self._positions, self.u, step).items():
            scale = self._scales[name]
            if name in self.model.large and not _is_one(scale):
                theta[factor(name)] = scale if isinstance(scale, Tensor) else value.new_full((1, 1, 1), scale)
                theta[name] = value
            else:
                theta[name] = value if _is_one(scale) else value * scale
        return theta | self._absent

    def output_rows(self) -> tuple[Tensor | None, int]:
        groups = [group for group in self.layout.groups if group.output and group.name in self.kept]
        return (self.kept[groups[0].name], groups[0].size) if groups else (None, 0)

    def full_outputs(self, outputs: Tensor) -> Tensor:
        for group in self.layout.groups:
            if group.output and group.name in self.kept:  # a dropped class keeps its place, with logit 0
                kept = self.kept[group.name][:, None, :].expand(outputs.shape)
                outputs = outputs.new_zeros(*outputs.shape[:2], group.size).scatter(2, kept, outputs)
        return outputs

    def kept_masks(self, unit_masks: dict[str, Tensor]) -> dict[str, Tensor]:
        return {site: self._kept_units(site, mask) for site, mask in unit_masks.items()}

    def descend(self, gradients: Gradients, decay: bool = True) -> None:
        if self.clip is not None:
            gradients = {n: g.dense() if isinstance(g, Outer) and g.larger else g for n, g in gradients.items()}
        scales = self._scales if self.clip is None else self._clipped(gradients, self.clip)
        for name, u in self.u.items():
            if self.weight_decay and decay:
                u.mul_(1.0 - self.learning_rate * self.weight_decay)
            gradient, scale = gradients[name], scales[name]
            if isinstance(gradient, Outer):  # in place, without ever forming the gradient
                own, alone = (gradient.times(scale), 1.0) if isinstance(scale, Tensor) else (gradient, scale)
                u.baddbmm_(own.left.transpose(1, 2), own.right, alpha=-self.learning_rate * alone)
            elif isinstance(gradient, Rows):
                values, alone = (
                    (gradient.values * scale, 1.0) if isinstance(scale, Tensor) else (gradient.values, scale)
                )
                Rows(gradient.places, values).add_to(u, -self.learning_rate * alone)
            elif isinstance(scale, Tensor):
                for own_u, own_gradient, factor in zip(u, gradient, scale.flatten().tolist(), strict=True):
                    own_u.add_(own_gradient, alpha=-self.learning_rate * factor)
            else:
                u.add_(gradient, alpha=-self.learning_rate * scale)

    def _clipped(self, gradients: Gradients, limit: float) -> dict[str, float | Tensor]:
        """The factors on the gradients with clipping in them."""
        squares: list[Tensor] = []
        known: Grams = {}  # the gates' errors are in the gradients of both matrices of a layer
        for name, scale in self._scales.items():
            times = scale.flatten() if isinstance(scale, Tensor) else scale
            squares.append(squared_norm(gradients[name], known) * times**2)
        factor = clip_factor(squares, limit)
        return {n: s * factor.view(-1, *[1] * (self.full[n].dim() - 1)) for n, s in self._scales.items()}

    def trained(self) -> Params:
        self.layout.scatter(self.full, self.u, self.indices)
        return self.full

    def _positions_of(self, name: str, offset: int) -> Positions:
        """From an entry of the compact tensor to its place in the full model."""

        def positions(client: int, place: IntArray) -> IntArray:
            coordinates = list(np.unravel_index(place, self.u[name].shape[1:]))
            for axis, index in self.indices.get(name, []):
                coordinates[axis] = index.numpy()[client, coordinates[axis]]
            return offset + np.ravel_multi_index(coordinates, self.full[name].shape[1:])

        return positions

    def _scale_of(self, name: str) -> float | Tensor:
        """The factor on a parameter; one a client is shaped to multiply it."""
        parts = [part for group in self.layout.groups for part in group.slices if part.param == name]
        times = sum(part.scaled for part in parts)
        if not isinstance(self.scale, Tensor) or times == 0:
            return float(self.scale) ** times if times else 1.0
        factors: Tensor = self.scale.to(self.full[name].dtype) ** times
        return factors.reshape(-1, *[1] * (self.full[name].dim() - 1))

    def _kept_units(self, site: str, mask: Tensor) -> Tensor:
        if site not in self.kept:
            return mask
        kept = self.kept[site][:, None, :].expand(-1, mask.shape[1], -1)
        return mask.gather(2, kept)


def _is_one(scale: float | Tensor) -> bool:
    return not isinstance(scale, Tensor) and scale == 1.0


def has_idle(layout: Layout) -> bool:
    """Whether some rows leave columns of the next layer idle."""
    return any(group.idle for group in layout.groups)
